"""How particles move and what their log-weights gain: tables of scalars, one row a step.

With z standard normal, S the composed score, X = of_x * x + of_score * S the composed clean point, X_ that of the step
before, and `spread` = |S|^2 - sum w |s_a|^2, every move here reads

    x' = keep * x + pull * S + back * X_ + noise * z,        g = constant + along * <x, S> + across * spread.

`Balanced` is the rule of this library, b = -W u + (eta^2 + nu^2) S / 2 with nu = churn * eta; `Paper` is the paper's,
b = -u + ..., which needs a divergence term (constant in x) and degenerates for W > 1; `Published` is `Paper` with the
sign and start that the paper's tables were computed with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.samplers.grids import Extent, TimeGrid, noise_to_signal
from polyscore.schedules import Schedule

# Noise over signal below which learned scores say nothing that their own error does not outweigh: a fifth of all that a
# constant error of the noise adds to log-weights would come from below, and next to nothing of what is to be corrected.
_TRUSTED = 0.01


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


@dataclass(frozen=True)
class Balanced:
    """b = -W u + (eta^2 + nu^2) S / 2: pure noise N(0, I/W) stays at rest, and no divergence appears."""

    def linear(self, total: float) -> float:
        """Multiple of -u in the move."""
        return total

    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """g = (1 - W) <u, S> + (eta^2 / 2) spread."""
        drift = schedule.drift(times)
        return Rates(torch.zeros_like(times), (1 - total) * drift, 0.5 * schedule.diffusion(times) ** 2)

    def start_variance(self, total: float) -> float:
        """Variance of the start, in units of sigma(1)^2."""
        return 1 / total


@dataclass(frozen=True)
class Paper:
    """b = -u + (eta^2 + nu^2) S / 2, with g = (W - 1) div u + (eta^2 / 2) spread."""

    def linear(self, total: float) -> float:
        """Multiple of -u in the move."""
        return 1.0

    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """The divergence of u is dim * drift, the same for all particles."""
        constant = (total - 1) * dim * schedule.drift(times)
        return Rates(constant, torch.zeros_like(times), 0.5 * schedule.diffusion(times) ** 2)

    def start_variance(self, total: float) -> float:
        """Variance of the start, in units of sigma(1)^2."""
        return 1 / total


@dataclass(frozen=True)
class Published(Paper):
    """The paper's scripts to the letter: the divergence with its sign reversed, and the start N(0, I) for every W."""

    def rates(self, schedule: Schedule, times: Tensor, total: float, dim: int) -> Rates:
        """`Paper` with -(W - 1) div u."""
        rates = super().rates(schedule, times, total, dim)
        return rates._replace(constant=-rates.constant)

    def start_variance(self, total: float) -> float:
        """1 whatever W is."""
        return 1.0


Move = Balanced | Paper


def euler_steps(schedule: Schedule, grid: TimeGrid, total: float, churn: float, move: Move) -> Steps:
    """Return Euler-Maruyama: x + h b(x, t) + nu sqrt(h) z."""
    times, h = grid
    drift, variance = schedule.drift(times[:-1]), schedule.diffusion(times[:-1]) ** 2
    none = torch.zeros_like(h)
    return Steps(
        keep=1 - h * move.linear(total) * drift,
        pull=0.5 * h * (1 + churn**2) * variance,
        noise=churn * (h * variance).sqrt(),
        back=none, of_x=none, of_score=none,
    )  # fmt: skip


def frozen_steps(schedule: Schedule, times: Tensor, total: float, churn: float) -> Steps:
    """Return the step that is exact for frozen X = sum_a w_a E_a[x_0 | x_t]: from DDIM (churn 0) to DDPM (churn 1).

    By Tweedie S = (alpha X - W x) / sigma^2, so the balanced move is the linear SDE
    dx = W (sigma'/sigma + c^2 (log lambda)') x dt - (1 + c^2) (eta^2 alpha / 2 sigma^2) X dt + c eta dW with
    lambda = sigma / alpha and c the churn. Its transition keeps the factor
    Phi(s, r) = [(sigma_s / sigma_r) (lambda_s / lambda_r)^(c^2)]^W; the coefficients of X and z are integrals of Phi,
    closed for W = 1 and taken by quadrature otherwise. Nothing here is singular where alpha(1) = 0.
    """
    phi, toward, variance = _frozen(schedule, times, total, churn)
    return _with_clean(schedule, times, total, phi, toward, torch.zeros_like(phi), variance)


def multistep_steps(schedule: Schedule, times: Tensor, total: float, churn: float) -> Steps:
    """Return the same step with X at the middle of it, extrapolated from this step's X and the last one's.

    X + (X - X_) h / 2 h_, with h and h_ the two steps in log(sigma / alpha), makes it second order for one evaluation a
    step (DPM-Solver++(2M), Lu et al. 2022). The first step has no other before it and stays frozen.
    """
    phi, toward, variance = _frozen(schedule, times, total, churn)
    strides = -noise_to_signal(schedule, times).diff()
    # Never further than one step ahead: on a grid with a leap the line through two points would be thrown far off.
    beyond = torch.cat([strides.new_zeros(1), 0.5 * (strides[1:] / strides[:-1]).clamp_max(2.0)])
    return _with_clean(schedule, times, total, phi, toward, beyond, variance)


def _frozen(schedule: Schedule, times: Tensor, total: float, churn: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the coefficients of x and of the frozen X, and the variance, of every step."""
    t, s = times[:-1], times[1:]
    phi = _phi(schedule, s, t, total, churn)
    if total != 1:
        toward, variance = _integrals(schedule, s, t, total, churn)
        return phi, toward, variance.clamp_min(0) if churn > 0 else torch.zeros_like(t)
    toward = schedule.alpha(s) - phi * schedule.alpha(t)
    # sigma_s^2 (1 - ratio), without the difference of two numbers near 1 that fine steps would cancel
    stride = noise_to_signal(schedule, s) - noise_to_signal(schedule, t)
    return phi, toward, schedule.sigma(s) ** 2 * -torch.expm1(2 * churn**2 * stride)


def _with_clean(
    schedule: Schedule, times: Tensor, total: float, phi: Tensor, toward: Tensor, beyond: Tensor, variance: Tensor
) -> Steps:
    """phi x + toward (X + beyond (X - X_)) + noise, written in x and S."""
    alpha, sigma = schedule.alpha(times[:-1]), schedule.sigma(times[:-1])
    of_x, of_score = total / alpha, sigma**2 / alpha
    ahead = toward * (1 + beyond)
    return Steps(phi + ahead * of_x, ahead * of_score, variance.sqrt(), -toward * beyond, of_x, of_score)


class Quadrature(NamedTuple):
    """Per step, `(steps,)`, float64: how long the rates at its beginning and at its end count."""

    left: Tensor
    right: Tensor


def trapezoid(schedule: Schedule, grid: TimeGrid, extent: Extent) -> Quadrature:
    """Half the step for each end: g linear in t."""
    return Quadrature(0.5 * grid.lengths, 0.5 * grid.lengths)


def right_end(schedule: Schedule, grid: TimeGrid, extent: Extent) -> Quadrature:
    """The whole step for its end, as the paper has it."""
    return Quadrature(torch.zeros_like(grid.lengths), grid.lengths)


def noise_products(schedule: Schedule, grid: TimeGrid, extent: Extent) -> Quadrature:
    """Interpolate products of noise, E = sigma^2 g / eta^2, linearly in sigma^2 between the ends of a step.

    With E = A + B sigma^2 the integral of (eta^2 / sigma^2) E is A * (change of log sigma^2 / alpha^2) + B * (integral
    of eta^2). A wrong noise leaves a constant E, counted exactly: the trapezoid would divide its square by the last
    sigma^2. Exact scores near the data leave E ~ sigma^2, which is exact as well. Of learned scores nothing is counted
    below a noise-to-signal ratio of a hundredth: what is left to correct there is smaller than their errors.
    """
    t, s = grid.times[:-1], grid.times[1:]
    r, measure = _nodes(s, t)
    power = (schedule.diffusion(r) ** 2 * measure).sum(-1)
    stretch = 2 * (noise_to_signal(schedule, t) - noise_to_signal(schedule, s))
    early, late = schedule.sigma(t) ** 2, schedule.sigma(s) ** 2
    left = early * (power - late * stretch) / ((early - late) * schedule.diffusion(t) ** 2)
    right = late * (early * stretch - power) / ((early - late) * schedule.diffusion(s) ** 2)
    # Between neighbouring times all of this cancels; both rules agree there.
    plain = trapezoid(schedule, grid, extent)
    fine = (left >= 0) & (right >= 0) & (left + right < 100 * grid.lengths)
    counted = extent.exact | (noise_to_signal(schedule, s) >= math.log(_TRUSTED))
    return Quadrature(torch.where(fine, left, plain.left) * counted, torch.where(fine, right, plain.right) * counted)


INTEGRATORS = ("multistep", "frozen", "euler")
QUADRATURES: dict[str, Callable[[Schedule, TimeGrid, Extent], Quadrature]] = {
    "noise": noise_products,
    "trapezoid": trapezoid,
    "right": right_end,
}


def _signal_to_noise(schedule: Schedule, t: Tensor) -> Tensor:
    return (schedule.alpha(t) / schedule.sigma(t)) ** 2


def _phi(schedule: Schedule, s: Tensor, t: Tensor, total: float, churn: float) -> Tensor:
    """Phi(s, t) of the frozen linear SDE."""
    shrink = schedule.sigma(s) / schedule.sigma(t)
    ratio = _signal_to_noise(schedule, t) / _signal_to_noise(schedule, s)
    return (shrink * ratio ** (0.5 * churn**2)) ** total


def _integrals(schedule: Schedule, s: Tensor, t: Tensor, total: float, churn: float) -> tuple[Tensor, Tensor]:
    """Return the coefficients of X and the variance by quadrature."""
    r, measure = _nodes(s, t)
    phi = _phi(schedule, s[:, None], r, total, churn)
    eta2 = schedule.diffusion(r) ** 2
    toward = phi * 0.5 * (1 + churn**2) * eta2 * schedule.alpha(r) / schedule.sigma(r) ** 2
    return (toward * measure).sum(-1), (phi**2 * churn**2 * eta2 * measure).sum(-1)


def _nodes(s: Tensor, t: Tensor, count: int = 64) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre nodes and weights of every step, `(steps, count)`, in logit time: it resolves both ends."""
    nodes, weights = _gauss_legendre(count)
    low, high = torch.logit(s)[:, None], torch.logit(t)[:, None]
    r = torch.sigmoid(0.5 * (high + low) + 0.5 * (high - low) * nodes)
    return r, 0.5 * (high - low) * weights * r * (1 - r)


@lru_cache(maxsize=4)
def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [-1, 1] (Golub & Welsch 1969: eigenvalues of the Jacobi matrix)."""
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / (4 * k**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, 2 * vectors[0] ** 2
