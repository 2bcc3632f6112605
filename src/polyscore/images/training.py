"""`train`: a dataset and mixtures of its classes in; a folder with checkpoints and an export out."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polyscore.devices import matmul_precision, plain_defaults, without_autocast
from polyscore.errors import ArgumentError, is_count, is_number, require
from polyscore.files.atomic import check_directory, file_name, held
from polyscore.images import export
from polyscore.images.keeper import Keeper
from polyscore.images.loop import Pace, Tell, run
from polyscore.images.mixtures import Mixtures
from polyscore.images.pool import Pictures, Pool, read
from polyscore.images.presets import recipe_of
from polyscore.images.program import form_for, program
from polyscore.images.recipe import Recipe
from polyscore.images.trainer import Trainer
from polyscore.images.workers import Workers, workers
from polyscore.progress import reporting
from polyscore.rng import as_seed, derive
from polyscore.rooms import Dataset

if TYPE_CHECKING:
    from polyscore.algebra import Family

_TURN = threading.Lock()
_YEARS = 1e8  # minutes; a number without end is more than a clock can hold


@dataclass(frozen=True)
class Trained:
    """What came of a training.

    Attributes:
        path: its folder.
        complete: whether it reached its end; if not, the same call goes on.
        steps, of_steps: taken, and of the whole training, by all networks together.
        held_out: loss of each condition on held-out pictures, of the last measurement.
        history: of each network, by its conditions: {"step", "loss", "held_out"} of every measurement.
        seconds: that this call took.
    """

    path: Path
    complete: bool
    steps: int
    of_steps: int
    held_out: dict[str, float]
    history: dict[str, list[dict[str, Any]]]
    seconds: float

    def load(self, device: torch.device | str | None = None) -> Family:
        """Return the conditions as a family."""
        return export.load(self.path, device)


def train(
    dataset: Dataset | Path | str,
    mixtures: Mixtures | Mapping[str, Any],
    out: Path | str,
    *,
    recipe: str | Recipe = "64",
    seed: int = 0,
    device: torch.device | str | None = None,
    minutes: float | None = None,
    progress: Tell | bool | None = None,
    save_every: int | None = None,
    save_seconds: float = 60.0,
    form: str = "auto",
    graph: bool | None = None,
    **fields: Any,
) -> Trained:
    """Train a U-Net on mixtures of classes; what is there is kept, and what was cut goes on exactly.

    Args:
        dataset: pictures by class, or their folder; a multiple of the network's resolution is made smaller.
        mixtures: conditions as mixtures of classes, or a mapping that `Mixtures.parse` takes.
        out: a folder for checkpoints, and for the export once it is complete.
        recipe: a name in `PRESETS`, or a recipe; single fields may be given too (`model=`, `steps=`, `batch=` ...).
        seed: of weights, batches and noise.
        device: "cuda" or "cpu"; the GPU where there is one. Under `accelerate launch` each process has its own.
        minutes: save and return in time before they have passed.
        progress: called with (step, steps, mean loss) every 50 steps; by default a bar where one can be seen.
        save_every, save_seconds: steps and seconds between checkpoints; Ctrl-C saves too.
        form: of the program: "plain", "kernels", "compiled", or "auto": kernels where a GPU is. One process makes
            that of a shape once.
        graph: replay steps as a CUDA graph; by default where one process has a GPU.
    """
    began = time.monotonic()
    chosen = recipe_of(recipe, **fields)
    pace = _pace(save_every, save_seconds, minutes, began)
    mixed = mixtures if isinstance(mixtures, Mixtures) else Mixtures.parse(mixtures)
    out, seed = check_directory(out), as_seed(seed)
    who = workers(device)
    pictures = read(dataset if isinstance(dataset, Dataset) else Dataset(dataset), mixed, chosen)
    job = _Job(pictures, mixed, chosen, out, seed, who, pace, form_for(form, who.device), graph is not False)
    done = export.find(out, job.identity(mixed))
    with reporting(progress if who.first else False, "training") as tell:
        done = done or job.run(tell)
    return Trained(out, *done, seconds=time.monotonic() - began)


def _pace(save_every: int | None, save_seconds: float, minutes: float | None, began: float) -> Pace:
    require(save_every is None or is_count(save_every), "save_every", "be a whole number of at least 1, or None",
            repr(save_every)[:100], "Leave it out to save by seconds.")  # fmt: skip
    require(is_number(save_seconds) and save_seconds > 0, "save_seconds", "be positive", repr(save_seconds)[:100],
            "Leave it out for a minute.")  # fmt: skip
    require(minutes is None or (is_number(minutes) and minutes >= 0), "minutes", "be at least 0, or None",
            repr(minutes)[:100], "Leave it out for no limit.")  # fmt: skip
    return Pace(save_every, save_seconds, None if minutes is None else began + 60 * min(minutes, _YEARS))


@dataclass(frozen=True)
class _Job:
    """A training that is to run: one network of all conditions, or one of each."""

    pictures: Pictures
    mixtures: Mixtures
    recipe: Recipe
    out: Path
    seed: int
    who: Workers
    pace: Pace
    form: str
    graph: bool

    def identity(self, mixtures: Mixtures) -> dict[str, Any]:
        """All that decides the result."""
        return {"recipe": self.recipe.to_dict(), "mixtures": mixtures.to_dict(), "seed": self.seed,
                "data": self.pictures.digest}  # fmt: skip

    def networks(self) -> dict[str, Mixtures]:
        """The conditions of each network, by the name of its folder."""
        if self.recipe.model == "conditional":
            return {"network": self.mixtures}
        each = self.mixtures.conditions.items()
        return {file_name(name): Mixtures(self.mixtures.classes, {name: masses}) for name, masses in each}

    def run(self, tell: Tell | None) -> export.Done:
        """Train what is missing, then export; return the fields of `Trained`."""
        networks = self.networks()
        each = self.recipe.length(self.pictures.count)
        rows = max(1, self.recipe.batch // len(networks))
        history, results, taken = {}, {}, 0
        lock = held(self.out / "training") if self.who.first else nullcontext()
        with _alone(), lock, settings(self.who.device):
            for number, (name, mixtures) in enumerate(networks.items()):
                keeper, trainer = self._prepared(name, mixtures, each, rows)
                whole = run(trainer, keeper, self.pace, _shifted(tell, number * each, len(networks) * each))
                taken, history[name] = taken + trainer.step, keeper.history
                if not whole:
                    measured = {name: entries for name, entries in history.items() if entries}
                    return False, taken, each * len(networks), export.newest(measured), history
                results[name] = (tuple(mixtures.conditions), {k: v.half().cpu() for k, v in trainer.averages().items()})
            if self.who.first:
                export.write(self.out / export.FOLDER, self.identity(self.mixtures), results, history, taken)
            self.who.wait()
        return True, taken, taken, export.newest(history), history

    def _prepared(self, name: str, mixtures: Mixtures, steps: int, rows: int) -> tuple[Keeper, Trainer]:
        device = self.who.device
        gc.collect()  # what a captured step of the training before holds of the device's memory
        # Networks of one condition differ in their batches and first weights, as if they had seeds of their own.
        seed = self.seed if self.recipe.model == "conditional" else derive(self.seed, "separate", name)
        shared = program(self.recipe.unet, len(mixtures.conditions), device, self.recipe.precision, self.form)
        pool = Pool(self.pictures, mixtures, self.recipe, seed, device)
        alone = self.graph and self.who.count == 1
        trainer = Trainer(shared, pool, self.recipe, steps, rows, self.who, alone)
        keeper = Keeper(self.out / "checkpoints" / name, self.identity(mixtures))
        keeper.resume(trainer)
        return keeper, trainer


@contextmanager
def _alone() -> Iterator[None]:
    """Refuse a second training in this process: trainings of one shape take turns at one network (`program`)."""
    if not _TURN.acquire(blocking=False):
        raise ArgumentError(
            "a process must train one image model at a time; another thread does, or this is called by its progress. "
            "Wait for it, or start another process."
        )
    try:
        yield
    finally:
        _TURN.release()


def _shifted(tell: Tell | None, before: int, total: int) -> Tell | None:
    """Progress of one network as that of all."""
    return None if tell is None else lambda step, _, loss: tell(before + step, total, loss)


@contextmanager
def settings(device: torch.device) -> Iterator[None]:
    """Train the same in inference mode, under autocast or with other defaults; on a GPU let cuDNN find fast ways."""
    fast = torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True)
    with (torch.inference_mode(False), torch.enable_grad(), without_autocast(device), matmul_precision("high", device),
          plain_defaults(), fast if device.type == "cuda" else nullcontext()):  # fmt: skip
        yield
