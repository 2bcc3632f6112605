"""A function of the plane by table: evaluated at the nodes of a grid, interpolated everywhere else.

All particles of a step share one time, so a network of two coordinates is then a smooth function of the plane, and far
fewer nodes than particles hold it. The grid is even in u = asinh((x - median) / (3/2 quartile range)), per coordinate,
and reaches from the smallest to the largest particle: fine where particles are dense, and strays far away, which move
no quartile, cost the others only a logarithm. Cubic Lagrange interpolation is of fourth order; for
networks of 4 x 512, 256 x 256 nodes are within 5e-6 of the output's norm (docs/performance.md), where fp16 products
are within 1e-3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.devices import has_triton

SIDE = 256  # nodes along each coordinate
WORTHWHILE = 4 * SIDE**2  # fewer points than this are evaluated directly

# Points that stand for all of them.
_SOME = 4096

# Points a CPU interpolates at a time, so that what it gathers stays in its cache.
_AT_ONCE = 1 << 14

Function = Callable[[Tensor], Tensor]


class Nodes(NamedTuple):
    """Nodes 0..SIDE-1 along each coordinate, at u = low + step (node - 1); all tensors are `(2,)`."""

    centre: Tensor
    scale: Tensor
    low: Tensor
    step: Tensor

    @classmethod
    def around(cls, x: Tensor, side: int | None = None, enough: int = _SOME) -> Nodes:
        """Return the grid of points `(B, 2)`; one node more at each end gives every point two neighbours each way.

        Args:
            enough: points whose median and quartiles stand for those of all.
        """
        side = SIDE if side is None else side
        ordered = some(x, enough).sort(0).values
        quarter = len(ordered) // 4
        centre = ordered[2 * quarter]
        scale = (1.5 * (ordered[-1 - quarter] - ordered[quarter])).clamp_min(1e-6)
        smallest, largest = torch.aminmax(x, dim=0)
        low, high = torch.asinh((smallest - centre) / scale), torch.asinh((largest - centre) / scale)
        return cls(centre, scale, low, ((high - low) / (side - 3)).clamp_min(1e-9))

    def points(self, side: int | None = None) -> Tensor:
        """Return where all nodes are, `(SIDE ** 2, 2)`, the second coordinate running fastest."""
        side = SIDE if side is None else side
        index = torch.arange(-1, side - 1, device=self.low.device, dtype=self.low.dtype)
        along = torch.sinh(self.low + index[:, None] * self.step) * self.scale + self.centre  # (SIDE, 2)
        return torch.stack(torch.meshgrid(along[:, 0], along[:, 1], indexing="ij"), -1).view(-1, 2)

    def positions(self, x: Tensor) -> Tensor:
        """Return where points lie, in nodes."""
        return (torch.asinh((x - self.centre) / self.scale) - self.low) / self.step + 1


def some(x: Tensor, enough: int = _SOME) -> Tensor:
    """Return every n-th point: some thousands in all, unless fewer are enough."""
    return x[:: max(1, len(x) // enough)]


def tabulated(function: Function, x: Tensor) -> Tensor:
    """Return `function(x)`, `(B, 2) -> (A, B, C)`, by way of a table of its values."""
    nodes = Nodes.around(x)
    values = function(nodes.points())
    if x.is_cuda and has_triton():
        from polyscore.nn.fast.plane_kernel import interpolate as fused

        return fused(values, nodes, x)
    return torch.cat([interpolate(values, nodes, part) for part in x.split(_AT_ONCE)], 1)


def interpolate(values: Tensor, nodes: Nodes, x: Tensor) -> Tensor:
    """Return the values `(A, SIDE ** 2, C)` at the points `(B, 2)`, `(A, B, C)`."""
    position = nodes.positions(x)
    # Clamped as whole numbers: a point that is not finite must not become an address.
    corner = position.floor().long().clamp(1, SIDE - 3)
    rows, columns = (_cubic(part) for part in (position - corner).unbind(-1))
    first = (corner[:, 0] - 1) * SIDE + corner[:, 1] - 1
    result = torch.zeros(values.shape[0], len(x), values.shape[2], device=x.device, dtype=x.dtype)
    for i, j in itertools.product(range(4), repeat=2):
        result += values[:, first + (i * SIDE + j)] * (rows[i] * columns[j])[:, None]
    return result


def _cubic(f: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lagrange's weights of the nodes -1, 0, 1, 2 at 0 <= f <= 1."""
    before, after, beyond = f + 1, f - 1, f - 2
    return -f * after * beyond / 6, before * after * beyond / 2, -before * f * beyond / 2, before * f * after / 6
