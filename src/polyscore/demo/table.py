"""The analytic columns of the four Gaussian settings: published, recomputed to the letter, and corrected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.algebra import Composition, base_composition
from polyscore.experiments.papers import Published, published, setting
from polyscore.experiments.papers.published import RUNS
from polyscore.metrics import sliced_wasserstein
from polyscore.samplers import FeynmanKac
from polyscore.targets import exact

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
        runs: of the published sampler, with seeds `seed`, `seed` + 1, ...
        corrected_runs: of the sampler without clip, with the first of these seeds.
    """

    swarms: int = 5000
    steps: int = 500
    projections: int = 2000
    runs: int = 3
    corrected_runs: int = 1
    particles: tuple[int, ...] = (1, 4, 16)
    diversity_swarms: int = 100

    @classmethod
    def quick(cls) -> Sizes:
        """Return sizes for a look at the output in a few seconds; the figures in it mean little."""
        return cls(
            swarms=256, steps=50, projections=100, runs=2, corrected_runs=1, particles=(1, 4), diversity_swarms=16
        )


@dataclass(frozen=True)
class Cell:
    """One run of one sampler in one setting."""

    setting: str
    particles: int
    seed: int
    corrected: bool


@dataclass(frozen=True)
class Row:
    """SW2 at one setting and K: published (`mean`, `std` over 30 runs), ours over a few runs, and corrected."""

    setting: str
    particles: int
    published: Published
    ours: float
    runs: int
    corrected: float
    corrected_runs: int

    @property
    def z(self) -> float:
        """(ours - published) / its standard error, both sides having the published spread."""
        variance = self.published.std**2 * RUNS / (RUNS - 1)
        return (self.ours - self.published.mean) / math.sqrt(variance * (1 / RUNS + 1 / self.runs))


def cells(sizes: Sizes, seed: int) -> list[Cell]:
    """Return all cells, the dearest first so that the last to finish is short.

    With W = 1 and K = 1 both samplers are plain denoising, the same numbers; that cell is computed once.
    """
    grid = [(name, k) for k in sorted(sizes.particles, reverse=True) for name in GAUSSIANS]
    letter = [Cell(name, k, seed + r, False) for name, k in grid for r in range(sizes.runs)]
    corrected = [Cell(name, k, seed + r, True) for name, k in grid if k > 1 for r in range(sizes.corrected_runs)]
    return sorted(letter + corrected, key=lambda cell: -cell.particles)


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
    make: Callable[..., FeynmanKac] = FeynmanKac if cell.corrected else FeynmanKac.published
    run = make(particles=cell.particles, steps=sizes.steps).sample(q, sizes.swarms, cell.seed, device=device)
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
    corrected = [value for cell, value in here.items() if cell.corrected] or letter
    cell = published(name, particles=particles)
    means = statistics.fmean(letter), len(letter), statistics.fmean(corrected), len(corrected)
    return Row(name, particles, cell, *means)
