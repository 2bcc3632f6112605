"""What is the same for every chunk of a run: settings, tables of scalars, the prepared field, how to draw."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions.components import components_of
from polyscore.errors import ArgumentError, DegeneracyWarning, require
from polyscore.fields import Field, prepare, row
from polyscore.rng import Stream, block_size
from polyscore.samplers.moves import Balanced, Move, Rates, Steps, euler_steps, exact_linear_steps, time_grid
from polyscore.schedules import T_MIN
from polyscore.smc import Resampler


@dataclass(frozen=True)
class Settings:
    """Everything about a sampler that the loop needs; `Denoise` and `FeynmanKac` are two ways to fill it.

    Attributes:
        clip: bound on |g|, or None.
        threshold: resample a swarm when its ESS is at most this share of K; 1 means after every step.
        window: (low, high) times between which resampling happens, or None for all.
        trapezoid: integrate g by both ends of the step, else by its right end.
        resampler: None carries no weights at all.
        ancestry: keep every step's parents.
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
    trapezoid: bool = True
    ancestry: bool = False


class Coefficients(NamedTuple):
    """The scalars of one step: numbers, or 0-dimensional device tensors inside a CUDA graph."""

    keep: float | Tensor
    pull: float | Tensor
    noise: float | Tensor
    length: float | Tensor
    constant: float | Tensor
    along: float | Tensor
    across: float | Tensor


@dataclass(frozen=True)
class Plan:
    """A run before its first random number."""

    q: Composition
    settings: Settings
    times: Tensor
    steps: Steps
    rates: Rates
    field: Field
    seed: int
    like: Tensor

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
        """All scalars, `(steps + 1, 7)`; row i holds the move from time i and the rates at time i."""
        moves = [torch.cat([column, column[-1:]]) for column in self.steps]
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


def make_plan(q: Composition, settings: Settings, seed: int, like: Tensor) -> Plan:
    """Check that `q` can be sampled, and precompute what depends on time alone."""
    if not q.exponents:
        raise ArgumentError("a composition must have a factor; got exponents that all cancel.")
    require(q.total > 0, "W, the sum of the exponents,", "be positive", f"{q.total:g}",
            "The path starts from N(0, I)^W, which must be normalisable: raise the positive exponents.")  # fmt: skip
    q.validity().settle(repr(q))
    times = time_grid(settings.steps, q.schedule.ends_in_pure_noise)
    _check_end(q, settings)
    _check_resolution(q, times)
    if q.schedule.ends_in_pure_noise:
        steps = exact_linear_steps(q.schedule, times, q.total, settings.churn)
    else:
        steps = euler_steps(q.schedule, times, q.total, settings.churn, settings.move)
    rates = settings.move.rates(q.schedule, times, q.total, math.prod(q.event))
    return Plan(q, settings, times, steps, rates, prepare(q, times, like), seed, like)


def _check_end(q: Composition, settings: Settings) -> None:
    """Check that the schedule's noise end suits the sampler."""
    if q.schedule.ends_in_pure_noise:
        require(q.total == 1 or isinstance(settings.move, Balanced), "a schedule with alpha(1) = 0",
                "go with the balanced move when W is not 1", f"{settings.move} and W = {q.total:g}",
                "Leave move= at its default.")  # fmt: skip
        return
    signal = q.schedule.alpha(torch.ones((), dtype=torch.float64)).item()
    size = _size(q) if q.is_closed_form else 10.0
    if signal * size > 0.5:
        warnings.warn(
            f"the schedule should end in noise; {q.schedule} leaves alpha(1) = {signal:.3g} of the signal, and so "
            f"{signal * size:.2g} of data of size {size:.3g}, which the start N(0, I/W) ignores. Standardise the data, "
            "or raise the schedule's last beta.",
            DegeneracyWarning,
            stacklevel=6,
        )


def _check_resolution(q: Composition, times: Tensor) -> None:
    """Warn where the last step begins with more noise than the narrowest part of the target is wide."""
    if not q.is_closed_form:
        return
    steps, narrowest = len(times) - 1, _narrowest(q)
    noise = q.schedule.sigma(times[-2]).item()
    if noise <= narrowest:
        return
    enough, time = steps, times[-2]
    while q.schedule.sigma(time).item() > narrowest / 2 and time > T_MIN:
        enough, time = 2 * enough, time / 2
    warnings.warn(
        f"the last step should begin with less noise than the target's narrowest part is wide, {narrowest:.2g}; the "
        f"last of {steps} begins with {noise:.2g}, so that what is narrower comes out too wide. Use steps={enough} or "
        "more, or stretch the data.",
        DegeneracyWarning,
        stacklevel=6,
    )


def _narrowest(q: Composition) -> float:
    """Return the smallest deviation that the composition can have: all narrowest components in one place."""
    precisions = [w / components_of(q.distribution(name)).variances.min() for name, w in q.exponents.items() if w > 0]
    return float(sum(precisions)) ** -0.5


def _size(q: Composition) -> float:
    """Return the largest |mean| or deviation of any component."""
    parts = [components_of(q.distribution(name)) for name in q.conditions]
    return max(max(part.means.abs().max().item(), part.variances.max().sqrt().item()) for part in parts)
