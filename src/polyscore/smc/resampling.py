"""Resampling schemes `(log_weights, u) -> indices`: particle k survives K * w_k times in expectation.

A scheme is pure: it says how many uniforms it needs per swarm and turns them into ancestors; one of your own is a
subclass of `Resampler`, registered in `SCHEMES` where a name shall stand for it. Douc, Cappe & Moulines
(2005) compare the four. Cumulative sums run in float32 or better, whatever the particles' precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.registry import Registry


@dataclass(frozen=True)
class Resampler(ABC):
    """A resampling scheme."""

    def uniforms(self, particles: int) -> int:
        """How many uniforms one swarm needs; one a particle unless a scheme says otherwise."""
        return particles

    @abstractmethod
    def points(self, particles: int, u: Tensor) -> Tensor:
        """Turn uniforms `(N, uniforms)` into ordered or unordered points of [0, 1), `(N, K)`."""

    def __call__(self, log_weights: Tensor, u: Tensor) -> Tensor:
        """Return ancestors `(N, K)` for log-weights `(N, K)` and uniforms `(N, uniforms)`."""
        return self.choose(torch.softmax(log_weights, -1), u)

    def choose(self, weights: Tensor, u: Tensor) -> Tensor:
        """Return ancestors for weights that need not be normalised, `(N, K)`."""
        return invert(weights.cumsum(-1), self.points(weights.shape[-1], u))


def invert(cumulative: Tensor, points: Tensor) -> Tensor:
    """Return for each point of [0, 1) the particle whose interval of the cumulative weights holds it."""
    # The last entry is the total, whatever its rounding. A point that rounds up to it is moved just below, so that a
    # particle without weight is never chosen; the clamp guards against nan alone.
    total = cumulative[..., -1:]
    points = torch.minimum(points.to(cumulative.dtype) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, points.contiguous(), right=True).clamp_max_(cumulative.shape[-1] - 1)


@dataclass(frozen=True)
class Systematic(Resampler):
    """One uniform for all: points (k + u) / K."""

    def uniforms(self, particles: int) -> int:
        return 1

    def points(self, particles: int, u: Tensor) -> Tensor:
        return (torch.arange(particles, device=u.device, dtype=u.dtype) + u) / particles

    def choose(self, weights: Tensor, u: Tensor) -> Tensor:
        # Equally spaced points need no search: K - floor(K (1 - c_k) + u) of them lie below the cumulative share c_k.
        # Written so that shares of exactly 0 and 1 stay exact: a particle without weight is never chosen.
        particles = weights.shape[-1]
        cumulative = weights.cumsum(-1)
        total = cumulative[..., -1:]
        above = ((total - cumulative) / total).mul_(particles).add_(u).floor_()
        below = (particles - above).long().clamp_(0, particles)
        counts = below.new_zeros(*below.shape[:-1], particles + 1).scatter_add_(-1, below, torch.ones_like(below))
        return counts[..., :particles].cumsum(-1).clamp_max_(particles - 1)


@dataclass(frozen=True)
class Stratified(Resampler):
    """One uniform per stratum: points (k + u_k) / K."""

    def points(self, particles: int, u: Tensor) -> Tensor:
        return (torch.arange(particles, device=u.device, dtype=u.dtype) + u) / particles


@dataclass(frozen=True)
class Multinomial(Resampler):
    """K independent draws."""

    def points(self, particles: int, u: Tensor) -> Tensor:
        return u


@dataclass(frozen=True)
class Residual(Resampler):
    """floor(K w_k) copies for certain; the rest drawn multinomially from the fractional parts."""

    def points(self, particles: int, u: Tensor) -> Tensor:
        return u

    def choose(self, weights: Tensor, u: Tensor) -> Tensor:
        particles = weights.shape[-1]
        expected = particles * weights / weights.sum(-1, keepdim=True)
        certain = (expected + 1e-6).floor()
        fractions = (expected - certain).clamp_min(0)
        drawn = invert(fractions.cumsum(-1), u)
        filled = certain.cumsum(-1)
        slots = torch.arange(particles, device=u.device, dtype=filled.dtype).expand_as(filled)
        sure = torch.searchsorted(filled, slots.contiguous(), right=True).clamp_max(particles - 1)
        return torch.where(slots < filled[..., -1:], sure, drawn)


SCHEMES: Registry[type[Resampler]] = Registry(
    "resampling",
    {"systematic": Systematic, "stratified": Stratified, "multinomial": Multinomial, "residual": Residual},
)


def resampler(name: str | Resampler) -> Resampler:
    """Return the scheme of that name; a `Resampler` passes through."""
    return name if isinstance(name, Resampler) else SCHEMES[name]()
