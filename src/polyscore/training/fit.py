"""`fit`: data in, a family of learned scores out. `fit_many`: many families at once, in one program."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import Family
from polyscore.checkpoints import Checkpoint, with_suffix
from polyscore.devices import check_device
from polyscore.distributions.learned import Ensemble
from polyscore.errors import DegeneracyWarning, PolyscoreError, is_count, require
from polyscore.files import check_file
from polyscore.nn.mlp import ScoreNetwork
from polyscore.rng import as_seed, derive
from polyscore.tensor_files import read_tensors, write_tensors
from polyscore.training.families import build_family
from polyscore.training.pools import Data, Pools, stack_pools
from polyscore.training.recipe import Recipe
from polyscore.training.trainer import Snapshot, Trainer

Report = Callable[[int, int, float], None]
_CHECK = 100  # steps between looks at the loss: each look waits for the device


class DivergenceError(PolyscoreError):
    """A loss that is no longer finite; the last good checkpoint is kept.

    Attributes:
        datasets: whose models diverged, by their place in `fit_many`.
    """

    def __init__(self, message: str, datasets: Sequence[int] = (0,)) -> None:
        super().__init__(message)
        self.datasets = tuple(datasets)


def fit(
    data: Data,
    *,
    seed: int = 0,
    members: int = 1,
    recipe: Recipe | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    seconds: float | None = None,
    progress: Report | None = None,
    **options: Any,
) -> Family:
    """Train scores of every condition and return them as a family.

    Args:
        data: from condition to points `(n, d)`: arrays or tensors.
        seed: of everything random.
        members: train this many models with seeds of their own; conditions are then ensembles.
        recipe: the training recipe; single fields may be given as options instead (`steps=`, `model=`, `width=` ...).
        device: "cuda" or "cpu"; the GPU where there is one.
        checkpoint: a file to save to every `checkpoint_every` steps; a training killed in between resumes from it, with
            the result of an uninterrupted one.
        seconds: stop after this much wall-clock time at the latest.
        progress: called now and then with (step, steps, mean loss).
    """
    require(is_count(members), "members", "be a whole number of at least 1", members)
    seed = as_seed(seed)
    seeds = [seed] if members == 1 else [derive(seed, "member", m) for m in range(members)]
    families = fit_many(
        [data] * members, seeds, recipe=recipe, device=device, checkpoint=checkpoint,
        checkpoint_every=checkpoint_every, seconds=seconds, progress=progress, **options,
    )  # fmt: skip
    if members == 1:
        return families[0]
    together = {name: Ensemble([family.members[name] for family in families]) for name in families[0]}  # type: ignore[misc]
    family = Family(together, units=families[0].units)
    family.training = {**families[0].training, "seed": seed, "members": int(members)}
    return family


def fit_many(
    datasets: Sequence[Data],
    seeds: Sequence[int],
    *,
    recipe: Recipe | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    seconds: float | None = None,
    progress: Report | None = None,
    **options: Any,
) -> list[Family]:
    """Train one family for each dataset and seed, all in one program; see `fit`.

    A family's result depends on its own data and seed, not on who shares the program.
    """
    require(len(datasets) == len(seeds), "datasets and seeds", "be equally many", (len(datasets), len(seeds)))
    seeds = [as_seed(seed) for seed in seeds]
    require(is_count(checkpoint_every), "checkpoint_every",
            "be a whole number of at least 1", checkpoint_every)  # fmt: skip
    require(seconds is None or seconds >= 0, "seconds", "be at least 0, or None", seconds)
    if checkpoint is not None:
        checkpoint = check_file(with_suffix(checkpoint), (".safetensors",))
    recipe = _recipe(recipe, options)
    where = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller is in
        pools = stack_pools(datasets, recipe.standardise)
        _warn_of_large_data(pools, recipe)
        trainer = Trainer(pools, seeds, recipe, where)
        keeper = _Keeper(Path(checkpoint) if checkpoint else None, recipe, pools, seeds)
        keeper.resume(trainer)
        _train(trainer, keeper, checkpoint_every, seconds, progress)
        return _families(trainer, pools)


def _warn_of_large_data(pools: Pools, recipe: Recipe) -> None:
    """Warn where the schedule cannot turn the data into noise: a sampler then starts from the wrong place."""
    real = torch.arange(pools.points.shape[2]) < pools.sizes[..., None]
    size = pools.points[real].square().mean(0).sqrt().max().item()
    left = size * recipe.schedule.alpha(torch.ones((), dtype=torch.float64)).item()
    if left > 0.5:
        warnings.warn(
            f"data should be small against the schedule's noise; theirs is {size:.3g}, of which {left:.2g} is left at "
            "t = 1. Pass standardise=True.",
            DegeneracyWarning,
            stacklevel=4,
        )


def _recipe(recipe: Recipe | None, options: dict[str, Any]) -> Recipe:
    names = [field.name for field in dataclasses.fields(Recipe)]
    for name in options:
        require(name in names, "an option of fit", f"be one of {', '.join(names)}", repr(name))
    return dataclasses.replace(recipe or Recipe(), **options)


def _train(trainer: Trainer, keeper: _Keeper, every: int, seconds: float | None, progress: Report | None) -> None:
    """Step to the end, the time limit, or a diverging loss."""
    started, steps = time.monotonic(), trainer.recipe.steps
    losses = None
    while trainer.step < steps:
        losses = trainer.advance()
        out_of_time = seconds is not None and time.monotonic() - started > seconds
        if trainer.step % _CHECK and trainer.step % every and trainer.step != steps and not out_of_time:
            continue
        _stop_if_diverged(trainer, losses, keeper)
        if progress:
            progress(trainer.step, steps, losses.mean().item())
        if trainer.step % every == 0 or trainer.step == steps or out_of_time:
            keeper.save(trainer)
        if out_of_time:
            return


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
        step = int(about.pop("step", 0))
        if about != self.about:
            differing = [key for key in self.about if about.get(key) != self.about[key]]
            raise PolyscoreError(
                f"a checkpoint must belong to this training; {self.path} differs in {', '.join(differing)}. "
                "Name another file, or delete it to start again."
            )
        if step > trainer.recipe.steps:
            raise PolyscoreError(
                f"a training must not be shorter than its checkpoint; {self.path} is of step {step}, steps is "
                f"{trainer.recipe.steps}. Raise steps, or name another file."
            )
        trainer.restore(Snapshot(step, tensors))
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
        family = build_family(Checkpoint([network], indices, recipe.schedule, units, training))
        families.append(family)
    return families
