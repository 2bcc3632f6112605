"""What is the same for every chunk of a run: settings, tables of scalars, the prepared field, how to draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import ArgumentError, require
from polyscore.fields import Field, prepare, row
from polyscore.rng import Stream, block_size
from polyscore.samplers.checks import check_end, warn_of_coarse_steps, warn_of_rounding, warn_of_signal
from polyscore.samplers.grids import GRIDS, Extent, TimeGrid, extent_of
from polyscore.samplers.moves import (
    QUADRATURES,
    Balanced,
    Move,
    Quadrature,
    Rates,
    Steps,
    euler_steps,
    frozen_steps,
    multistep_steps,
)
from polyscore.samplers.starts import STARTS, Start, pooled
from polyscore.smc import Resampler


@dataclass(frozen=True)
class Settings:
    """Everything about a sampler that the loop needs; `Denoise` and `FeynmanKac` are two ways to fill it.

    Attributes:
        clip: bound on |g|, or None.
        threshold: resample a swarm when its ESS is at most this share of K; 1 means after every step.
        window: (low, high) times between which resampling happens, or None for all.
        resampler: None carries no weights at all.
        ancestry: keep every step's parents.
        grid, integrator, quadrature, start: as in `FeynmanKac`.
    """

    particles: int
    steps: int
    churn: float
    order: int
    move: Move
    resampler: Resampler | None
    clip: float | None = None
    threshold: float = 1.0
    window: tuple[float, float] | None = None
    ancestry: bool = False
    grid: str = "snr"
    integrator: str = "multistep"
    quadrature: str = "noise"
    start: str = "matched"

    @property
    def carries(self) -> bool:
        """Whether a swarm may keep its weights over a step."""
        return self.threshold < 1 or self.window is not None


class Coefficients(NamedTuple):
    """The scalars of one step: numbers, or 0-dimensional device tensors inside a CUDA graph."""

    keep: float | Tensor
    pull: float | Tensor
    noise: float | Tensor
    back: float | Tensor
    of_x: float | Tensor
    of_score: float | Tensor
    left: float | Tensor
    right: float | Tensor
    constant: float | Tensor
    along: float | Tensor
    across: float | Tensor


@dataclass(frozen=True)
class Plan:
    """A run before its first random number."""

    q: Composition
    settings: Settings
    grid: TimeGrid
    steps: Steps
    quadrature: Quadrature
    rates: Rates
    start: Start
    field: Field
    seed: int
    like: Tensor
    history: bool = True  # keep the ESS of every step and swarm

    @property
    def times(self) -> Tensor:
        """The grid's times, `(steps + 1,)`."""
        return self.grid.times

    @cached_property
    def last_signal(self) -> float:
        """alpha at the last time, by which points are divided at the end: parts may be wide against the last noise.

        Equal times end at 0 in all but name, and hand out what they have.
        """
        return 1.0 if self.settings.grid == "equal" else self.q.schedule.alpha(self.times[-1]).item()

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one point."""
        return self.q.event

    @property
    def block(self) -> int:
        """Swarms per generator."""
        return block_size(self.settings.particles * math.prod(self.event))

    @cached_property
    def _table(self) -> Tensor:
        """All scalars, `(steps + 1, 11)`; row i holds the move from time i and the rates at time i."""
        moves = [torch.cat([column, column[-1:]]) for column in (*self.steps, *self.quadrature)]
        return torch.stack([*moves, *self.rates], dim=-1)

    @cached_property
    def _rows(self) -> list[list[float]]:
        return self._table.tolist()

    @cached_property
    def _device_table(self) -> Tensor:
        return self._table.to(self.like)

    def coefficients(self, i: int | Tensor) -> Coefficients:
        """Return the scalars of row i; a device index gives device scalars."""
        if isinstance(i, int):
            return Coefficients(*self._rows[i])
        return Coefficients(*row(self._device_table, i).unbind())

    @cached_property
    def looks_back(self) -> bool:
        """Whether a step uses the clean point of the step before."""
        return bool(self.steps.back.any())

    @cached_property
    def looks_left(self) -> bool:
        """Whether the rate at a step's beginning counts."""
        return bool(self.quadrature.left.any())

    @cached_property
    def has_constant(self) -> bool:
        """Whether the rate has a term that is the same for all particles."""
        return bool(self.rates.constant.any())

    @cached_property
    def has_along(self) -> bool:
        """Whether the rate has a term in <x, S>."""
        return bool(self.rates.along.any())

    def stream(self, purpose: str, shape: tuple[int, ...], start: int, stop: int, normal: bool) -> Stream:
        """Return the stream of a purpose for swarms start..stop."""
        return Stream(
            self.seed, purpose, shape, start, stop,
            block=self.block, normal=normal, dtype=self.like.dtype, device=self.like.device,
        )  # fmt: skip


def make_plan(q: Composition, settings: Settings, seed: int, like: Tensor, history: bool = True) -> Plan:
    """Check that `q` can be sampled, and precompute what depends on time alone."""
    if not q.exponents:
        raise ArgumentError("a composition must have a factor; got exponents that all cancel.")
    largest = max(q.exponents.values(), key=abs)
    require(abs(largest) <= 1e6, "exponents", "be at most 10^6 in size to be sampled", largest)
    require(q.total > 0, "W, the sum of the exponents,", "be positive", f"{q.total:g}",
            "The path starts from N(0, I)^W, which must be normalisable: raise the positive exponents.")  # fmt: skip
    q.validity().settle(repr(q))
    check_end(q, settings.move)
    extent, schedule, total = extent_of(q), q.schedule, q.total
    grid = GRIDS[settings.grid](schedule, settings.steps, extent)
    begin = STARTS[settings.start](q, settings.move, grid.times[0])
    if settings.start == "matched" and q.has_density and not begin.exact:
        begin = pooled(q, begin, grid.times[0], seed)
    warn_of_signal(q, extent, grid.times[0], begin)
    warn_of_rounding(extent, like.dtype)
    if settings.order == 1:  # Heun's steps are no table, and its error is of second order
        warn_of_coarse_steps(schedule, extent, settings, lambda steps: _uncomposed(q, settings, steps, extent))
    steps = _steps(q, settings, grid, total)
    quadrature = QUADRATURES[settings.quadrature](schedule, grid, extent)
    rates = settings.move.rates(schedule, grid.times, total, math.prod(q.event))
    return Plan(q, settings, grid, steps, quadrature, rates, begin, prepare(q, grid.times, like), seed, like, history)


def _integrator(q: Composition, settings: Settings) -> str:
    """Return the one that serves: Euler cannot start where alpha(1) = 0, nor others take Heun or the paper's move."""
    if q.schedule.ends_in_pure_noise:
        return "frozen" if settings.integrator == "euler" else settings.integrator
    balanced = q.total == 1 or isinstance(settings.move, Balanced)
    return settings.integrator if balanced and settings.order == 1 else "euler"


def _steps(q: Composition, settings: Settings, grid: TimeGrid, total: float) -> Steps:
    """Return the integrator's table for a composition of this W."""
    name = _integrator(q, settings)
    if name == "euler":
        return euler_steps(q.schedule, grid, total, settings.churn, settings.move)
    build = multistep_steps if name == "multistep" else frozen_steps
    return build(q.schedule, grid.times, total, settings.churn)


def _uncomposed(q: Composition, settings: Settings, steps: int, extent: Extent) -> tuple[Tensor, Steps]:
    """Return times and table of a run of one condition by itself, by the steps that the run takes."""
    grid = GRIDS[settings.grid](q.schedule, steps, extent)
    return grid.times, _steps(q, settings, grid, 1.0)
