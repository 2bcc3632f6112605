"""Computing cells: train the models of an experiment together, then sample and measure each cell on its own.

A cell's random numbers come from its own coordinates and run seed: alone or in the sweep, on the same kind of device,
it is the same.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import polyscore
from polyscore.algebra import Composition, Family, base_composition
from polyscore.errors import ArgumentError, DegeneracyWarning, ScoreError
from polyscore.experiments.cells import ANALYTIC, COMPOSITION, Cell, Protocol
from polyscore.metrics import mmd2, sliced_wasserstein
from polyscore.paper.settings import setting
from polyscore.rng import derive
from polyscore.samplers import FeynmanKac, Run
from polyscore.samplers.moves import Balanced
from polyscore.schedules import Schedule
from polyscore.targets import Target, exact
from polyscore.training import Recipe, fit_many

Model = tuple[str, str, int, int]  # setting, models, train size, run

_LOW_ESS = 500


def model_of(cell: Cell) -> Model:
    """Return which trained model a cell needs."""
    return (cell.setting, cell.models, cell.train_size, cell.run)


def train(
    models: Sequence[Model],
    protocol: Protocol,
    device: str,
    progress: Callable[[int, int, float], None] | None = None,
) -> dict[Model, Family]:
    """Train models of one setting and kind as one program; analytic ones need none."""
    if not models:
        return {}
    name, kind = models[0][:2]
    if kind == ANALYTIC:
        return {model: setting(name) for model in models}
    families = fit_many(
        [training_data(model, protocol) for model in models],
        [derive(protocol.first_seed + run, "train", name, kind, size) for _, _, size, run in models],
        recipe=recipe_of(kind, protocol, setting(name).schedule), device=device, progress=progress or False,
    )  # fmt: skip
    return dict(zip(models, families, strict=True))


def recipe_of(kind: str, protocol: Protocol, schedule: Schedule) -> Recipe:
    """Return a protocol's training; every field is given, so that no default of `fit` decides a stored result."""
    return Recipe(
        model=kind, steps=protocol.train_steps, batch=protocol.batch, learning_rate=protocol.learning_rate,
        width=protocol.width, depth=protocol.depth, activation=protocol.activation, schedule=schedule,
        standardise=protocol.standardise, ema=protocol.ema,
    )  # fmt: skip


def training_data(model: Model, protocol: Protocol) -> dict[str, Tensor]:
    """Return a model's pools: `train_size` points per condition, drawn once from the run's seed."""
    name, _, size, run = model
    seed = protocol.first_seed + run
    return {
        condition: member.sample(size, seed=derive(seed, "data", name, condition, size))  # type: ignore[union-attr]
        for condition, member in setting(name).members.items()
    }


def compute(
    cell: Cell, family: Family, protocol: Protocol, device: str, keep: Callable[[Tensor], None] | None = None
) -> tuple[dict[str, float], dict[str, Any]]:
    """Sample one cell and measure it; returns its results and where they come from. `keep` is shown the samples."""
    started = time.perf_counter()
    family.to(precision=protocol.precision)
    run = sample(cell, family, protocol, device)
    if keep:
        keep(run.samples)
    reference = reference_of(cell, protocol).to(run.samples)
    seed = _seed(cell, protocol, "projections")
    results = {
        **_distances(run.samples, reference, protocol.projections, seed),
        "clipped": run.clipped_fraction,
        "ancestors": run.unique_ancestors.float().mean().item(),
        "ess": run.ess.float().mean().item(),
    }
    if not all(map(math.isfinite, results.values())):
        raise ScoreError(f"the results of a cell must be finite; got {results}. Use more steps, or a smaller clip.")
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
    about = {"version": polyscore.__version__, "torch": torch.__version__.split("+")[0], "device": name,
             "arithmetic": run.arithmetic, "strays": run.strays,
             "seconds": round(time.perf_counter() - started, 3)}  # fmt: skip
    return {key: float(f"{value:.6g}") for key, value in results.items()}, about


def _distances(samples: Tensor, reference: Tensor, projections: int, seed: int) -> dict[str, float]:
    try:
        return {"sw2": sliced_wasserstein(samples, reference, projections, seed), "mmd2": mmd2(samples, reference)}
    except ArgumentError as error:
        raise ScoreError(
            f"samples must be near enough to be measured; they reach {samples.abs().max().item():.3g} ({error}). "
            "Use more steps, a smaller learning_rate or clip."
        ) from error


def sample(cell: Cell, family: Family, protocol: Protocol, device: str) -> Run:
    """Run the protocol's sampler on one cell."""
    q = target_of(cell, family)
    with warnings.catch_warnings():
        # Out of distribution, collapse is what the table is about; it is recorded as `ess` and `ancestors`.
        warnings.simplefilter("ignore", DegeneracyWarning)
        return sampler_of(cell.particles, protocol).sample(
            q, protocol.swarms, _seed(cell, protocol, "sample"), device=device, history=True, progress=False
        )


def sampler_of(particles: int, protocol: Protocol) -> FeynmanKac:
    """Return a protocol's sampler; every field is given, so that no default of `FeynmanKac` decides a stored result."""
    if not protocol.corrected:
        return FeynmanKac.published(particles, protocol.steps, protocol.clip)
    return FeynmanKac(
        particles=particles, steps=protocol.steps, clip=protocol.clip, churn=protocol.churn,
        resampling=protocol.resampling, threshold=protocol.threshold, window=None, move=Balanced(), ancestry=False,
        grid=protocol.grid, integrator=protocol.integrator, quadrature=protocol.quadrature, start=protocol.start,
    )  # fmt: skip


def target_of(cell: Cell, family: Family) -> Composition:
    """Return what a cell samples: the base composition, or one condition alone."""
    return base_composition(family) if cell.target == COMPOSITION else family[cell.target]


def reference_of(cell: Cell, protocol: Protocol) -> Tensor:
    """Return the reference points of a cell, drawn from its own seed.

    An importance reference costs seconds, so the cells of a run share one; where its ESS is low it is drawn again.
    """
    method = _method(cell, protocol)
    if method == "product importance":
        return _shared_reference(cell.setting, protocol.first_seed + cell.run, protocol.swarms)
    return _target(cell.setting, cell.target, method).sample(protocol.swarms, _seed(cell, protocol, "reference"))


@lru_cache(maxsize=8)
def _target(name: str, target: str, method: str | None) -> Target:
    """The exact target of a setting: a grid costs a second, and serves every run."""
    family = setting(name)
    return exact(base_composition(family) if target == COMPOSITION else family[target], method)


@lru_cache(maxsize=64)
def _shared_reference(name: str, seed: int, count: int) -> Tensor:
    source = exact(base_composition(setting(name)), "product importance")
    for attempt in range(10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegeneracyWarning)
            points = source.sample(count, derive(seed, name, "reference", attempt))
        if source.ess >= _LOW_ESS:
            break
    return points


def _method(cell: Cell, protocol: Protocol) -> str | None:
    """The paper's references: closed form for Gaussians, rejection or importance for mixtures."""
    if protocol.reference == "exact" or not cell.setting.startswith("mixture"):
        return None
    if cell.target != COMPOSITION:
        return "rejection"
    return "rejection" if cell.setting.endswith("-id") else "product importance"


def _seed(cell: Cell, protocol: Protocol, *purpose: object) -> int:
    """A seed that belongs to one cell and purpose."""
    place = (cell.setting, cell.models, cell.train_size, cell.particles, cell.target)
    return derive(protocol.first_seed + cell.run, *place, *purpose)
