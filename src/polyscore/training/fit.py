"""`fit`: data in, a family of learned scores out. `fit_many`: many families at once, in one program."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import Family
from polyscore.data.tables import Table, table_of
from polyscore.devices import check_device, without_autocast
from polyscore.errors import PolyscoreError, is_count, is_number, require
from polyscore.files.atomic import check_file, held
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.limits import show_bytes
from polyscore.models.checkpoints import Checkpoint, with_suffix
from polyscore.models.ensemble import Ensemble
from polyscore.nn.mlp import ScoreNetwork
from polyscore.progress import reporting
from polyscore.rng import as_seed, derive
from polyscore.training.families import build_family
from polyscore.training.pools import Data, Pools, stack_pools
from polyscore.training.recipe import Recipe
from polyscore.training.scales import warn_of_scales
from polyscore.training.trainer import PAGE, Snapshot, Trainer

Report = Callable[[int, int, float], None]
_MOST_MEMBERS = 1000
_CHECK, _PATIENCE = 100, 1.0  # steps, and seconds at most, between looks at the loss: each look waits for the device


class CheckpointError(PolyscoreError):
    """A checkpoint of another training."""


class DivergenceError(PolyscoreError):
    """A loss that is no longer finite; the last good checkpoint is kept.

    Attributes:
        datasets: whose models diverged, by their place in `fit_many`.
    """

    def __init__(self, message: str, datasets: Sequence[int] = (0,)) -> None:
        super().__init__(message)
        self.datasets = tuple(datasets)


def fit(
    data: Any,
    *,
    condition_column: str | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
    members: int = 1,
    recipe: Recipe | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    checkpoint_seconds: float = 30.0,
    seconds: float | None = None,
    progress: Report | bool | None = None,
    **options: Any,
) -> Family:
    """Train scores of every condition and return them as a family.

    Args:
        data: from condition to points `(n, d)`: arrays, tensors or DataFrames. Or, with `condition_column`, one
            DataFrame, csv or parquet file that holds all of them.
        condition_column: the column that names each row's condition.
        columns: the columns to learn, in this order; by default all others that hold numbers.
        seed: of everything random.
        members: train this many models with seeds of their own; conditions are then ensembles.
        recipe: the training recipe; single fields may be given as options instead (`steps=`, `model=`, `width=` ...).
        device: "cuda" or "cpu"; the GPU where there is one.
        checkpoint: a file to save to every `checkpoint_every` steps, every `checkpoint_seconds`, and on Ctrl-C; a
            training killed in between resumes from it, with the result of an uninterrupted one.
        seconds: stop after this much wall-clock time at the latest.
        progress: called with (step, steps, mean loss) every hundred steps, and every second where these take longer.
            By default a bar shows in a terminal or notebook once two seconds have passed; False shows nothing.
    """
    require(is_count(members) and members <= _MOST_MEMBERS, "members",
            f"be a whole number of at least 1, and at most {_MOST_MEMBERS}", members)  # fmt: skip
    seed = as_seed(seed)
    if condition_column is not None:
        data = table_of(data, condition_column, columns)
    require(condition_column is not None or columns is None, "columns", "come with condition_column", columns)
    seeds = [seed] if members == 1 else [derive(seed, "member", m) for m in range(members)]
    families = fit_many(
        [data] * members, seeds, recipe=recipe, device=device, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, checkpoint_seconds=checkpoint_seconds, seconds=seconds, progress=progress,
        **options,
    )  # fmt: skip
    about = {"source": data.about()} if isinstance(data, Table) else {}
    if members == 1:
        families[0].training |= about
        return families[0]
    together = {name: Ensemble([family.members[name] for family in families]) for name in families[0]}  # type: ignore[misc]
    family = Family(together, units=families[0].units, variables=families[0].names or None)
    family.training = {**families[0].training, "seed": seed, "members": int(members), **about}
    return family


def fit_many(
    datasets: Sequence[Data],
    seeds: Sequence[int],
    *,
    recipe: Recipe | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    checkpoint_seconds: float = 30.0,
    seconds: float | None = None,
    progress: Report | bool | None = None,
    **options: Any,
) -> list[Family]:
    """Train one family for each dataset and seed, all in one program; see `fit`.

    A family's result depends on its own data and seed, not on who shares the program.
    """
    require(len(datasets) == len(seeds), "datasets and seeds", "be equally many", (len(datasets), len(seeds)))
    seeds = [as_seed(seed) for seed in seeds]
    require(is_count(checkpoint_every), "checkpoint_every",
            "be a whole number of at least 1", checkpoint_every)  # fmt: skip
    require(seconds is None or (is_number(seconds) and seconds >= 0), "seconds",
            "be at least 0, or None", repr(seconds)[:100])  # fmt: skip
    require(is_number(checkpoint_seconds) and checkpoint_seconds > 0, "checkpoint_seconds",
            "be positive", repr(checkpoint_seconds)[:100])  # fmt: skip
    if checkpoint is not None:
        checkpoint = check_file(with_suffix(checkpoint), (".safetensors",))
    recipe = _recipe(recipe, options)
    where = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with _whatever_the_caller_is_in(where), reporting(progress, "training") as report:
        pools = stack_pools(datasets, recipe.standardise)
        warn_of_scales(pools, recipe)
        _check_memory(pools, recipe, where)
        trainer = Trainer(pools, seeds, recipe, where)
        keeper = _Keeper(Path(checkpoint) if checkpoint else None, recipe, pools, seeds)
        with held(keeper.path) if keeper.path else nullcontext():
            keeper.resume(trainer)
            _train(trainer, keeper, _Pace(checkpoint_every, checkpoint_seconds, seconds), report)
        return _families(trainer, pools)


def _check_memory(pools: Pools, recipe: Recipe, device: torch.device) -> None:
    """Refuse networks that the machine cannot hold, with Adam's moments, gradients and one batch's activations."""
    models, conditions = pools.sizes.shape
    separate = recipe.model == "separate"
    inputs = 1 + pools.dim + (0 if separate else conditions)
    weights = recipe.width * (inputs + pools.dim + (recipe.depth - 1) * recipe.width)
    batch = recipe.batch * (2 * recipe.depth * recipe.width + PAGE * (pools.dim + 2))
    needed = 4 * models * (conditions if separate else 1) * (4 * weights + batch)
    there = _memory(device)
    require(needed < there, "a training", f"fit into the {show_bytes(there)} of {device}",
            f"{show_bytes(needed)} of networks and batches", "Lower width, depth, batch or members.")  # fmt: skip


def _memory(device: torch.device) -> int:
    """Bytes of memory in all."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62


@contextmanager
def _whatever_the_caller_is_in(device: torch.device) -> Iterator[None]:
    """Train the same in inference mode, under autocast, or with another default device."""
    here = nullcontext() if torch.get_default_device() == _CPU else _CPU
    with torch.inference_mode(False), torch.enable_grad(), without_autocast(device), without_autocast(_CPU), here:
        yield


_CPU = torch.device("cpu")


def _recipe(recipe: Recipe | None, options: dict[str, Any]) -> Recipe:
    names = [field.name for field in dataclasses.fields(Recipe)]
    for name in options:
        require(name in names, "an option of fit", f"be one of {', '.join(names)}", repr(name))
    return dataclasses.replace(recipe or Recipe(), **options)


@dataclass(frozen=True)
class _Pace:
    """When to save and when to stop: every so many steps and seconds, after so many seconds."""

    every: int
    save_after: float
    stop_after: float | None


def _train(trainer: Trainer, keeper: _Keeper, pace: _Pace, progress: Report | None) -> None:
    """Step to the end, the time limit, Ctrl-C or a diverging loss."""
    started, steps = time.monotonic(), trainer.recipe.steps
    looked = saved = started
    with _interrupts(keeper.path is not None) as interrupted:
        while trainer.step < steps:
            losses, now = trainer.advance(), time.monotonic()
            late = pace.stop_after is not None and now - started > pace.stop_after
            stopped = bool(interrupted)  # looked at once: an interrupt from here on waits for the next step
            save = (
                late
                or stopped
                or trainer.step == steps
                or trainer.step % pace.every == 0
                or now - saved > pace.save_after
            )
            if not save and trainer.step % _CHECK and now - looked <= _PATIENCE:
                continue
            looked = now
            _stop_if_diverged(trainer, losses, keeper)
            if progress:
                progress(trainer.step, steps, losses.mean().item())
            if save:
                keeper.save(trainer)
                saved = now
            if stopped:
                raise KeyboardInterrupt
            if late:
                return


@contextmanager
def _interrupts(wanted: bool) -> Iterator[list[int]]:
    """Let Ctrl-C wait for the end of a step, so that a checkpoint is of a whole one; a second one does not wait.

    Yields the interrupts so far. Handlers belong to the main thread, and to whoever has set one of their own.
    """
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if not wanted or threading.current_thread() is not threading.main_thread() or before != signal.default_int_handler:
        yield seen
        return

    def note(number: int, frame: Any) -> None:
        if seen:
            signal.default_int_handler(number, frame)
        seen.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _stop_if_diverged(trainer: Trainer, losses: Tensor, keeper: _Keeper) -> None:
    """Stop on a bad loss, of the last step or of the weights that it left behind."""
    losses = torch.where(losses.isfinite(), trainer.next_losses(), losses)
    bad = (~(losses <= trainer.largest_loss)).nonzero().flatten().tolist()
    if bad:
        kept = f"The last good checkpoint, of step {keeper.saved}, is in {keeper.path}." if keeper.saved else ""
        raise DivergenceError(
            f"the loss must not diverge; that of {trainer.labels[bad[0]]} is {losses[bad[0]].item():.3g} by step "
            f"{trainer.step}. Lower learning_rate or standardise the data. {kept}".strip(),
            sorted({network // trainer.networks_each for network in bad}),
        )


class _Keeper:
    """Saves snapshots of one training to a file, and recognises its own."""

    def __init__(self, path: Path | None, recipe: Recipe, pools: Pools, seeds: Sequence[int]) -> None:
        self.path, self.saved = path, 0
        contents = (pools.points.numpy().tobytes().hex(), pools.sizes.tolist(), pools.conditions) if path else ()
        data = derive(0, *contents)
        # `steps` may be raised to train on; everything else must agree.
        described = {key: value for key, value in recipe.to_dict().items() if key != "steps"}
        self.about = {"kind": "training", "recipe": described, "seeds": list(map(int, seeds)), "data": str(data)}

    def resume(self, trainer: Trainer) -> None:
        if self.path is None or not self.path.exists():
            return
        tensors, about = read_tensors(self.path)
        step = about.pop("step", None)
        if about != self.about:
            differing = [key for key in self.about if about.get(key) != self.about[key]]
            raise CheckpointError(
                f"a checkpoint must belong to this training; {self.path} differs in {', '.join(differing)}. "
                "Name another file, or delete it to start again."
            )
        if not is_count(step):
            raise FileError(f"a checkpoint's step must be a whole number; {self.path} has {step!r:.50}. Delete it.")
        if step > trainer.recipe.steps:
            raise CheckpointError(
                f"a training must not be shorter than its checkpoint; {self.path} is of step {step}, steps is "
                f"{trainer.recipe.steps}. Raise steps, or name another file."
            )
        try:
            trainer.restore(Snapshot(step, tensors))
        except (KeyError, TypeError, RuntimeError) as error:  # not by chance: the checksum holds
            raise FileError(
                f"a checkpoint must hold every tensor of its training, in shape; {self.path} does not "
                f"({str(error)[:100]}). Delete it to start again."
            ) from error
        self.saved = step

    def save(self, trainer: Trainer) -> None:
        if self.path is None:
            return
        snapshot = trainer.snapshot()
        write_tensors(self.path, snapshot.tensors, {**self.about, "step": snapshot.step})
        self.saved = snapshot.step


def _families(trainer: Trainer, pools: Pools) -> list[Family]:
    """Cut the stack into one family a model."""
    recipe = trainer.recipe
    weights, biases = trainer.parameters()
    per_model = len(pools.conditions) if recipe.model == "separate" else 1
    families = []
    for m, seed in enumerate(trainer.seeds):
        rows = slice(m * per_model, (m + 1) * per_model)
        network = ScoreNetwork(
            [w[rows].clone() for w in weights], [b[rows].clone() for b in biases], pools.dim, recipe.activation
        )
        units = (pools.shift[m], pools.scale[m]) if recipe.standardise else None
        indices = {name: a for a, name in enumerate(pools.conditions)}
        training = {"recipe": recipe.to_dict(), "seed": seed, "steps": trainer.step,
                    "train_sizes": pools.sizes[m].tolist()}  # fmt: skip
        if pools.variables:
            training["variables"] = list(pools.variables)
        family = build_family(Checkpoint([network], indices, recipe.schedule, units, training))
        families.append(family)
    return families
