"""Where particles start: a Gaussian for the path at the first time, with its mass.

The path there is prod_a P_{a,t}^{w_a}. `matched` takes each closed-form factor as the Gaussian of its own mean and
covariance after noising, N(alpha m, alpha^2 C + sigma^2 I), and multiplies them: exact for Gaussians at any alpha(1).
Where a mixture's signal is left, draws of it are weighed by the path itself (`pooled`). Learned factors count as noise.
`noise` is N(0, sigma^2 I / W), as if no signal were left at all, or what else the move says for it. `noised` is for
samplers that follow the noised composition instead.
A start is a function (composition, move, first time, seed) -> `Start`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.registry import Registry
from polyscore.rng import generator
from polyscore.samplers.moves import Move
from polyscore.schedules import T_MIN
from polyscore.smc import invert

# Draws in a pool, the effective ones it must have, how much wider half of them are; and the deviation of log-weights
# below which a path counts as Gaussian.
_POOL, _FEWEST_IN_POOL, _WIDER, _EQUAL = 1 << 16, 5000, 2.0, 0.03


@dataclass(frozen=True)
class Start:
    """N(mean, covariance) with `log_mass`, log of the integral of the path's density at the first time.

    Attributes:
        mean: `(d,)` or a number.
        root: a number, `(d,)` or `(d, d)`: draws are mean + z root.
        informed: whether it knows the factors' means and covariances.
        pool, shares: points of the path itself with their cumulative weights, where it is no Gaussian.
        exact: whether it is the path itself: all factors are Gaussians.
    """

    mean: Tensor | float
    root: Tensor | float
    log_mass: float
    informed: bool = False
    exact: bool = False
    pool: Tensor | None = None
    shares: Tensor | None = None

    def draw(self, z: Tensor, u: Tensor) -> Tensor:
        """Return points for standard normals `(..., *event)` or, from a pool, for uniforms `(...)`."""
        if self.pool is not None and self.shares is not None:
            return self.pool.to(z)[invert(self.shares.to(u.device), u.flatten())].view_as(z)
        if isinstance(self.root, float):
            return z * self.root
        root, mean = self.root.to(z), torch.as_tensor(self.mean).to(z)
        return mean + (z * root if root.ndim == 1 else z @ root)

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the Gaussian's log-density at the point of normals z `(..., d)`, in float64."""
        root = torch.as_tensor(self.root, dtype=torch.float64)
        log_det = (root.diagonal() if root.ndim == 2 else root.expand(z.shape[-1])).log().sum()
        return _log_standard(z) - log_det


def pure_noise(q: Composition, move: Move, time: Tensor, seed: int = 0) -> Start:
    """Return N(0, v sigma^2 I) with v the move's own, and the mass of N(0, sigma^2 I)^W."""
    scale = q.schedule.sigma(time).item()
    variance = move.start_variance(q.total) * scale**2
    mass = log_start_mass(q.total, math.prod(q.event), scale**2)
    return Start(0.0, math.sqrt(variance), mass)


def matched(q: Composition, move: Move, time: Tensor, seed: int) -> Start:
    """Return the product of the factors' Gaussians, or draws of the path where it is known and no Gaussian."""
    start = gaussian_product(q, move, time)
    return pooled(q, start, time, seed) if q.has_density and not start.exact else start


def gaussian_product(q: Composition, move: Move, time: Tensor) -> Start:
    """Return the product of the factors' Gaussians; pure noise where it is improper or nothing is known."""
    product = product_at(q, time)
    if product is None:
        return pure_noise(q, move, time)
    mean, root, log_mass = product
    exact = (mixtures := q.mixtures) is not None and all(components.count == 1 for components in mixtures)
    return Start(mean, root, log_mass, informed=True, exact=exact)


def product_at(q: Composition, time: Tensor) -> tuple[Tensor, Tensor, float] | None:
    """Return mean, root and log-mass of the product of the factors' Gaussians, or None where there is none."""
    known = q.moments
    if all(pair is None for pair in known):
        return None
    alpha, sigma = q.schedule.alpha(time).item(), q.schedule.sigma(time).item()
    nothing = torch.zeros(2, q.event[0], dtype=torch.float64)  # of a factor of which nothing is known, noise is left
    moments = [nothing if pair is None else pair for pair in known]
    full = any(cov.ndim == 2 for _, cov in moments)
    gaussians = [_noised(mean, cov, alpha, sigma, full) for mean, cov in moments]
    return _product(gaussians, list(q.exponents.values()))


def noised(q: Composition, move: Move, time: Tensor, seed: int = 0) -> Start:
    """Return the composition of the factors' Gaussians, noised: another law than the product of the noised ones.

    N(alpha m, alpha^2 C + sigma^2 I), with N(m, C) the product at t = 0; noise alone where that is improper or unknown.
    """
    clean = gaussian_product(q, move, torch.full_like(time, T_MIN))
    if not clean.informed or any(pair is None for pair in q.moments):
        return pure_noise(q, move, time)
    alpha, sigma = q.schedule.alpha(time).item(), q.schedule.sigma(time).item()
    root = torch.as_tensor(clean.root)
    cov = root**2 if root.ndim == 1 else root.mT @ root
    _, precision = _noised(torch.as_tensor(clean.mean), cov, alpha, sigma, full=root.ndim == 2)
    wide = precision.rsqrt() if root.ndim == 1 else torch.linalg.cholesky(torch.linalg.inv(precision)).T
    return Start(alpha * clean.mean, wide, 0.0, informed=True, exact=clean.exact)


def pooled(q: Composition, start: Start, time: Tensor, seed: int) -> Start:
    """Return a start from the path itself, where what is left of a mixture's signal makes it no Gaussian.

    Many draws are weighed once by path over start, and every particle takes one of them by weight: weighing the few of
    each swarm by themselves would lose rare parts. Half of the draws are wider, to reach far parts. Where the path is
    the Gaussian but for its mass, that stays.
    """
    z = torch.randn(_POOL, q.event[0], generator=generator(seed, "start pool"), dtype=torch.float64)
    z[::2] *= _WIDER
    x = start.draw(z, z[:, 0])
    gain = _log_path(q, x, time) - start.log_prob(z)
    if gain[1::2].std().item() < _EQUAL:
        mass = torch.logsumexp(gain[1::2], 0) - math.log(_POOL // 2)
        return dataclasses.replace(start, log_mass=mass.item(), exact=start.informed)
    wider = _log_standard(z / _WIDER) - z.shape[-1] * math.log(_WIDER)
    log_weights = gain - torch.logaddexp(torch.zeros(()), wider - _log_standard(z)) + math.log(2)
    weights = torch.softmax(log_weights, 0)
    if 1 / weights.square().sum() < _FEWEST_IN_POOL:
        return start
    mass = torch.logsumexp(log_weights, 0) - math.log(_POOL)
    return dataclasses.replace(start, log_mass=mass.item(), exact=True, pool=x, shares=weights.cumsum(0))


def _log_standard(z: Tensor) -> Tensor:
    return -0.5 * (z.double().square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


def _log_path(q: Composition, x: Tensor, time: Tensor) -> Tensor:
    """Of the members themselves: the sampler's coordinates are theirs, whatever units the family has."""
    return q.standard_log_density(x, q.schedule.alpha(time), q.schedule.sigma(time))


STARTS: Registry[Callable[[Composition, Move, Tensor, int], Start]] = Registry(
    "start", {"matched": matched, "noise": pure_noise, "noised": noised}
)


def _noised(mean: Tensor, cov: Tensor, alpha: float, sigma: float, full: bool) -> tuple[Tensor, Tensor]:
    """Return mean and precision after noising."""
    if not full:
        return alpha * mean, 1 / (alpha**2 * cov + sigma**2)
    cov = cov.diag() if cov.ndim == 1 else cov
    return alpha * mean, torch.linalg.inv(alpha**2 * cov + sigma**2 * torch.eye(len(mean), dtype=torch.float64))


def _product(gaussians: list[tuple[Tensor, Tensor]], exponents: list[float]) -> tuple[Tensor, Tensor, float] | None:
    """Return mean, root and log-mass of prod_a N(m_a, P_a^-1)^{w_a}, or None where it is improper."""
    diagonal = gaussians[0][1].ndim == 1
    precision = sum(w * p for w, (_, p) in zip(exponents, gaussians, strict=True))
    assert isinstance(precision, Tensor)
    values = precision if diagonal else torch.linalg.eigvalsh(precision)
    if not bool(values.min() > 1e-9 * values.abs().max()):
        return None
    pulls = [w * (p * m if diagonal else p @ m) for w, (m, p) in zip(exponents, gaussians, strict=True)]
    pull = torch.stack(pulls).sum(0)
    mean = pull / precision if diagonal else torch.linalg.solve(precision, pull)
    root = precision.rsqrt() if diagonal else torch.linalg.cholesky(torch.linalg.inv(precision)).T
    at_mean = [w * _log_normal(mean - m, p) for w, (m, p) in zip(exponents, gaussians, strict=True)]
    return mean, root, sum(at_mean) - _log_normal(torch.zeros_like(mean), precision)


def _log_normal(away: Tensor, precision: Tensor) -> float:
    """log N(mean + away; mean, precision^-1)."""
    quadratic = away @ (precision * away if precision.ndim == 1 else precision @ away)
    log_det = precision.log().sum() if precision.ndim == 1 else torch.logdet(precision)
    return (0.5 * (log_det - quadratic) - 0.5 * len(away) * math.log(2 * math.pi)).item()


def log_start_mass(total: float, dim: int, variance: float) -> float:
    """Return log of the integral of N(x; 0, variance I)^W, the mass that the path has before the first step."""
    return 0.5 * dim * ((1 - total) * math.log(2 * math.pi * variance) - math.log(total))
