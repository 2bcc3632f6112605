"""Computing cells: train the models of an experiment together, then sample and measure each cell on its own.

A cell's random numbers come from its own coordinates and run seed: alone or in the sweep, on the same kind of device,
it is the same.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

import polyscore
from polyscore.algebra import Family
from polyscore.errors import ArgumentError, DegeneracyWarning, PolyscoreError, ScoreError, shorten
from polyscore.experiments.cells import ANALYTIC, COMPOSITION, Cell
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.references import REFERENCES, Wanted, composed
from polyscore.experiments.sources import family_of
from polyscore.metrics.named import METRICS, Metric, Options, needs_reference
from polyscore.rng import derive
from polyscore.samplers import FeynmanKac, Run, Sampler
from polyscore.samplers.moves import Balanced
from polyscore.schedules import Schedule
from polyscore.training import Recipe, fit_many

Model = tuple[str, str, int, int]  # family, models, train size, run
Results = dict[str, float]


def model_of(cell: Cell) -> Model:
    """Return which trained model a cell needs."""
    return (cell.family, cell.models, cell.train_size, cell.run)


def train(
    models: Sequence[Model],
    experiment: Experiment,
    device: str,
    progress: Callable[[int, int, float], None] | None = None,
) -> dict[Model, Family]:
    """Train models of one family and kind as one program; analytic ones need none."""
    if not models:
        return {}
    name, kind = models[0][:2]
    if kind == ANALYTIC:
        family = experiment.source.build()
        return dict.fromkeys(models, family)
    protocol, schedule = experiment.protocol, family_of(experiment.source).schedule
    options = experiment.networks.get(kind, {})
    families = fit_many(
        [training_data(model, experiment) for model in models],
        [derive(protocol.first_seed + run, "train", name, kind, size) for _, _, size, run in models],
        ensemble=options.get("ensemble", 1), recipe=recipe_of(kind, protocol, schedule, options), device=device,
        progress=progress or False,
    )  # fmt: skip
    return dict(zip(models, families, strict=True))


def recipe_of(kind: str, protocol: Protocol, schedule: Schedule, options: Any = None) -> Recipe:
    """Return a protocol's training; every field is given, so that no default of `fit` decides a stored result.

    Args:
        options: fields of a network that a spec names, which win.
    """
    own = {name: value for name, value in (options or {}).items() if name != "ensemble"}
    recipe = Recipe(
        model=own.pop("model", kind), steps=protocol.train_steps, batch=protocol.batch,
        learning_rate=protocol.learning_rate, width=protocol.width, depth=protocol.depth,
        activation=protocol.activation, schedule=schedule, standardise=protocol.standardise, ema=protocol.ema,
        kind="vanilla", options={}, bend=False,
    )  # fmt: skip
    return dataclasses.replace(recipe, **own)


def training_data(model: Model, experiment: Experiment) -> dict[str, Tensor]:
    """Return a model's pools: `train_size` points per condition, drawn once from the run's seed."""
    name, _, size, run = model
    seed, family = experiment.protocol.first_seed + run, family_of(experiment.source)
    return {
        condition: family.restore(member.sample(size, seed=derive(seed, "data", name, condition, size)))  # type: ignore[union-attr]
        for condition, member in family.members.items()
    }


def compute(
    cell: Cell, family: Family, experiment: Experiment, device: str, keep: Callable[[Tensor], None] | None = None
) -> tuple[Results, dict[str, Any]]:
    """Sample one cell and measure it; returns its results and where they come from. `keep` is shown the samples."""
    started = time.perf_counter()
    family.to(precision=experiment.protocol.precision)
    run = sample(cell, family, experiment, device)
    if keep:
        keep(run.samples)
    results = {
        **measure(cell, run.samples, experiment),
        "clipped": run.clipped_fraction,
        "ancestors": run.unique_ancestors.float().mean().item(),
        "ess": run.ess.float().mean().item(),
    }
    _check_finite(results, [name for name in cell.measured if not _is_ours(metric_of(name, experiment))])
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    about = {"version": polyscore.__version__, "torch": torch.__version__.split("+")[0], "device": name,
             "arithmetic": run.arithmetic, "strays": run.strays,
             "seconds": round(time.perf_counter() - started, 3)}  # fmt: skip
    about |= {"chosen": run.sampler} if run.reason else {}
    return {key: float(f"{value:.6g}") for key, value in results.items()}, about


def _check_finite(results: Results, foreign: Sequence[str]) -> None:
    """Raise unless all results are numbers, and say who can mend those that are not."""
    bad = [name for name, value in results.items() if not math.isfinite(value)]
    if bad:
        theirs = set(bad) <= set(foreign)
        remedy = f"Correct the metric {', '.join(bad)}." if theirs else "Use more steps, or a smaller clip."
        raise ScoreError(f"the results of a cell must be finite; got {results}. {remedy}")


def measure(cell: Cell, samples: Tensor, experiment: Experiment) -> Results:
    """Return the metrics of a cell's samples."""
    reference = reference_of(cell, experiment)
    there = None if reference is None else reference.to(samples)
    options = Options(_seed(cell, experiment.protocol, "projections"), experiment.protocol.projections)
    return {name: _measured(name, metric_of(name, experiment), samples, there, options) for name in cell.measured}


def metric_of(name: str, experiment: Experiment) -> Metric:
    """Return a metric by name: the experiment's own, or a registered one."""
    function = experiment.functions.get(name)
    return METRICS[name] if function is None else function.load()


def _measured(name: str, metric: Metric, samples: Tensor, reference: Tensor | None, options: Options) -> float:
    """Return what a metric says; it gets copies, so that one which works in place changes nothing for the next."""
    there = None if reference is None else reference.clone()
    try:
        return _number(metric(samples.clone(), there, options))  # type: ignore[arg-type]
    except (Exception, SystemExit) as error:  # of a user's function
        if _is_ours(metric) and isinstance(error, ArgumentError):
            raise ScoreError(
                f"samples must be near enough to be measured; they reach {samples.abs().max().item():.3g} ({error}). "
                "Use more steps, a smaller learning_rate or clip."
            ) from error
        why = f"{type(error).__name__}: {shorten(str(error), 100)}"
        raise PolyscoreError(f"a metric must return a number; {name} did not ({why}). Correct the function.") from error


def _is_ours(metric: Metric) -> bool:
    """Whether samples are to blame for what a metric cannot measure, and not its author."""
    return str(getattr(metric, "__module__", "")).startswith("polyscore.")


def _number(value: Any) -> float:
    """Return a real number as such, of a tensor or array with one entry too; text and truth are none."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool) or not isinstance(plain, Real):
        raise TypeError(f"{shorten(value, 60)} is no number")
    return float(plain)


def sample(cell: Cell, family: Family, experiment: Experiment, device: str) -> Run:
    """Run a cell's sampler."""
    protocol = experiment.protocol
    q = composed(family, experiment.exponents(cell.target))
    with warnings.catch_warnings():
        # Collapse is what a table may be about; it is recorded as `ess` and `ancestors`.
        warnings.simplefilter("ignore", DegeneracyWarning)
        return _sampler(cell, experiment).sample(
            q, protocol.swarms, _seed(cell, protocol, "sample"), device=device, history=True, progress=False
        )


def _sampler(cell: Cell, experiment: Experiment) -> Sampler:
    return experiment.built[cell.sampler] if cell.sampler else sampler_of(cell.particles, experiment.protocol)


def sampler_of(particles: int, protocol: Protocol) -> FeynmanKac:
    """Return a protocol's sampler; every field is given, so that no default of `FeynmanKac` decides a stored result."""
    if not protocol.corrected:
        return FeynmanKac.published(particles, protocol.steps, protocol.clip)
    return FeynmanKac(
        particles=particles, steps=protocol.steps, clip=protocol.clip, churn=protocol.churn,
        resampling=protocol.resampling, threshold=protocol.threshold, window=None, move=Balanced(), ancestry=False,
        grid=protocol.grid, integrator=protocol.integrator, quadrature=protocol.quadrature, start=protocol.start,
        kernels=(), pooled=False,
    )  # fmt: skip


def reference_of(cell: Cell, experiment: Experiment) -> Tensor | None:
    """Return the points that a cell is compared with: a file's, those of the protocol's reference, or None."""
    if experiment.points is not None:
        return experiment.points.tensor()
    if not is_compared(experiment):
        return None
    protocol = experiment.protocol
    return REFERENCES[protocol.reference](Wanted(
        cell.family, experiment.source, experiment.exponents(cell.target), cell.target != COMPOSITION,
        protocol.swarms, protocol.first_seed + cell.run, _seed(cell, protocol, "reference"),
    ))  # fmt: skip


def is_compared(experiment: Experiment) -> bool:
    """Whether any metric of an experiment needs a reference."""
    return any(needs_reference(metric_of(name, experiment)) for name in experiment.metrics)


def _seed(cell: Cell, protocol: Protocol, *purpose: object) -> int:
    """A seed that belongs to one cell and purpose."""
    place = (cell.family, cell.models, cell.train_size, cell.particles, cell.target)
    named = (cell.sampler,) if cell.sampler else ()
    return derive(protocol.first_seed + cell.run, *place, *named, *purpose)
