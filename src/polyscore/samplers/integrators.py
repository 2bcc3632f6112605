"""From a move to a table of steps: Euler, and three that are exact in the linear part.

An integrator is a function (schedule, grid, W, churn, move) -> `Steps`. Those that are exact in the linear part know
one move, the balanced one, which every move is where W = 1; `ancestral` knows unbalanced ones as well.

A grid may begin at alpha = 0 and end at t = 0. At alpha = 0 the score says nothing of the data, though a model that
predicts the clean point does: there, and only there, scores are written and read as if alpha were 1
(`schedules.signal`).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from polyscore.registry import Registry
from polyscore.samplers.grids import TimeGrid
from polyscore.samplers.moves import Integrator, Move, Steps
from polyscore.schedules import Schedule, signal

_END = 1e-12  # from 0 and from 1, at which an integral over a step to these stops


def euler_steps(schedule: Schedule, grid: TimeGrid, total: float, churn: float, move: Move) -> Steps:
    """Return Euler-Maruyama: x + h b(x, t) + nu sqrt(h) z."""
    times, h = grid.times, grid.lengths
    drift, variance = schedule.drift(times[:-1]), schedule.diffusion(times[:-1]) ** 2
    none = torch.zeros_like(h)
    return Steps(
        keep=1 - h * move.linear(total) * drift,
        pull=0.5 * h * (1 + churn**2) * variance,
        noise=churn * (h * variance).sqrt(),
        back=none, of_x=none, of_score=none,
    )  # fmt: skip


def frozen_steps(schedule: Schedule, grid: TimeGrid, total: float, churn: float, move: Move | None = None) -> Steps:
    """Return the step that is exact for frozen X = sum_a w_a E_a[x_0 | x_t]: from DDIM (churn 0) to DDPM (churn 1).

    By Tweedie S = (alpha X - W x) / sigma^2, so the balanced move is the linear SDE
    dx = W (sigma'/sigma + c^2 (log lambda)') x dt - (1 + c^2) (eta^2 alpha / 2 sigma^2) X dt + c eta dW with
    lambda = sigma / alpha and c the churn. Its transition keeps the factor
    Phi(s, r) = [(sigma_s / sigma_r) (lambda_s / lambda_r)^(c^2)]^W; the coefficients of X and z are integrals of Phi,
    closed for W = 1 and taken by quadrature otherwise. Nothing here is singular where alpha(1) = 0.
    """
    phi, toward, variance = _frozen(schedule, grid.times, total, churn)
    return _with_clean(schedule, grid.times, total, phi, toward, torch.zeros_like(phi), variance)


def multistep_steps(schedule: Schedule, grid: TimeGrid, total: float, churn: float, move: Move | None = None) -> Steps:
    """Return the same step with X at the middle of it, extrapolated from this step's X and the last one's.

    X + (X - X_) h / 2 h_, with h and h_ the two steps in log(sigma / alpha), makes it second order for one evaluation a
    step (DPM-Solver++(2M), Lu et al. 2022). The first step has no other before it and stays frozen.
    """
    phi, toward, variance = _frozen(schedule, grid.times, total, churn)
    strides = -schedule.log_noise_to_signal(grid.times).diff()
    # Never further than one step ahead: on a grid with a leap the line through two points would be thrown far off. A
    # step to the data itself is endless in lambda, and stays frozen.
    ratios = (strides[1:] / strides[:-1]).clamp_max(2.0) * strides[1:].isfinite()
    beyond = torch.cat([strides.new_zeros(1), 0.5 * ratios.nan_to_num()])
    return _with_clean(schedule, grid.times, total, phi, toward, beyond, variance)


def ancestral_steps(schedule: Schedule, grid: TimeGrid, total: float, churn: float, move: Move) -> Steps:
    """Return the posterior's step q(x_s | x_t, x_0) with the composed score's clean point for x_0 (Ho et al. 2020).

    With L the move's multiple of -u, X = (L x + sigma^2 S) / alpha: the balanced move's is the frozen step, and L = 1
    is DDPM's own with eps = -sigma S, whatever W is. Churn 0 is DDIM's, and on straight paths Euler's for the flow.
    """
    multiple = move.linear(total)
    phi, toward, variance = _frozen(schedule, grid.times, multiple, churn)
    return _with_clean(schedule, grid.times, multiple, phi, toward, torch.zeros_like(phi), variance)


def _frozen(schedule: Schedule, times: Tensor, total: float, churn: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the coefficients of x and of the frozen X, and the variance, of every step."""
    t, s = times[:-1], times[1:]
    phi = _phi(schedule, s, t, total, churn)
    if total != 1:
        toward, variance = _integrals(schedule, s, t, total, churn)
        # At the data x is X / W, and nothing else is left of it.
        toward, variance = torch.where(s == 0, 1 / total, toward), torch.where(s == 0, 0.0, variance)
        return phi, toward, variance.clamp_min(0) if churn > 0 else torch.zeros_like(t)
    toward = schedule.alpha(s) - phi * schedule.alpha(t)
    # sigma_s^2 (1 - ratio), without the difference of two numbers near 1 that fine steps would cancel
    stride = schedule.log_noise_to_signal(s) - schedule.log_noise_to_signal(t)
    lost = 2 * churn**2 * stride if churn > 0 else torch.zeros_like(stride)  # a stride may be endless
    return phi, toward, schedule.sigma(s) ** 2 * -torch.expm1(lost)


def _with_clean(
    schedule: Schedule, times: Tensor, total: float, phi: Tensor, toward: Tensor, beyond: Tensor, variance: Tensor
) -> Steps:
    """phi x + toward (X + beyond (X - X_)) + noise, written in x and S."""
    alpha, sigma = signal(schedule.alpha(times[:-1])), schedule.sigma(times[:-1])
    of_x, of_score = total / alpha, sigma**2 / alpha
    ahead = toward * (1 + beyond)
    return Steps(phi + ahead * of_x, ahead * of_score, variance.sqrt(), -toward * beyond, of_x, of_score)


INTEGRATORS: Registry[Integrator] = Registry(
    "integrator",
    {"multistep": multistep_steps, "frozen": frozen_steps, "ancestral": ancestral_steps, "euler": euler_steps},
)


def _signal_to_noise(schedule: Schedule, t: Tensor) -> Tensor:
    return (schedule.alpha(t) / schedule.sigma(t)) ** 2


def _phi(schedule: Schedule, s: Tensor, t: Tensor, total: float, churn: float) -> Tensor:
    """Phi(s, t) of the frozen linear SDE."""
    shrink = schedule.sigma(s) / schedule.sigma(t)
    ratio = _signal_to_noise(schedule, t) / _signal_to_noise(schedule, s)
    return (shrink * ratio ** (0.5 * churn**2)) ** total


def _integrals(schedule: Schedule, s: Tensor, t: Tensor, total: float, churn: float) -> tuple[Tensor, Tensor]:
    """Return the coefficients of X and the variance by quadrature."""
    r, measure = nodes(s, t)
    phi = _phi(schedule, s[:, None], r, total, churn)
    eta2 = schedule.diffusion(r) ** 2
    toward = phi * 0.5 * (1 + churn**2) * eta2 * schedule.alpha(r) / schedule.sigma(r) ** 2
    return (toward * measure).sum(-1), (phi**2 * churn**2 * eta2 * measure).sum(-1)


def nodes(s: Tensor, t: Tensor, count: int = 64) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre nodes and weights of every step, `(steps, count)`, in logit time: it resolves both ends."""
    points, weights = _gauss_legendre(count)
    low, high = (_logit(time)[:, None] for time in (s, t))
    r = torch.sigmoid(0.5 * (high + low) + 0.5 * (high - low) * points)
    return r, 0.5 * (high - low) * weights * r * (1 - r)


def _logit(t: Tensor) -> Tensor:
    """Finite at both ends; times near 0 are what they are, for narrow parts need steps down to 1e-20 and less."""
    return torch.logit(torch.where(t == 0, _END, t).clamp_max(1 - _END))


@lru_cache(maxsize=4)
def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [-1, 1] (Golub & Welsch 1969: eigenvalues of the Jacobi matrix)."""
    k = torch.arange(1, count, dtype=torch.float64)
    off = k / (4 * k**2 - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return values, 2 * vectors[0] ** 2
