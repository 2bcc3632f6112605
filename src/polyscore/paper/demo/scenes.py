"""The two pictures of the demonstration: correction that repairs, and correction that fails; each with its sentence.

A sentence says what its numbers show and nothing else: where they do not show it, it does not claim it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import base_composition
from polyscore.experiments.experiment import Column, Experiment
from polyscore.experiments.store import Store
from polyscore.experiments.thumbnails import points_of
from polyscore.metrics import sliced_wasserstein
from polyscore.paper import pictures
from polyscore.paper.settings import setting
from polyscore.rng import derive
from polyscore.targets import exact

REPAIRED, HARMED = "gaussian-nonfactorized-ood", "gaussian-factorized-ood"
_SOURCES, _SHOWN = ("a1", "a2", "base"), 1500


@dataclass(frozen=True)
class Distances:
    """SW2 to the exact composition at K = 1 and at `particles`, and between two exact draws."""

    naive: float
    corrected: float
    exact: float
    particles: int

    @property
    def fails(self) -> bool:
        """Whether adding scores is clearly wrong: more than twice what chance alone makes."""
        return self.naive > 2 * self.exact

    @property
    def repaired(self) -> bool:
        """Whether adding scores fails and correction takes away three quarters of the excess or more."""
        return self.fails and self.corrected - self.exact < (self.naive - self.exact) / 4

    @property
    def harmed(self) -> bool:
        """Whether correction takes samples farther away, beyond what chance alone makes."""
        return self.corrected > 1.25 * self.naive and self.corrected > 1.5 * self.exact

    @property
    def verdict(self) -> str:
        """What these numbers show, as the beginning of a sentence."""
        if self.repaired:
            return "Adding scores fails here, and correction repairs it"
        if self.harmed:
            return "Correction fails here: it makes things worse"
        if not self.fails:
            return "Adding scores does not fail here, and correction changes little"
        if self.corrected < 0.8 * self.naive:
            return "Adding scores fails here, and correction repairs a part of it"
        return "Adding scores fails here, and correction changes little"

    def sentence(self) -> str:
        """Return the verdict and its numbers."""
        return (
            f"{self.verdict}. Distance to the exact composition (SW2): {self.naive:.2f} for the naive sampler, "
            f"{self.corrected:.2f} for the corrected one with K = {self.particles} particles; two exact draws are "
            f"{self.exact:.2f} apart."
        )


@dataclass(frozen=True)
class Scene:
    """A picture with its heading and what it shows."""

    heading: str
    sentence: str
    path: Path

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        return {"heading": self.heading, "sentence": self.sentence, "file": str(self.path)}


def draw(path: Path, name: str, samples: Sequence[Tensor], found: Distances, scores: str, seed: int) -> None:
    """Save sources, naive, corrected and exact samples of a setting, each with its distance."""
    family = setting(name)
    exactly = exact(base_composition(family)).sample(max(len(points) for points in samples), seed)
    sources = {key: family[key].distribution(key).sample(_SHOWN, seed) for key in _SOURCES}
    results = {
        f"naive (K = 1): SW2 {found.naive:.2f}": samples[0],
        f"Feynman–Kac (K = {found.particles}): SW2 {found.corrected:.2f}": samples[1],
        f"exact; two draws: SW2 {found.exact:.2f}": exactly,
    }
    level = torch.quantile(exactly.norm(dim=-1), 0.95).item()
    title = f"a1 · a2 / base, {scores}\ndashed: holds 95 % of the exact composition"
    pictures.composition(path, sources, results, level, title)


def thumbnails(experiment: Experiment, store: Store, column: Column, particles: Sequence[int]) -> list[Tensor]:
    """Return the points that a store keeps of run 0 at some K."""
    cells = [experiment.cell(k, column, 0) for k in particles]
    found = (points_of(store, cell, experiment.protocol_of(cell)) for cell in cells)
    return [points for points in found if points is not None]


def floor(experiment: Experiment) -> float:
    """Return SW2 between two exact draws, mean over the runs: what a perfect sampler would show."""
    protocol, target = experiment.protocol, exact(base_composition(setting(experiment.family)))

    def apart(seed: int) -> float:
        one, other = (target.sample(protocol.swarms, derive(seed, "floor", k)) for k in (0, 1))
        return sliced_wasserstein(one, other, protocol.projections, seed)

    return statistics.fmean(map(apart, range(protocol.first_seed, protocol.first_seed + experiment.runs)))
