"""What is the same for every chunk of a run: the sampler, tables of scalars, the prepared field, how to draw."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.fields import Field, row
from polyscore.rng import Stream, block_size
from polyscore.samplers.answers import called, check_columns, checked_grid
from polyscore.samplers.discrete import by_steps, noising
from polyscore.samplers.grids import GRIDS, Extent, TimeGrid, extent_of
from polyscore.samplers.integrators import INTEGRATORS, euler_steps, frozen_steps, multistep_steps
from polyscore.samplers.moves import Integrator, Rates, Steps
from polyscore.samplers.parts import found
from polyscore.samplers.quadratures import QUADRATURES, Quadrature
from polyscore.samplers.starts import STARTS, Start
from polyscore.smc import Resampler, resampler

if TYPE_CHECKING:
    from polyscore.samplers.sampler import Sampler


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
    alpha: float | Tensor
    sigma: float | Tensor


@dataclass(frozen=True)
class Plan:
    """A run before its first random number.

    Attributes:
        clock: the times and the lengths of the steps.
        scalars: of every step, `(steps + 1, 13)`, float64: row i holds the move from time i and the rates at time i.
        origin: where particles start.
        field: the composed score on these times.
        like: an empty tensor of the run's dtype, on its device.
        history: keep the ESS of every step and swarm.
        tables: a sampler's own, by name, `(steps + 1, ...)` on the device; see `Sampler.tables`.
    """

    q: Composition
    sampler: Sampler
    extent: Extent
    clock: TimeGrid
    scalars: Tensor
    origin: Start
    field: Field
    seed: int
    like: Tensor
    history: bool = True
    tables: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def times(self) -> Tensor:
        """The grid's times, `(steps + 1,)`, from noise to data."""
        return self.clock.times

    @property
    def steps(self) -> int:
        """How many steps there are: the grid decides."""
        return len(self.clock.lengths)

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one point."""
        return self.q.event

    @property
    def block(self) -> int:
        """Swarms per generator."""
        return block_size(self.sampler.particles * math.prod(self.event))

    @property
    def graphable(self) -> bool:
        """Whether a step can be captured into a CUDA graph: a GPU, no host decisions inside."""
        return self.like.is_cuda and self.field.graphable and self.sampler.graphable

    @cached_property
    def scheme(self) -> Resampler | None:
        """How swarms are resampled; None carries no weights at all."""
        return None if self.sampler.resampling is None else resampler(self.sampler.resampling)

    @cached_property
    def by_steps(self) -> bool:
        """Whether weights are those of the discrete steps, not of a rate."""
        return by_steps(self.sampler)

    @cached_property
    def noising(self) -> list[tuple[float, float]]:
        """Factor and variance of the noising over every step; asked where weights are those of the steps."""
        return noising(self.q, self.clock)

    @cached_property
    def last_signal(self) -> float:
        """alpha at the last time, by which points are divided at the end: parts may be wide against the last noise."""
        return 1.0 if self.clock.to_data else self.q.schedule.alpha(self.times[-1]).item()

    @cached_property
    def _rows(self) -> list[list[float]]:
        return self.scalars.tolist()

    @cached_property
    def _device_scalars(self) -> Tensor:
        return self.scalars.to(self.like)

    def coefficients(self, i: int | Tensor) -> Coefficients:
        """Return the scalars of row i; a device index gives device scalars."""
        if isinstance(i, int):
            return Coefficients(*self._rows[i])
        return Coefficients(*row(self._device_scalars, i).unbind())

    @cached_property
    def used(self) -> frozenset[str]:
        """The coefficients that are not zero throughout: what the others would multiply need not be computed."""
        columns = zip(Coefficients._fields, self.scalars.any(0).tolist(), strict=True)
        return frozenset(name for name, counts in columns if counts)

    @cached_property
    def ends_alike(self) -> bool:
        """Whether both ends of every step count alike."""
        return torch.equal(*(self.scalars[:, Coefficients._fields.index(end)] for end in ("left", "right")))

    def stream(
        self, purpose: str, shape: tuple[int, ...], start: int, stop: int, normal: bool, steps: int | None = None
    ) -> Stream:
        """Return the stream of a purpose for swarms start..stop, for all steps unless for fewer."""
        return Stream(
            self.seed, purpose, shape, start, stop, steps=steps or self.steps,
            block=self.block, normal=normal, dtype=self.like.dtype, device=self.like.device,
        )  # fmt: skip


def make_plan(q: Composition, sampler: Sampler, seed: int, like: Tensor, history: bool = True) -> Plan:
    """Precompute what depends on time alone; `checks.before` is who asks whether `q` can be sampled."""
    extent = extent_of(q)
    clock = clock_of(q, sampler, sampler.steps, extent)
    times = clock.times
    origin = found(STARTS, sampler.start)(q, sampler.move, times[0], seed)
    scalars = scalars_of(q, sampler, clock, extent)
    prepared, tables = sampler.prepare(q, times, like), sampler.tables(q, times, like)
    return Plan(q, sampler, extent, clock, scalars, origin, prepared, seed, like, history, tables)


def scalars_of(q: Composition, sampler: Sampler, clock: TimeGrid, extent: Extent) -> Tensor:
    """Return the scalars of every step on a sampler's times."""
    schedule, times = q.schedule, clock.times
    quadrature = found(QUADRATURES, sampler.quadrature)(schedule, clock, extent)
    check_columns(called("quadrature", sampler.quadrature), quadrature, Quadrature._fields, len(clock.lengths))
    moves = [torch.cat([column, column[-1:]]) for column in (*steps_of(q, sampler, clock, q.total), *quadrature)]
    rates = sampler.move.rates(schedule, times, q.total, math.prod(q.event))
    check_columns(f"the rates of {called('move', sampler.move)}", rates, Rates._fields, len(times))
    alpha = schedule.alpha(times)
    rates = Rates(*(torch.where(alpha == 0, 0.0, column) for column in rates))  # pure noise stays at rest
    return torch.stack([*moves, *rates, alpha, schedule.sigma(times)], dim=-1)


def steps_of(q: Composition, sampler: Sampler, clock: TimeGrid, total: float) -> Steps:
    """Return the move's table for a composition of this W, by the integrator that serves `q`."""
    integrator = _integrator(q, sampler)
    table = sampler.move.steps(q.schedule, clock, total, sampler.churn, integrator)
    subject = f"the steps of {called('move', sampler.move)} by {called('integrator', integrator)}"
    check_columns(subject, table, Steps._fields, len(clock.lengths), least=("noise",))
    return table


def clock_of(q: Composition, sampler: Sampler, steps: int, extent: Extent) -> TimeGrid:
    """Return the sampler's times for so many steps."""
    grid = found(GRIDS, sampler.grid)
    return checked_grid(called("grid", sampler.grid), grid(q.schedule, steps, extent))


def _integrator(q: Composition, sampler: Sampler) -> Integrator:
    """Return the one that serves: Euler cannot start where alpha(1) = 0, nor others take Heun or an unbalanced move.

    The line through two clean points has no meaning where a kernel has moved the particle between them.
    """
    chosen: Integrator = found(INTEGRATORS, sampler.integrator)
    if chosen is multistep_steps and sampler.kernels:
        chosen = frozen_steps
    if q.schedule.ends_in_pure_noise:
        return frozen_steps if chosen is euler_steps else chosen
    balanced = sampler.move.linear(q.total) == q.total or chosen not in (multistep_steps, frozen_steps)
    return chosen if balanced and sampler.order == 1 else euler_steps
