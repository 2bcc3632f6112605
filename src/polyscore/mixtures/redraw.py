"""Other mixtures that as many points could as well have given: how far a fit is known.

Means scatter like N(m, C / n), weights like a Dirichlet, covariances like a Wishart: all by the fit's own figures. What
a shape holds in common (one variance for all axes, one covariance for all components) is redrawn in common, by all the
points behind it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor

_SAME = 1e-5  # relative difference of variances that are one number of the fit


class Parts(NamedTuple):
    """A mixture's `weights` (M,), `means` (M, d), `variances` (M, d) in `bases` (M, d, d); float64, on the CPU."""

    weights: Tensor
    means: Tensor
    variances: Tensor
    bases: Tensor


def support(parts: Parts, points: float) -> Tensor:
    """Return how many points stand behind each variance, `(M, d)`: those of all that are the same number."""
    own = (parts.weights * points).clamp_min(1.0)[:, None].expand_as(parts.variances)
    values = parts.variances.flatten()
    same = (values[:, None] - values).abs() <= _SAME * values
    return (same.double() @ own.flatten()).view_as(parts.variances)


def redrawn(parts: Parts, points: float, source: Generator) -> Parts:
    """Return another mixture that as many points could have given."""
    sizes = (parts.weights * points).clamp_min(1.0)
    normal = torch.randn(parts.means.shape, generator=source, dtype=torch.float64)
    away = (normal * (parts.variances / sizes[:, None]).sqrt())[:, None] @ parts.bases.mT
    weights = torch._standard_gamma(sizes, generator=source)
    covariances = _spread(parts, support(parts, points), source)
    values, bases = torch.linalg.eigh(covariances)
    return Parts(weights / weights.sum(), parts.means + away[:, 0], values.clamp_min(1e-12), bases)


def _spread(parts: Parts, behind: Tensor, source: Generator) -> Tensor:
    """Covariances (M, d, d): B V^(1/2) (I + E) V^(1/2) B' with E symmetric, of variance 2 / n on its diagonal."""
    count, dim = parts.variances.shape
    noise = torch.randn(count, dim, dim, generator=source, dtype=torch.float64)
    noise = (noise + noise.mT) / torch.tensor(2.0).sqrt()  # off the diagonal 1, on it 2
    # Numbers that the fit has in common move in common; axes that it does not turn stay.
    noise = _common(parts, noise) / behind.sqrt()[:, :, None].minimum(behind.sqrt()[:, None])
    root = parts.variances.sqrt()
    inner = root[:, :, None] * (torch.eye(dim, dtype=torch.float64) + noise) * root[:, None]
    spread = parts.bases @ inner @ parts.bases.mT
    values, vectors = torch.linalg.eigh(spread)
    return (vectors * values.clamp_min(1e-3 * parts.variances.amin())[:, None]) @ vectors.mT


def _common(parts: Parts, noise: Tensor) -> Tensor:
    """Noise of which equal variances have the same on the diagonal, and nothing beside it where axes are the data's."""
    values, flat = parts.variances.flatten(), noise.diagonal(dim1=1, dim2=2).flatten().clone()
    first = ((values[:, None] - values).abs() <= _SAME * values).int().argmax(1)
    diagonal = torch.diag_embed(flat[first].view_as(parts.variances))
    aligned = bool(((parts.bases.abs() < 1e-6) | ((parts.bases.abs() - 1).abs() < 1e-6)).all())
    spherical = bool((parts.variances.amax(1) <= (1 + _SAME) * parts.variances.amin(1)).all())
    if aligned or spherical:
        return diagonal
    off = noise - torch.diag_embed(noise.diagonal(dim1=1, dim2=2))
    # Directions of one variance have no axes between them that could turn.
    off = torch.where((values.view_as(parts.variances)[:, :, None] - parts.variances[:, None]).abs()
                      <= _SAME * parts.variances[:, None], 0.0, off)  # fmt: skip
    tied = bool((parts.variances - parts.variances[:1]).abs().max() <= _SAME * parts.variances.max())
    return diagonal + (off[:1].expand_as(off) if tied else off)
