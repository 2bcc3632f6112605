"""Covariances of compositions of Gaussians: the target's, and what denoising with added scores gives instead.

With S = sum_a w_a s_a and P_t = sum_a w_a (alpha^2 cov_a + sigma^2 I)^-1, the move b = -W u + (eta^2 + nu^2) S / 2 is
linear, dx = A x dtau + nu dB with A = -W drift I - (eta^2 + nu^2) P_t / 2: its covariance obeys the Lyapunov equation

    dC / dtau = A C + C A' + nu^2 I,        C = sigma(1)^2 I / W at the start.

Without noise (nu = 0) and for commuting covariances it integrates to prod_a cov_a^{w_a} / W: Theorem 2, extended to
W != 1. The SDE (nu = eta) at W = 1 gives, along a common eigenvector with eigenvalues l_a and whatever the schedule,
the integral over s > 0 of prod_a (l_a / (l_a + s))^{2 w_a}. `naive_covariance` needs none of these conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition, Family
from polyscore.distributions import Gaussian
from polyscore.errors import CompositionError, is_count, require
from polyscore.limits import require_memory
from polyscore.schedules import T_MIN, Schedule


class EpsilonRow(NamedTuple):
    """The variance of naive denoising over the target's, for cov_1 = epsilon I, cov_2 = I / epsilon, w = (1/2, 1/2).

    Attributes:
        ode_law, sde_law: (1 + e^2) / (2 e), the paper's; and (1 + e^2) / (1 - e^2) log(1 / e): only a logarithm.
        ode, sde: by the Lyapunov equation of the schedule; below the ODE's law where alpha(1) > 0 leaves some signal.
    """

    epsilon: float
    ode_law: float
    sde_law: float
    ode: float
    sde: float


def composed_covariance(q: Composition) -> Tensor:
    """Return (sum_a w_a cov_a^-1)^-1, `(d, d)`, float64: Theorem 1. Raises `ImproperError` where it is not positive."""
    q.validity().require(repr(q))
    precision = sum(w * part.precision for w, part in _weighted(q))
    return torch.linalg.inv(torch.as_tensor(precision))


def product_covariance(q: Composition) -> Tensor:
    """Return prod_a cov_a^{w_a} / W for commuting covariances, `(d, d)`, float64: Theorem 2 (there W = 1)."""
    require(q.total > 0, "W, the sum of the exponents,", "be positive", f"{q.total:g}", "Raise the positive exponents.")
    parts = _weighted(q)
    worst = max(_commutator(a.cov, b.cov) for _, a in parts for _, b in parts)
    require(worst < 1e-9, "the covariances", "commute", f"relative commutator {worst:.3g}",
            "Use naive_covariance(q, churn=0), which needs no such thing.")  # fmt: skip
    logarithm = sum(w * _apply(part.cov, torch.log) for w, part in parts)
    return _apply(torch.as_tensor(logarithm), torch.exp) / q.total


def naive_covariance(q: Composition, churn: float = 1.0, steps: int = 1000) -> Tensor:
    """Return the covariance at t = 0 of denoising with added scores, `(d, d)`, float64.

    Args:
        q: a composition of Gaussians with W > 0.
        churn: nu / eta: 1 is the SDE, 0 the ODE.
        steps: of the fourth-order integration.
    """
    require(q.total > 0, "W, the sum of the exponents,", "be positive", f"{q.total:g}", "Raise the positive exponents.")
    require(0 <= churn < float("inf"), "churn", "be at least 0 and finite", churn, "1 is the SDE, 0 the ODE.")
    require(is_count(steps), "steps", "be a whole number of at least 1", steps, "Leave it out for 1000.")
    require_memory(96 * int(steps) * q.event[0] ** 2, f"{steps} steps in {q.event[0]} dimensions", "Use fewer steps.")
    late, early = _ends(q)
    times = _logit_grid(late, early, 2 * steps + 1)
    h = (math.log((1 - late) / late) - math.log(early / (1 - early))) / steps
    c = _lyapunov(_drift_matrix(q, times, churn), q.schedule, times, h, churn, q.total)
    # What is left to t = 0 is the linear part of the move: no score or noise counts any more.
    return c / q.schedule.alpha(times[-1]) ** (2 * q.total)


def epsilon_example(epsilons: Sequence[float], schedule: Schedule | None = None) -> list[EpsilonRow]:
    """Return, for each epsilon in (0, 1], how much too wide ODE and SDE come out in the example of section 4.1."""
    families = [Family({"1": Gaussian(cov=e, dim=1), "2": Gaussian(cov=1 / e, dim=1)}, schedule) for e in epsilons]
    products = [(p["1"] * p["2"]) ** 0.5 for p in families]
    variances = [[naive_covariance(q, churn, steps=400).item() for q in products] for churn in (0.0, 1.0)]
    targets = [composed_covariance(q).item() for q in products]
    rows = zip(epsilons, targets, *variances, strict=True)
    return [EpsilonRow(e, *_epsilon_laws(e), ode / target, sde / target) for e, target, ode, sde in rows]


def _epsilon_laws(e: float) -> tuple[float, float]:
    sde = 1.0 if e == 1 else (1 + e**2) / (1 - e**2) * -math.log(e)
    return (1 + e**2) / (2 * e), sde


def _weighted(q: Composition) -> list[tuple[float, Gaussian]]:
    pairs = []
    for name, exponent in q.exponents.items():
        part = q.distribution(name)
        if not isinstance(part, Gaussian):
            raise CompositionError(
                f"every factor must be a Gaussian here; got {name!r}, a {type(part).__name__}. Sample it instead."
            )
        pairs.append((exponent, part))
    return pairs


def _commutator(a: Tensor, b: Tensor) -> float:
    return ((a @ b - b @ a).norm() / (a.norm() * b.norm())).item()


def _apply(matrix: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a function of a symmetric matrix, through its eigenvalues."""
    values, basis = torch.linalg.eigh(matrix)
    return basis @ function(values).diag() @ basis.T


def _ends(q: Composition) -> tuple[float, float]:
    """Return how near to 1 and to 0 the times must go: until noise dwarfs every covariance, and is dwarfed by all."""
    variances = torch.cat([part.components.variances.flatten() for _, part in _weighted(q)])

    def noise(t: float, above: bool) -> float:
        time = torch.tensor(1 - t if above else t, dtype=torch.float64)
        return (2 * q.schedule.log_noise_to_signal(time)).exp().item()

    late = early = T_MIN
    while early > 1e-30 and noise(early, above=False) > 1e-7 * variances.min().item():
        early /= 4
    enough = min(1e7 * variances.max().item(), (1 - 1e-7) * noise(1e-12, above=True))
    while late > 1e-12 and noise(late, above=True) < enough:
        late /= 4
    return late, early


def _logit_grid(late: float, early: float, count: int) -> Tensor:
    """Return times from noise to data, equal steps in log(t / (1 - t)): both ends resolved, infinite drifts tamed."""
    first, last = math.log((1 - late) / late), math.log(early / (1 - early))
    return torch.sigmoid(torch.linspace(first, last, count, dtype=torch.float64))


def _drift_matrix(q: Composition, times: Tensor, churn: float) -> Tensor:
    """Return A at every time, `(T, d, d)`."""
    alpha, sigma = q.schedule.alpha(times), q.schedule.sigma(times)
    precision = sum(w * part.components.precision_at(alpha, sigma)[:, 0] for w, part in _weighted(q))
    variance = q.schedule.diffusion(times)[:, None, None] ** 2
    identity = torch.eye(q.event[0], dtype=torch.float64)
    return -q.total * q.schedule.drift(times)[:, None, None] * identity - 0.5 * (1 + churn**2) * variance * precision


def _lyapunov(drift: Tensor, schedule: Schedule, times: Tensor, h: float, churn: float, total: float) -> Tensor:
    """Integrate dC = (A C + C A' + nu^2 I) dtau by RK4 in steps of h; `times` holds their ends and middles."""
    identity = torch.eye(drift.shape[-1], dtype=torch.float64)
    pace = times * (1 - times)  # dtau = t (1 - t) d(logit)
    rates = drift * pace[:, None, None]
    noise = (churn * schedule.diffusion(times)) ** 2 * pace
    sources = noise[:, None, None] * identity

    def slope(i: int, c: Tensor) -> Tensor:
        flow = rates[i] @ c
        return flow + flow.T + sources[i]

    c = identity * schedule.sigma(times[:1]) ** 2 / total
    for i in range(0, len(times) - 1, 2):
        k1 = slope(i, c)
        k2 = slope(i + 1, c + 0.5 * h * k1)
        k3 = slope(i + 1, c + 0.5 * h * k2)
        k4 = slope(i + 2, c + h * k3)
        c = c + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4)
    return c
