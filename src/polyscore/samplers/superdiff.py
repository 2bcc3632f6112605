"""SuperDiff (Skreta et al. 2024): conditions superposed by their densities along the path. No products of powers.

A particle moves by one mixed score, sum_a k_a s_a with sum_a k_a = 1, as if that were a single condition's, and carries
log q_a of every condition. Under the reverse SDE (churn 1) these grow by Ito's formula without a divergence of s_a,

    d log q_a = <dx, s_a> + [div u + <u - (eta^2 / 2) s_a, s_a>] dtau.

Over a step x' = keep x + pull (sum_a k_a s_a) + noise z that is the ratio of two Gaussian kernels, the reverse one that
condition a would have taken and the noising one that leads back, log N(x'; keep x + pull s_a, noise^2 I)
- log N(x; r x', (sigma^2 - r^2 sigma'^2) I) with r = alpha / alpha': the same as steps shrink, exact for a point.

OR mixes by k = softmax(log q_a + log w_a), the score of the mixture. AND chooses k such that all log q_a become equal.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import PolyscoreWarning, require
from polyscore.fields import Field
from polyscore.fields.each import EachField, ask_each
from polyscore.notices import warn
from polyscore.samplers import step
from polyscore.samplers.kernels import Kernel
from polyscore.samplers.moves import AsOne, Move
from polyscore.samplers.plan import Coefficients, Plan
from polyscore.samplers.sampler import Sampler
from polyscore.samplers.step import State, plus
from polyscore.schema import flag, number, setting

_ROUNDING = 1e-10  # of a matrix's trace


@dataclass(frozen=True)
class Tracked(State):
    """A state whose particles know every condition's score, `(A, N, K, *event)`, and log-density, `(N, K, A)`."""

    scores: Tensor
    logs: Tensor


@dataclass(frozen=True, repr=False)
class SuperDiff(Sampler):
    """What OR and AND share: the tracked densities, and a mixed score.

    One evaluation of every condition a step; the step is the frozen one (DDPM's), at churn 1.

    Args:
        steps: from noise to data; the error of the tracked log-densities falls as steps^-1/2.
        grid: as in `Sampler`.
    """

    target: ClassVar[str]

    churn: float = field(default=1.0, init=False)
    move: Move = field(default=AsOne(), init=False)
    integrator: str | Callable[..., Any] = field(default="frozen", init=False)
    start: str | Callable[..., Any] = field(default="noise", init=False)
    kernels: tuple[Kernel, ...] = field(default=(), init=False)

    @property
    def tabular(self) -> bool:
        """A single condition is denoised by the table."""
        return True

    @property
    def graphable(self) -> bool:
        """Nobody has tried."""
        return False

    def check(self, q: Composition) -> None:
        """Refuse denominators, and say what is drawn from instead of the product."""
        least = min(q.exponents.values())
        require(least > 0, f"exponents of {type(self).__name__}", "be positive", f"{least:g}",
                "It superposes conditions: use FeynmanKac for quotients.")  # fmt: skip
        if len(q.exponents) > 1:
            warn(
                f"the target of {type(self).__name__} is not {q!r}: it is {self.target}. Use FeynmanKac for the "
                "product.",
                PolyscoreWarning,
            )

    def prepare(self, q: Composition, times: Tensor, like: Tensor) -> Field:
        """Return what gives the conditions' scores."""
        return EachField(q, times, like)

    def begin(self, plan: Plan, first: int, stop: int) -> Tracked:
        """Return the state at the first time, with the densities that are known there; those of noise otherwise."""
        state = step.begin(plan, first, stop)
        scores = ask_each(plan.field, state.x, lambda each, x: each.scores(x, 0))
        return Tracked(**vars(state), scores=scores, logs=_first_logs(plan, state.x))

    def step(self, plan: Plan, state: State, i: int | Tensor, noise: Mapping[str, Tensor]) -> Tracked:
        """Mix the scores, move, and let log-densities grow."""
        assert isinstance(state, Tracked) and isinstance(i, int)
        now, z = plan.coefficients(i), noise["noise"]
        mixed = mix(state.scores, self.shares(plan, state, now, z))
        x = plus(plus(state.x * now.keep, mixed, now.pull), z, now.noise)
        logs = state.logs + gains(state, x, now, plan.coefficients(i + 1)) + self.missed(plan, state, i, z)
        scores = ask_each(plan.field, x, lambda each, points: each.scores(points, i + 1))
        alarm = state.alarm + 0 * scores.sum() + (0 * logs.sum()).to(state.alarm)
        return replace(state, x=x, score=mixed, scores=scores, logs=logs, alarm=alarm)

    @abstractmethod
    def shares(self, plan: Plan, state: Tracked, now: Coefficients, z: Tensor) -> Tensor:
        """Return k, `(N, K, A)`, which sums to 1."""

    def missed(self, plan: Plan, state: Tracked, i: int, z: Tensor) -> Tensor | float:
        """Return what log q_a gain besides, `(N, K, A)`: nothing where k does not depend on this step's noise."""
        return 0.0


@dataclass(frozen=True, repr=False)
class SuperDiffOr(SuperDiff):
    """Draw from the mixture sum_a (w_a / W) P_a: exponents are its proportions. Not the product prod_a P_a^{w_a}."""

    target = "the mixture of its conditions, in the proportions of the exponents"

    def shares(self, plan: Plan, state: Tracked, now: Coefficients, z: Tensor) -> Tensor:
        """softmax(log q_a + log w_a)."""
        return torch.softmax(state.logs + _exponents(plan, state).log(), -1)


@dataclass(frozen=True, repr=False)
class SuperDiffAnd(SuperDiff):
    """Draw points at which all conditions are equally dense. Not the product prod_a P_a^{w_a}, and no law of its own.

    Exponents do not count. With d_a = s_a - (mean of s), k_a = 1/A + y_a solves, for every a,

        pull sum_b <d_a, d_b> y_b = pull (|s_a|^2 - mean) / 2 - <pull mean s + noise z, d_a>
                                    - (noise^2 / pull) (log q_a - mean),

    after which the log q_a are equal. Scores do not differ while all is noise: the matrix is kept above `floor` over
    the noised size of the sources squared, and what that leaves of the differences is made up for later.

    Such k take the noise along all d_a away, on which Ito's formula counted: with P the projection onto their span,
    log q_a gain (pull^2 / noise^2) tr(P (grad s_a + I / sigma^2)) / 2 less than it says, however many steps there are.
    That is counted here by one more evaluation a step, at x + noise P z; the published rule leaves it out.

    Args:
        steps, grid: as in `SuperDiff`.
        floor: of the matrix; larger is calmer, and leaves larger differences.
        curvature: count the term above, at two evaluations a step; False is the published rule.
    """

    target = "where all its conditions are equally dense, whatever the exponents"

    floor: float = setting(1e-4, number(0, 1, ends=False))
    curvature: bool = setting(True, flag())

    def shares(self, plan: Plan, state: Tracked, now: Coefficients, z: Tensor) -> Tensor:
        """1/A + y."""
        scores, away = _apart(state.scores)
        way = now.pull * scores.mean(2, keepdim=True) + now.noise * z.flatten(2)[:, :, None]
        wanted = 0.5 * scores.square().sum(-1) - (now.noise / now.pull) ** 2 * state.logs
        wanted = wanted - wanted.mean(-1, keepdim=True) - (way * away).sum(-1) / now.pull
        y = self._solve(plan, away, now, wanted)
        return 1 / len(state.scores) + y - y.mean(-1, keepdim=True)

    def missed(self, plan: Plan, state: Tracked, i: int, z: Tensor) -> Tensor | float:
        """Return minus the term of the noise that was taken away, its trace by the one direction P z."""
        now, (_, away) = plan.coefficients(i), _apart(state.scores)
        if not self.curvature or now.noise == 0:
            return 0.0
        onto = self._solve(plan, away, now, (away * z.flatten(2)[:, :, None]).sum(-1))
        taken = (onto[..., None] * away).sum(2).view_as(z)
        moved = ask_each(plan.field, plus(state.x, taken, now.noise), lambda each, x: each.scores(x, i))
        slope = ((moved - state.scores) * taken).flatten(3).sum(-1) / now.noise
        slope = slope + taken.flatten(2).square().sum(-1) / now.sigma**2
        return -0.5 * (now.pull / now.noise) ** 2 * slope.movedim(0, -1)

    def _solve(self, plan: Plan, away: Tensor, now: Coefficients, wanted: Tensor) -> Tensor:
        """Return y with (<d_a, d_b> + floor / size^2) y = wanted, `(N, K, A)`."""
        size = (now.alpha * plan.extent.size) ** 2 + now.sigma**2
        matrix = away.double() @ away.double().mT
        # The d_a sum to 0: besides the floor, one against rounding keeps the matrix from being singular.
        least = self.floor / size + _ROUNDING * matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
        matrix = matrix + torch.diag_embed(least[..., None].expand(*least.shape, away.shape[2]))
        return torch.linalg.solve_ex(matrix, wanted.double()).result.to(wanted)


def _apart(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores `(A, N, K, *event)` as `(N, K, A, d)`, and less their mean."""
    flat = scores.movedim(0, 2).flatten(3)
    return flat, flat - flat.mean(2, keepdim=True)


def mix(scores: Tensor, shares: Tensor) -> Tensor:
    """Return sum_a k_a s_a for scores `(A, N, K, *event)` and shares `(N, K, A)`."""
    wide = shares.movedim(-1, 0)
    return (scores * wide.view(*wide.shape, *[1] * (scores.ndim - 3)).to(scores)).sum(0)


def gains(state: Tracked, x: Tensor, now: Coefficients, then: Coefficients) -> Tensor:
    """Return what log q_a gain over a step to x, `(N, K, A)`; a step without noise, to the data itself, gains none."""
    if now.noise == 0:
        return torch.zeros_like(state.logs)
    variance, r = now.noise**2, now.alpha / then.alpha
    forth, back = plus(x, state.x, -now.keep).flatten(2), plus(state.x, x, -r).flatten(2)
    own = [now.pull * ((forth - 0.5 * now.pull * score) * score).sum(-1) for score in state.scores.flatten(3)]
    noising = now.sigma**2 - (r * then.sigma) ** 2
    common = back.square().sum(-1) / (2 * noising) - forth.square().sum(-1) / (2 * variance)
    log_ratio = 0.5 * back.shape[-1] * math.log(noising / variance)
    return torch.stack(own, -1) / variance + (common + log_ratio)[..., None]


def _first_logs(plan: Plan, x: Tensor) -> Tensor:
    q, now = plan.q, plan.coefficients(0)
    if q.has_density:
        logs = [q.density(name).log_prob(x, now.alpha, now.sigma) for name in q.conditions]
        return torch.stack(logs, -1)
    z = (x / now.sigma).flatten(2)
    noise = -0.5 * z.square().sum(-1) - z.shape[-1] * (math.log(now.sigma) + 0.5 * math.log(2 * math.pi))
    return noise[..., None].expand(*noise.shape, len(q.conditions))


def _exponents(plan: Plan, state: Tracked) -> Tensor:
    return torch.tensor(list(plan.q.exponents.values())).to(state.logs)
