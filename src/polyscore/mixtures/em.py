"""Expectation-maximisation for Gaussian mixtures (Dempster, Laird & Rubin 1977).

    E:  r_nk ∝ w_k N(x_n; m_k, C_k)
    M:  w_k = mean_n r_nk,   m_k = sum_n r_nk x_n / N_k,   C_k = shape of (N_k S_k + a prior's scatter) / (N_k + a)

with S_k the scatter about m_k and N_k = sum_n r_nk. The prior (Fraley & Raftery 2007) counts as a few points of the
whole data's variances, shrunk to a component's volume: it keeps components off single points, and vanishes in 1 / n.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyscore.mixtures.shapes import Shape

_FLOOR = 1e-6  # of the data's variance, below which no component is narrower


@dataclass(frozen=True)
class Fit:
    """A mixture of M Gaussians fitted to n points in d dimensions, all float64 on the CPU.

    Attributes:
        weights, means, covariances: `(M,)`, `(M, d)`, `(M, d, d)`.
        shape: of the covariances.
        points: n.
        log_likelihood: of all points.
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor
    shape: Shape
    points: int
    log_likelihood: float = -math.inf

    @property
    def count(self) -> int:
        """M."""
        return len(self.weights)

    @property
    def numbers(self) -> int:
        """Free numbers: weights, means and covariances."""
        count, dim = self.means.shape
        return count - 1 + count * dim + self.shape.numbers(count, dim)

    @property
    def bic(self) -> float:
        """Schwarz's criterion, log-likelihood less half of log n for every number: the larger, the better."""
        return self.log_likelihood - 0.5 * self.numbers * math.log(max(2, self.points))

    def log_joint(self, x: Tensor) -> Tensor:
        """Return log w_k N(x; m_k, C_k), `(n, d) -> (n, M)`."""
        roots = torch.linalg.cholesky(self.covariances)
        away = (x[None] - self.means[:, None]).mT  # (M, d, n)
        # Coordinate by coordinate: a sum over so short an axis took half of the time of a fit.
        solved = torch.linalg.solve_triangular(roots, away, upper=False).square().unbind(1)
        squares = functools.reduce(torch.add, solved)
        log_dets = roots.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = self.weights.log() - log_dets - 0.5 * x.shape[1] * math.log(2 * math.pi)
        return (constant[:, None] - 0.5 * squares).T

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density, `(n, d) -> (n,)`."""
        return torch.logsumexp(self.log_joint(x), -1)

    def sizes(self) -> Tensor:
        """Return how many points each component stands for, `(M,)`."""
        return self.weights * self.points


@dataclass(frozen=True)
class Prior:
    """What is known before: variances `(d,)` of a component, as good as `strength` points."""

    variances: Tensor
    strength: float
    floor: Tensor

    @classmethod
    def of(cls, points: Tensor, count: int) -> Prior:
        """Return that of `count` components of points `(n, d)`: the data's variances at a component's volume."""
        dim = points.shape[1]
        variances = points.var(0, correction=0)
        variances = torch.where(variances > 0, variances, torch.ones_like(variances) * _FLOOR)
        return cls(variances / count ** (2 / dim), dim + 2.0 if count > 1 else 0.0, _FLOOR * variances)


def expect(fit: Fit, x: Tensor) -> tuple[Tensor, float]:
    """Return responsibilities `(n, M)`, and the log-likelihood."""
    joint = fit.log_joint(x)
    total = torch.logsumexp(joint, -1, keepdim=True)
    return (joint - total).exp(), total.sum().item()


def maximise(x: Tensor, shares: Tensor, shape: Shape, prior: Prior) -> Fit:
    """Return the mixture of responsibilities `(n, M)`."""
    sizes = shares.sum(0).clamp_min(1e-12)
    means = (shares.T @ x) / sizes[:, None]
    second = torch.einsum("nm,nd,ne->mde", shares, x, x) if x.shape[1] <= 4 else _second(x, shares)
    scatter = second - sizes[:, None, None] * means[:, :, None] * means[:, None]
    scatter = scatter + prior.strength * prior.variances.diag()
    covariances = shape.restrict(scatter / (sizes + prior.strength)[:, None, None], sizes)
    return Fit(sizes / sizes.sum(), means, _floored(covariances, prior.floor), shape, len(x))


def _second(x: Tensor, shares: Tensor) -> Tensor:
    """Second moments `(M, d, d)` about the origin, a component at a time."""
    return torch.stack([(x * share[:, None]).T @ x for share in shares.T])


def _floored(covariances: Tensor, floor: Tensor) -> Tensor:
    """Covariances with no direction narrower than the floor, in units of the data's deviations."""
    units = floor.rsqrt()
    values, vectors = torch.linalg.eigh(units[:, None] * covariances * units)
    if bool((values >= 1).all()):
        return covariances
    return ((vectors * values.clamp_min(1.0)[..., None, :]) @ vectors.mT) / (units[:, None] * units)


def run(x: Tensor, fit: Fit, prior: Prior, rounds: int = 200, least: float = 0.05) -> Fit:
    """Return the fit after EM from `fit`: until a round adds less than `least` nats, or `rounds` are done."""
    before = -math.inf
    for _ in range(rounds):
        shares, likelihood = expect(fit, x)
        if likelihood - before < least:
            break
        before, fit = likelihood, maximise(x, shares, fit.shape, prior)
    return replace(fit, log_likelihood=expect(fit, x)[1])
