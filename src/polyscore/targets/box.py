"""The box that holds a composition of mixtures, in one and two dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import ArgumentError
from polyscore.targets.importance import tail_proposal


def mixture_box(q: Composition) -> tuple[Tensor, Tensor]:
    """Grow a box around the proposal until its rim holds nothing, then shrink it to what holds something."""
    proposal = tail_proposal(q).components
    deviation = proposal.covariances.diagonal(dim1=-2, dim2=-1).sqrt()
    low, high = (proposal.means - 6 * deviation).amin(0), (proposal.means + 6 * deviation).amax(0)
    for _ in range(12):
        density, axes = _coarse(q, low, high)
        inside = density > density.max() - 45
        rim = [inside.select(k, end).any() for k in range(density.ndim) for end in (0, -1)]
        if not any(rim):
            break
        centre, half = 0.5 * (low + high), 0.75 * (high - low)
        low, high = centre - half, centre + half
    else:
        raise ArgumentError(
            f"a grid must hold the density; that of {q!r} reaches beyond {low.tolist()} to {high.tolist()}. "
            'Use method="importance".'
        )
    kept = [inside.any(dim=tuple(j for j in range(density.ndim) if j != k)).nonzero() for k in range(density.ndim)]
    step = (high - low) / len(axes[0])
    narrow_low, narrow_high = _narrow_modes(q, proposal.means, deviation)
    first = torch.tensor([k.min().item() for k in kept], dtype=torch.float64)
    last = torch.tensor([k.max().item() for k in kept], dtype=torch.float64)
    coarse_low, coarse_high = low + (first - 1).clamp_min(0) * step, low + (last + 2).clamp_max(len(axes[0])) * step
    return torch.minimum(coarse_low, narrow_low), torch.maximum(coarse_high, narrow_high)


def _narrow_modes(q: Composition, means: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return a box around the component means that hold density: the coarse look may miss a narrow one."""
    density = q.log_density(means)
    held = density > density.max() - 45
    return (means - 8 * deviation)[held].amin(0), (means + 8 * deviation)[held].amax(0)


def _coarse(q: Composition, low: Tensor, high: Tensor, cells: int = 300) -> tuple[Tensor, list[Tensor]]:
    ticks = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    axes = [a + (b - a) * ticks for a, b in zip(low, high)]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    return q.log_density(points), axes
