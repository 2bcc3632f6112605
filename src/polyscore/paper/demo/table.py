"""The analytic columns of the four Gaussian settings: published, recomputed to the letter, and corrected."""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.algebra import Composition, base_composition
from polyscore.errors import DegeneracyWarning
from polyscore.metrics import sliced_wasserstein
from polyscore.paper import Published, published, setting
from polyscore.paper.published import RUNS
from polyscore.rng import derive
from polyscore.samplers import FeynmanKac
from polyscore.targets import Target, exact

GAUSSIANS = (
    "gaussian-factorized-id",
    "gaussian-nonfactorized-id",
    "gaussian-factorized-ood",
    "gaussian-nonfactorized-ood",
)


@dataclass(frozen=True)
class Sizes:
    """How much work the demonstration does: the paper's swarms and steps, with fewer runs.

    Attributes:
        steps: of the published sampler.
        runs: of every sampler, with seeds `seed`, `seed` + 1, ...
    """

    swarms: int = 5000
    steps: int = 500
    projections: int = 2000
    runs: int = 3
    particles: tuple[int, ...] = (1, 4, 16)
    diversity_swarms: int = 100

    @classmethod
    def quick(cls) -> Sizes:
        """Return sizes for a look at the output in a few seconds; the figures in it mean little."""
        return cls(swarms=256, steps=50, projections=100, runs=2, particles=(1, 4), diversity_swarms=16)


@dataclass(frozen=True)
class Cell:
    """One run in one setting of the published sampler, or of `FeynmanKac` with its defaults (`corrected`)."""

    setting: str
    particles: int
    seed: int
    corrected: bool


@dataclass(frozen=True)
class Row:
    """SW2 at one setting and K: published (`mean`, `std` over 30 runs), the paper's sampler here, and ours."""

    setting: str
    particles: int
    published: Published
    ours: float
    runs: int
    corrected: float

    @property
    def z(self) -> float:
        """(ours - published) / its standard error, both sides having the published spread."""
        variance = self.published.std**2 * RUNS / (RUNS - 1)
        return (self.ours - self.published.mean) / math.sqrt(variance * (1 / RUNS + 1 / self.runs))


def cells(sizes: Sizes, seed: int) -> list[Cell]:
    """Return all cells, the dearest first so that the last to finish is short."""
    choices = itertools.product(GAUSSIANS, sizes.particles, range(seed, seed + sizes.runs), (False, True))
    return sorted(itertools.starmap(Cell, choices), key=lambda cell: (cell.corrected, -cell.particles))


def compute(work: Iterable[Cell], sizes: Sizes, device: str | None) -> Iterator[tuple[Cell, float, Tensor]]:
    """Yield (cell, SW2, samples) as they finish: two workers of one thread beat one of two on small tensors."""
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(_compute, cell, sizes, device) for cell in work]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _compute(cell: Cell, sizes: Sizes, device: str | None) -> tuple[Cell, float, Tensor]:
    q = composed(cell.setting)
    sampler = FeynmanKac(cell.particles) if cell.corrected else FeynmanKac.published(cell.particles, sizes.steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)  # that few particles leave a bias is what the table shows
        run = sampler.sample(q, sizes.swarms, cell.seed, device=device)
    reference = exact(q).sample(sizes.swarms, seed=cell.seed)
    distance = sliced_wasserstein(run.samples, reference, projections=sizes.projections, seed=cell.seed)
    return cell, distance, run.samples


def composed(name: str) -> Composition:
    """Return a1 * a2 / base in a setting of the paper."""
    return base_composition(setting(name))


def rows(distances: dict[Cell, float], sizes: Sizes) -> list[Row]:
    """Return the table, settings in the paper's order."""
    return [_row(name, k, distances) for name in GAUSSIANS for k in sizes.particles]


def _row(name: str, particles: int, distances: dict[Cell, float]) -> Row:
    here = {cell: value for cell, value in distances.items() if (cell.setting, cell.particles) == (name, particles)}
    letter = [value for cell, value in here.items() if not cell.corrected]
    corrected = [value for cell, value in here.items() if cell.corrected]
    cell = published(name, particles=particles)
    return Row(name, particles, cell, statistics.fmean(letter), len(letter), statistics.fmean(corrected))


def floor(name: str, sizes: Sizes, seed: int) -> float:
    """Return SW2 between two exact draws, mean over the runs: what a perfect sampler would show."""
    return exact_distance(exact(composed(name)), sizes.swarms, sizes.projections, range(seed, seed + sizes.runs))


def exact_distance(target: Target, count: int, projections: int, seeds: Sequence[int]) -> float:
    """Return SW2 between two exact draws of `count` points, mean over `seeds`."""
    return statistics.fmean(_apart(target, count, projections, seed) for seed in seeds)


def _apart(target: Target, count: int, projections: int, seed: int) -> float:
    one, other = (target.sample(count, derive(seed, "floor", k)) for k in (0, 1))
    return sliced_wasserstein(one, other, projections, seed)
