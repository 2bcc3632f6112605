"""How particles move and what their log-weights gain: tables of scalars, one row a step.

With z standard normal, S the composed score, X = of_x * x + of_score * S the composed clean point, X_ that of the step
before, and `excess` = |S|^2 - sum w |s_a|^2, every move here reads

    x' = keep * x + pull * S + back * X_ + noise * z,        g = constant + along * <x, S> + across * excess.

`Balanced` is the rule of this library, b = -W u + (eta^2 + nu^2) S / 2 with nu = churn * eta; `Unbalanced` has
b = -u + ..., which needs a divergence term (constant in x) and degenerates for W > 1; `Flipped` is `Unbalanced` with
that term's sign reversed, and the start N(0, I) whatever W is. Another rule is another subclass of `Move`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.registry import Registry
from polyscore.samplers.grids import TimeGrid
from polyscore.schedules import Schedule


class Steps(NamedTuple):
    """Per step, `(steps,)`, float64: the coefficients of x, S, z and the last X; then those of x and S in the new X."""

    keep: Tensor
    pull: Tensor
    noise: Tensor
    back: Tensor
    of_x: Tensor
    of_score: Tensor


class Rates(NamedTuple):
    """Per grid time, `(steps + 1,)`, float64: the coefficients of g."""

    constant: Tensor
    along: Tensor
    across: Tensor


# An integrator makes the table of a move: (schedule, grid, W, churn, move) -> Steps.
Integrator = Callable[[Schedule, TimeGrid, float, float, "Move"], Steps]


class Move(ABC):
    """A rule by which particles move from one time to the next, and the log-weight rate that belongs to it.

    Here b = -linear(W) u + (eta^2 + nu^2) S / 2, which an integrator turns into steps; a move of another form gives its
    own table, by overriding `steps`.
    """

    @abstractmethod
    def linear(self, total: float) -> float:
        """Multiple of -u in the move, for W = `total`; W itself where pure noise N(0, I/W) shall stay at rest."""

    @abstractmethod
    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """Return the coefficients of g at times `(steps + 1,)`; what carries no weights does not ask."""

    def noising(self, total: float) -> float:
        """Multiple of u in the noising, with noise eta, whose reverse the move is at churn 1."""
        return self.linear(total)

    def start_variance(self, total: float) -> float:
        """Variance of the start, in units of sigma(1)^2."""
        return 1 / total

    def steps(self, schedule: Schedule, grid: TimeGrid, total: float, churn: float, integrator: Integrator) -> Steps:
        """Return the table of a run; `integrator` is the sampler's."""
        return integrator(schedule, grid, total, churn, self)


@dataclass(frozen=True)
class Balanced(Move):
    """b = -W u + (eta^2 + nu^2) S / 2: pure noise N(0, I/W) stays at rest, and no divergence appears."""

    def linear(self, total: float) -> float:
        """W."""
        return total

    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """g = (1 - W) <u, S> + (eta^2 / 2) excess."""
        drift = schedule.drift(times)
        return Rates(torch.zeros_like(times), (1 - total) * drift, 0.5 * schedule.diffusion(times) ** 2)


@dataclass(frozen=True)
class AsOne(Balanced):
    """The move of a single condition, W = 1, whatever the exponents say: for scores that belong to one density."""

    def start_variance(self, total: float) -> float:
        """1, that of noise."""
        return 1.0

    def steps(self, schedule: Schedule, grid: TimeGrid, total: float, churn: float, integrator: Integrator) -> Steps:
        """Return the integrator's table at W = 1."""
        return integrator(schedule, grid, 1.0, churn, self)


@dataclass(frozen=True)
class Neighbouring(Balanced):
    """The move of a single condition under noise sigma / sqrt(W), for a field that gives g itself as its excess."""

    def steps(self, schedule: Schedule, grid: TimeGrid, total: float, churn: float, integrator: Integrator) -> Steps:
        """Return the table at W = 1 of sqrt(W) x, whose noise is sigma, written in x and its own score."""
        table = integrator(schedule, grid, 1.0, churn, self)
        narrower = {name: getattr(table, name) / total for name in ("pull", "of_score")}
        return table._replace(**narrower, noise=table.noise / total**0.5)

    def noising(self, total: float) -> float:
        """1: of noise eta at W = 1 alone."""
        return 1.0

    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """g is the excess."""
        none = torch.zeros_like(times)
        return Rates(none, none, torch.ones_like(times))


@dataclass(frozen=True)
class Unbalanced(Move):
    """b = -u + (eta^2 + nu^2) S / 2, with g = (W - 1) div u + (eta^2 / 2) excess."""

    def linear(self, total: float) -> float:
        """1 whatever W is."""
        return 1.0

    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """The divergence of u is dim * drift, the same for all particles."""
        constant = (total - 1) * dim * schedule.drift(times)
        return Rates(constant, torch.zeros_like(times), 0.5 * schedule.diffusion(times) ** 2)


@dataclass(frozen=True)
class Flipped(Unbalanced):
    """The divergence with its sign reversed, and the start N(0, I) for every W; at W = 1 it is `Unbalanced`."""

    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """`Unbalanced` with -(W - 1) div u."""
        rates = super().rates(schedule, times, total, dim)
        return rates._replace(constant=-rates.constant)

    def start_variance(self, total: float) -> float:
        """1 whatever W is."""
        return 1.0


MOVES: Registry[type[Move]] = Registry("move", {"balanced": Balanced, "unbalanced": Unbalanced, "flipped": Flipped})
