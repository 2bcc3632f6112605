"""How particles move and what their log-weights gain: tables of scalars, one row a step.

With z standard normal, S the composed score and `spread` = |S|^2 - sum w |s_a|^2, every move here reads

    x' = keep * x + pull * S + noise * z,        g = constant + along * <x, S> + across * spread.

`Balanced` is the rule of this library, b = -W u + (eta^2 + nu^2) S / 2 with nu = churn * eta; `Paper` is the paper's,
b = -u + ..., which needs a divergence term (constant in x) and degenerates for W > 1; `Published` is `Paper` with the
sign and start that the paper's tables were computed with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.schedules import T_MAX, T_MIN, Schedule


class Steps(NamedTuple):
    """Per step, `(steps,)`, float64: the coefficients of x, S and z, and the step's length in time."""

    keep: Tensor
    pull: Tensor
    noise: Tensor
    length: Tensor


class Rates(NamedTuple):
    """Per grid time, `(steps + 1,)`, float64: the coefficients of g."""

    constant: Tensor
    along: Tensor
    across: Tensor


def time_grid(steps: int, pure_noise: bool = False) -> Tensor:
    """Return `steps + 1` equal times from 1 to 0, the ends clamped into (0, 1), float64.

    Where alpha(1) = 0 the first time stands half a step before 1: at 1 itself the score says nothing of the data, and
    an error of a learned one would be multiplied by alpha_s / alpha_t without bound.
    """
    latest = 1 - 0.5 / steps if pure_noise else T_MAX
    return torch.linspace(1, 0, steps + 1, dtype=torch.float64).clamp(T_MIN, latest)


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


def euler_steps(schedule: Schedule, times: Tensor, total: float, churn: float, move: Move) -> Steps:
    """Return Euler-Maruyama: x + h b(x, t) + nu sqrt(h) z, with equal h."""
    h = torch.full_like(times[:-1], 1 / (len(times) - 1))
    drift, variance = schedule.drift(times[:-1]), schedule.diffusion(times[:-1]) ** 2
    return Steps(
        keep=1 - h * move.linear(total) * drift,
        pull=0.5 * h * (1 + churn**2) * variance,
        noise=churn * (h * variance).sqrt(),
        length=h,
    )


def exact_linear_steps(schedule: Schedule, times: Tensor, total: float, churn: float) -> Steps:
    """Return the step that is exact for frozen X = sum_a w_a E_a[x_0 | x_t]: from DDIM (churn 0) to DDPM (churn 1).

    By Tweedie S = (alpha X - W x) / sigma^2, so the balanced move is the linear SDE
    dx = W (sigma'/sigma + c^2 (log lambda)') x dt - (1 + c^2) (eta^2 alpha / 2 sigma^2) X dt + c eta dW with
    lambda = sigma / alpha and c the churn. Its transition keeps the factor
    Phi(s, r) = [(sigma_s / sigma_r) (lambda_s / lambda_r)^(c^2)]^W; the coefficients of X and z are integrals of Phi,
    closed for W = 1 and taken by quadrature otherwise. Nothing here is singular where alpha(1) = 0.
    """
    t, s = times[:-1], times[1:]
    phi = _phi(schedule, s, t, total, churn)
    if total == 1:
        toward = schedule.alpha(s) - phi * schedule.alpha(t)
        ratio = (_signal_to_noise(schedule, t) / _signal_to_noise(schedule, s)) ** (churn**2)
        variance = schedule.sigma(s) ** 2 * (1 - ratio)
    else:
        toward, variance = _integrals(schedule, s, t, total, churn)
    alpha = schedule.alpha(t)
    return Steps(
        keep=phi + toward * total / alpha,
        pull=toward * schedule.sigma(t) ** 2 / alpha,
        noise=variance.clamp_min(0).sqrt() if churn > 0 else torch.zeros_like(t),
        length=t - s,
    )


def _signal_to_noise(schedule: Schedule, t: Tensor) -> Tensor:
    return (schedule.alpha(t) / schedule.sigma(t)) ** 2


def _phi(schedule: Schedule, s: Tensor, t: Tensor, total: float, churn: float) -> Tensor:
    """Phi(s, t) of the frozen linear SDE."""
    shrink = schedule.sigma(s) / schedule.sigma(t)
    ratio = _signal_to_noise(schedule, t) / _signal_to_noise(schedule, s)
    return (shrink * ratio ** (0.5 * churn**2)) ** total


def _integrals(schedule: Schedule, s: Tensor, t: Tensor, total: float, churn: float) -> tuple[Tensor, Tensor]:
    """Return the coefficients of X and the variance by Gauss-Legendre in logit time, which resolves both ends."""
    nodes, weights = _gauss_legendre(64)
    low, high = torch.logit(s)[:, None], torch.logit(t)[:, None]
    r = torch.sigmoid(0.5 * (high + low) + 0.5 * (high - low) * nodes)
    measure = 0.5 * (high - low) * weights * r * (1 - r)
    phi = _phi(schedule, s[:, None], r, total, churn)
    eta2 = schedule.diffusion(r) ** 2
    toward = phi * 0.5 * (1 + churn**2) * eta2 * schedule.alpha(r) / schedule.sigma(r) ** 2
    return (toward * measure).sum(-1), (phi**2 * churn**2 * eta2 * measure).sum(-1)


def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [-1, 1] (Golub & Welsch 1969: eigenvalues of the Jacobi matrix)."""
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / (4 * k**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, 2 * vectors[0] ** 2


def log_start_mass(total: float, dim: int, variance: float) -> float:
    """Return log of the integral of N(x; 0, variance I)^W, the mass that the path has before the first step."""
    return 0.5 * dim * ((1 - total) * math.log(2 * math.pi * variance) - math.log(total))
