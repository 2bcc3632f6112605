"""Log-weights of the discrete steps themselves instead of g dt (Radon-Nikodym; nothing here is of order 1 / steps).

A chain that moves by K(x' | x) and is looked at backwards by any L(x | x') has the exact log-weights

    log pi_s(x') - log pi_t(x) + log L(x | x') - log K(x' | x),        pi_t = prod_a P_{a,t}^{w_a},

however coarse its steps. K is the step's own Gaussian, whatever drift is in it; L the noising dx = W u dt + eta dB, of
which every balanced move with churn 1 is the reverse. Both have squares of the step's noise in them that g dt has
averaged: weights are free of the time step's error, and vary more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import require
from polyscore.samplers.grids import TimeGrid
from polyscore.samplers.integrators import nodes
from polyscore.samplers.parts import found
from polyscore.samplers.quadratures import QUADRATURES, discrete

if TYPE_CHECKING:
    from polyscore.samplers.plan import Plan
    from polyscore.samplers.sampler import Sampler
    from polyscore.samplers.step import State


def by_steps(sampler: Sampler) -> bool:
    """Whether its weights are those of the discrete steps."""
    return found(QUADRATURES, sampler.quadrature) is discrete


def check_discrete(q: Composition, sampler: Sampler) -> None:
    """Check that densities are known, and that a step has noise of which the noising is the reverse."""
    require(q.has_density, "quadrature='discrete'", "go with factors that have densities", repr(q),
            "Scores alone give these weights no more than g dt: leave quadrature= at its default.")  # fmt: skip
    require(sampler.churn == 1, "quadrature='discrete'", "go with churn = 1", sampler.churn, "Leave churn out.")
    balanced = sampler.move.noising(q.total) == q.total
    require(balanced, "quadrature='discrete'", "go with the balanced move when W is not 1", sampler.move,
            "Leave move out.")  # fmt: skip
    require(sampler.clip is None, "clip", "be None with quadrature='discrete', which has no rate", sampler.clip,
            "Leave it out.")  # fmt: skip


def noising(q: Composition, grid: TimeGrid) -> list[tuple[float, float]]:
    """Return factor and variance of dx = W u dt + eta dB over every step, from its end back to its beginning."""
    t, s = grid.times[:-1], grid.times[1:]
    r, measure = nodes(s, t)
    schedule, total = q.schedule, q.total
    kept = (schedule.alpha(t)[:, None] / schedule.alpha(r)) ** total
    variance = (kept.square() * schedule.diffusion(r) ** 2 * measure).sum(-1)
    good = bool(torch.isfinite(variance).all()) and variance.min().item() > 0
    require(good, "quadrature='discrete'", "go with a grid that begins where alpha is above 0", grid.times[0].item(),
            "Use grid='snr'.")  # fmt: skip
    factor = (schedule.alpha(t) / schedule.alpha(s)) ** total
    return list(zip(factor.tolist(), variance.tolist(), strict=True))


def discrete_gain(plan: Plan, before: State, after: State, i: int, z: Tensor) -> Tensor:
    """Return the log-weights of step i, `(N, K)`.

    Args:
        z: the step's standard normals, like x: log K is theirs, less that of their scale.
    """
    now, then = plan.coefficients(i), plan.coefficients(i + 1)
    factor, variance = plan.noising[i]
    left = plan.q.standard_log_density(before.x, now.alpha, now.sigma)
    right = plan.q.standard_log_density(after.x, then.alpha, then.sigma)
    away = (before.x - factor * after.x) / math.sqrt(variance)
    squares = 0.5 * (z.square() - away.square()).flatten(2).sum(-1)
    scale = math.prod(plan.event) * math.log(now.noise / math.sqrt(variance))
    return (right - left + squares + scale).to(before.log_weights)
