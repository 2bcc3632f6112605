"""Langevin steps at one time of the grid, and the sampler that makes some at every time (Song & Ermon 2019).

With S the composed score, pi the path prod_a P_{a,t}^{w_a} of that time, and z standard normal, a step proposes

    y = x + h S(x) + sqrt(2 h) z,        h = size * (alpha^2 n^2 + sigma^2 / W+),

n being the narrowest deviation that the composition can have and W+ the sum of the positive exponents: where all
factors are Gaussians, no variance of the path is below that bracket. `ULA` takes y; `MALA` takes it with probability
min(1, pi(y) q(x|y) / pi(x) q(y|x)), particle by particle, and so leaves pi as it is (Du et al. 2023). Where a factor
has no density, log pi(y) - log pi(x) is the integral of <S, y - x> along the line from x to y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from polyscore.samplers.kernels import KERNELS, Kernel
from polyscore.samplers.plan import Plan
from polyscore.samplers.sampler import Sampler
from polyscore.samplers.step import State, evaluate, plus
from polyscore.schema import Checked, choice, count, flag, number, optional, setting

_REPEATS = count(1, 10_000)
_SIZE = number(0, 100, ends=False)
ENERGIES = ("auto", "density", "line")


@dataclass(frozen=True)
class Langevin(Checked, Kernel):
    """Langevin steps, one after the other.

    Args:
        repeats: how many at a time of the grid.
        size: of a step, in units of the least variance that the path can have there.
    """

    movable: ClassVar[bool] = True

    repeats: int = setting(1, _REPEATS)
    size: float = setting(0.1, _SIZE)

    @property
    def normals(self) -> int:  # type: ignore[override]
        """One for every step."""
        return self.repeats

    def length(self, plan: Plan, i: int | Tensor) -> float | Tensor:
        """Return h at time i."""
        now = plan.coefficients(i)
        positive = sum(w for w in plan.q.exponents.values() if w > 0)
        return self.size * (now.alpha**2 * plan.extent.narrowest**2 + now.sigma**2 / positive)


@KERNELS.register("ula")
@dataclass(frozen=True)
class ULA(Langevin):
    """Unadjusted Langevin: every proposal is taken, at one evaluation each.

    It settles beside the path, however many steps it makes: N(0, v) becomes N(0, v / (1 - h / 2v)), a variance too
    large by up to size / 2 of itself. Beyond size 2 it diverges.
    """

    def __call__(self, plan: Plan, state: State, i: int | Tensor, z: Tensor, u: Tensor) -> State:
        h = self.length(plan, i)
        for normal in z:
            state = evaluate(plan, state, proposal(state, normal, h), i)
        return state


@KERNELS.register("mala")
@dataclass(frozen=True)
class MALA(Langevin):
    """Metropolis-adjusted Langevin: the path of that time stays as it is, so weights and evidence keep their meaning.

    A proposal costs one evaluation by densities, 1 + `nodes` by the line. In d dimensions its h is size / d^(1/3) times
    the scale, which keeps the acceptance where it is in one.

    Args:
        repeats: proposals at a time of the grid.
        size: of a step; 1 accepts about seven of ten proposals where the path is as wide in all directions.
        energy: where differences of log pi come from: "density", the "line", or "auto", by densities where every factor
            has one. A CUDA graph can hold "line" alone.
        nodes: of the line between its two ends (Gauss-Lobatto): exact where S is a polynomial of degree 2 nodes + 1
            along it, so 0, the trapezoid, is exact for Gaussians.
    """

    size: float = setting(1.0, _SIZE)
    energy: str = setting("auto", choice(ENERGIES))
    nodes: int = setting(3, count(0, 64))

    @property
    def uniforms(self) -> int:  # type: ignore[override]
        """One for every proposal."""
        return self.repeats

    @property
    def proposals(self) -> int:  # type: ignore[override]
        """All of them."""
        return self.repeats

    @property
    def graphable(self) -> bool:  # type: ignore[override]
        """Densities are asked whether they are numbers, which the host decides."""
        return self.energy == "line"

    def length(self, plan: Plan, i: int | Tensor) -> float | Tensor:
        """Return h at time i, smaller in many dimensions (Roberts & Rosenthal 1998)."""
        return super().length(plan, i) / math.prod(plan.event) ** (1 / 3)

    def __call__(self, plan: Plan, state: State, i: int | Tensor, z: Tensor, u: Tensor) -> State:
        h = self.length(plan, i)
        for normal, uniform in zip(z, u, strict=True):
            new = evaluate(plan, state, proposal(state, normal, h), i)
            log_ratio = self.rise(plan, state, new, i) + log_asymmetry(normal, state.score, new.score, h)
            # Of what is no number, nothing is accepted.
            accepted = uniform.log() < log_ratio
            share = accepted.to(state.accepted).mean()
            state = replace(chosen(accepted, new, state), accepted=state.accepted + share)
        return state

    def rise(self, plan: Plan, state: State, new: State, i: int | Tensor) -> Tensor:
        """Return log pi at the new points less that at the old ones, `(N, K)`."""
        if self.energy == "line" or (self.energy == "auto" and not plan.q.has_density):
            return line_integral(plan, state, new, i, self.nodes)
        now = plan.coefficients(i)
        before, after = (plan.q.standard_log_density(x, now.alpha, now.sigma) for x in (state.x, new.x))
        return after - before


def proposal(state: State, z: Tensor, h: float | Tensor) -> Tensor:
    """Return x + h S + sqrt(2 h) z."""
    return plus(plus(state.x, state.score, h), z, (2 * h) ** 0.5)


def log_asymmetry(z: Tensor, before: Tensor, after: Tensor, h: float | Tensor) -> Tensor:
    """Return log q(x|y) - log q(y|x), `(N, K)`, with q(y|x) = N(y; x + h S(x), 2 h I).

    The way there is sqrt(2 h) z, that back -sqrt(2 h) (z + c) with c = sqrt(h / 2) (S(x) + S(y)), so it is
    |z|^2 / 2 - |z + c|^2 / 2 = -<z + c / 2, c>, without the difference of two large numbers.
    """
    c = (before + after) * (0.5 * h) ** 0.5
    return -((z + 0.5 * c) * c).flatten(2).sum(-1)


def line_integral(plan: Plan, state: State, new: State, i: int | Tensor, nodes: int) -> Tensor:
    """Return the integral of <S, dx> from the old points to the new ones, `(N, K)`, by Gauss-Lobatto quadrature."""
    way = new.x - state.x
    end, inner = lobatto(nodes)
    total = end * (state.score + new.score)
    for place, weight in inner:
        score, _ = plan.field(plus(state.x, way, place), i, want_excess=False)
        total = plus(total, score, weight)
    return (total * way).flatten(2).sum(-1)


@lru_cache(maxsize=8)
def lobatto(nodes: int) -> tuple[float, tuple[tuple[float, float], ...]]:
    """Return the weight of either end of [0, 1], and (place, weight) of so many nodes between them."""
    last = nodes + 1
    legendre = np.polynomial.Legendre.basis(last)
    places = np.sort(legendre.deriv().roots().real)
    weights = 1 / (last * (last + 1) * legendre(places) ** 2)
    return 1 / (last * (last + 1)), tuple(zip((0.5 + 0.5 * places).tolist(), weights.tolist(), strict=True))


def chosen(accepted: Tensor, new: State, old: State) -> State:
    """Return the new points where they are accepted `(N, K)`, the old ones elsewhere; a rejected one alarms nobody."""
    wide = accepted.view(*accepted.shape, *[1] * (old.x.ndim - 2))
    score, rate = torch.where(wide, new.score, old.score), torch.where(accepted, new.rate, old.rate)
    alarm = old.alarm + 0 * score.sum() + (0 * rate.sum()).to(old.alarm)
    return replace(new, x=torch.where(wide, new.x, old.x), score=score, rate=rate, alarm=alarm)


@dataclass(frozen=True, repr=False)
class AnnealedLangevin(Sampler):
    """Denoise, with Langevin steps at every noise level that bring particles back to the path of that level.

    The target is prod_a P_a^{w_a} itself, without weights: exact where levels are many and steps enough to settle at
    each, which wide targets with narrow parts need many of. Modes that no level's steps can join keep the shares in
    which denoising left them: there `FeynmanKac(kernels=("mala",))` weighs them.

    Args:
        steps: noise levels.
        repeats: Langevin steps at each.
        adjusted: accept or reject every one of them (`MALA`), or take all (`ULA`).
        size: of a step; by default 1 adjusted and 0.1 unadjusted, see there.
        churn, move, grid, integrator, start: of the step from one level to the next, as in `Sampler`.
    """

    repeats: int = setting(5, _REPEATS)
    adjusted: bool = setting(True, flag())
    size: float | None = setting(None, optional(_SIZE))
    kernels: tuple[Kernel, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = MALA if self.adjusted else ULA
        kernel = kind(self.repeats) if self.size is None else kind(self.repeats, self.size)
        object.__setattr__(self, "kernels", (kernel,))

    @property
    def tabular(self) -> bool:
        """Langevin steps mend what a coarse step leaves."""
        return False
