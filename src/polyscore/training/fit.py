"""`fit`: data in, a family of learned scores out. `fit_many`: many families at once, in one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from polyscore.algebra import Family
from polyscore.algebra.saved import build_family
from polyscore.data.read import table_of
from polyscore.data.table import Table
from polyscore.devices import check_device, on_cpu_by_default, total_memory, without_autocast
from polyscore.errors import is_count, is_number, require, require_known, shorten
from polyscore.files.atomic import check_file, held
from polyscore.limits import show_bytes
from polyscore.models.checkpoints import Checkpoint, with_suffix
from polyscore.nn import NETWORKS
from polyscore.progress import reporting
from polyscore.rng import as_seed, derive
from polyscore.training.keeper import Keeper
from polyscore.training.loop import Pace, Tell, train
from polyscore.training.pools import Data, Pools, stack_pools
from polyscore.training.recipe import Recipe
from polyscore.training.scales import warn_of_scales
from polyscore.training.trainer import PAGE, Trainer

_MOST_MODELS = 1000
_CPU = torch.device("cpu")


def fit(
    data: Any,
    *,
    condition_column: str | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
    ensemble: int = 1,
    recipe: Recipe | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    checkpoint_seconds: float = 30.0,
    seconds: float | None = None,
    progress: Tell | bool | None = None,
    **fields: Any,
) -> Family:
    """Train scores of every condition and return them as a family.

    Args:
        data: from condition to points `(n, d)`: arrays, tensors or DataFrames. Or, with `condition_column`, one
            DataFrame, AnnData, csv, parquet or h5ad file that holds all of them.
        condition_column: the column (of an AnnData's obs) that names each row's condition.
        columns: the columns to learn, in this order; by default all others that hold numbers.
        seed: of everything random.
        ensemble: train this many models with seeds of their own; conditions are then ensembles.
        recipe: the training recipe; single fields may be given instead (`steps=`, `model=`, `kind=`, `width=` ...).
        device: "cuda" or "cpu"; the GPU where there is one.
        checkpoint: a file to save to every `checkpoint_every` steps, every `checkpoint_seconds`, and on Ctrl-C; a
            training killed in between resumes from it, with the result of an uninterrupted one.
        seconds: stop after this much wall-clock time at the latest.
        progress: called with (step, steps, mean loss) every hundred steps, and every second where these take longer.
            By default a bar shows in a terminal or notebook once two seconds have passed; False shows nothing.
    """
    require("members" not in fields or ensemble == 1, "members", "be left out beside ensemble", fields.get("members"),
            "It is what ensemble was called up to 0.3.0.")  # fmt: skip
    ensemble = fields.pop("members", ensemble)
    check_ensemble(ensemble)
    seed = as_seed(seed)
    if condition_column is not None:
        data = table_of(data, condition_column, columns)
    require(condition_column is not None or columns is None, "columns", "come with condition_column", columns,
            "Name that of the conditions too, or pass a mapping of points.")  # fmt: skip
    pace, seeds = _pace(checkpoint_every, checkpoint_seconds, seconds), _seeds(seed, ensemble)
    models = _train([data] * ensemble, seeds, _recipe(recipe, fields), device, checkpoint, pace, progress)
    about = {"source": data.about()} if isinstance(data, Table) else {}
    return build_family(_together(models, seed, about))


def fit_many(
    datasets: Sequence[Data], seeds: Sequence[int], *, ensemble: int = 1, recipe: Recipe | None = None,
    device: torch.device | str | None = None, checkpoint: str | Path | None = None, checkpoint_every: int = 1000,
    checkpoint_seconds: float = 30.0, seconds: float | None = None, progress: Tell | bool | None = None, **fields: Any,
) -> list[Family]:  # fmt: skip
    """Train one family for each dataset and seed, all in one program; see `fit`, also for `ensemble`.

    A family's result depends on its own data and seed, not on who shares the program.
    """
    require(len(datasets) == len(seeds), "datasets and seeds", "be equally many", (len(datasets), len(seeds)),
            "Pass one seed a dataset.")  # fmt: skip
    check_ensemble(ensemble)
    pace, seeds = _pace(checkpoint_every, checkpoint_seconds, seconds), [as_seed(seed) for seed in seeds]
    every = [data for data in datasets for _ in range(ensemble)], [s for seed in seeds for s in _seeds(seed, ensemble)]
    models = _train(*every, _recipe(recipe, fields), device, checkpoint, pace, progress)
    parts = [models[m * ensemble : (m + 1) * ensemble] for m in range(len(seeds))]
    return [build_family(_together(part, seed)) for part, seed in zip(parts, seeds, strict=True)]


def check_ensemble(ensemble: Any) -> None:
    """Refuse what is no number of models."""
    require(is_count(ensemble) and ensemble <= _MOST_MODELS, "ensemble",
            f"be a whole number of at least 1, and at most {_MOST_MODELS}", shorten(ensemble),
            "Pass 1 for a single model.")  # fmt: skip


def _seeds(seed: int, ensemble: int) -> list[int]:
    """One a model; a single one has the seed itself."""
    return [seed] if ensemble == 1 else [derive(seed, "member", m) for m in range(ensemble)]


def _together(models: Sequence[Checkpoint], seed: int, about: Mapping[str, Any] | None = None) -> Checkpoint:
    """The models of an ensemble as one checkpoint."""
    more: dict[str, Any] = {} if len(models) == 1 else {"seed": seed, "members": len(models)}
    networks = [network for model in models for network in model.networks]
    training = {**models[0].training, **more, **(about or {})}
    return dataclasses.replace(models[0], networks=networks, training=training)


def _pace(every: int, save_after: float, stop_after: float | None) -> Pace:
    """Check when to save and when to stop."""
    require(is_count(every), "checkpoint_every", "be a whole number of at least 1", every, "Leave it out for 1000.")
    require(stop_after is None or (is_number(stop_after) and stop_after >= 0), "seconds",
            "be at least 0, or None", repr(stop_after)[:100], "Leave it out for no limit.")  # fmt: skip
    require(is_number(save_after) and save_after > 0, "checkpoint_seconds",
            "be positive", repr(save_after)[:100], "Leave it out for half a minute.")  # fmt: skip
    return Pace(every, save_after, stop_after)


def _recipe(recipe: Recipe | None, fields: dict[str, Any]) -> Recipe:
    require(recipe is None or isinstance(recipe, Recipe), "recipe", "be a Recipe, or None", shorten(recipe),
            "Write its fields themselves: fit(data, steps=5000).")  # fmt: skip
    for name in fields:
        require_known(name, Recipe.names(), "an option of fit", "Leave it out.")
    return Recipe(**fields) if recipe is None else dataclasses.replace(recipe, **fields)


def _train(
    datasets: Sequence[Data], seeds: Sequence[int], recipe: Recipe, device: torch.device | str | None,
    checkpoint: str | Path | None, pace: Pace, progress: Tell | bool | None,
) -> list[Checkpoint]:  # fmt: skip
    """Train one model for each dataset and seed, all in one program."""
    path = None if checkpoint is None else check_file(with_suffix(checkpoint), (".safetensors",))
    where = check_device(device)
    with _whatever_the_caller_is_in(where), reporting(progress, "training") as tell:
        pools = stack_pools(datasets, recipe.standardise, recipe.bend)
        warn_of_scales(pools, recipe)
        _check_memory(pools, recipe, where)
        trainer = Trainer(pools, seeds, recipe, where)
        keeper = Keeper(path, recipe, pools, seeds)
        with held(path) if path else nullcontext():
            keeper.resume(trainer)
            train(trainer, keeper, pace, tell)
        return _models(trainer, pools)


@contextmanager
def _whatever_the_caller_is_in(device: torch.device) -> Iterator[None]:
    """Train the same in inference mode, under autocast, or with another default device."""
    plain = without_autocast(device), without_autocast(_CPU)
    with torch.inference_mode(False), torch.enable_grad(), plain[0], plain[1], on_cpu_by_default():
        yield


def _check_memory(pools: Pools, recipe: Recipe, device: torch.device) -> None:
    """Refuse networks that the machine cannot hold, with Adam's moments, gradients and one batch's activations."""
    models, conditions = pools.sizes.shape
    weights, activations = NETWORKS[recipe.kind].numbers(recipe.architecture(pools.dim, conditions))
    batch = recipe.batch * (activations + PAGE * (pools.dim + 2))
    needed = 4 * models * (conditions if recipe.separate else 1) * (4 * weights + batch)
    there = total_memory(device)
    require(needed < there, "a training", f"fit into the {show_bytes(there)} of {device}",
            f"{show_bytes(needed)} of networks and batches", "Lower width, depth, batch or ensemble.")  # fmt: skip


def _models(trainer: Trainer, pools: Pools) -> list[Checkpoint]:
    """Cut the stack into one checkpoint a model."""
    recipe, indices = trainer.recipe, {name: a for a, name in enumerate(pools.conditions)}
    models = []
    for m, (seed, network) in enumerate(zip(trainer.seeds, trainer.networks(), strict=True)):
        steps = recipe.steps if trainer.step == trainer.steps else trainer.step
        steps = steps if trainer.trains else 0
        training = {"recipe": recipe.to_dict(), "seed": seed, "steps": steps,
                    "train_sizes": pools.sizes[m].tolist()}  # fmt: skip
        training |= {"variables": list(pools.variables)} if pools.variables else {}
        models.append(Checkpoint([network], indices, recipe.schedule, pools.units[m], training))
    return models
