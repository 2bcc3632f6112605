"""The cells of a grid along each axis, and where a position between them lies: evenly spaced, or by their edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Axes(Protocol):
    """Cells along each of d axes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Their number along each axis."""

    def centres(self) -> Tensor:
        """Return the middles of all cells, `(cells, d)`, those along the last axis first."""

    def log_volumes(self) -> Tensor:
        """Return the logs of their volumes, `(cells,)`, or a number where all are one."""

    def at(self, position: Tensor) -> Tensor:
        """Return the points at positions `(n, d)` counted in cells from the lower end."""


@dataclass(frozen=True)
class EvenAxes(Axes):
    """Cells of one width from `low` to `high`, both `(d,)`."""

    low: Tensor
    high: Tensor
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count,) * len(self.low)

    @property
    def width(self) -> Tensor:
        """Of a cell along each axis, `(d,)`."""
        return (self.high - self.low) / self.count

    def centres(self) -> Tensor:
        ticks = torch.arange(self.count, dtype=torch.float64) + 0.5
        return product([a + w * ticks for a, w in zip(self.low, self.width)])

    def log_volumes(self) -> Tensor:
        return self.width.log().sum()

    def at(self, position: Tensor) -> Tensor:
        return self.low + position * self.width


_GAUSS = 1 / math.sqrt(3)  # of half a cell: where two points integrate cubics exactly (Gauss-Legendre)


@dataclass(frozen=True)
class EdgedAxes(Axes):
    """Cells between `edges`, for each axis `(2 n + 1,)`, rising: the halves of n intervals.

    The densities of both halves are taken at the interval's two Gauss points, which have equal weights: the sum over
    cells is then exact to fourth order in their widths, not only to second.
    """

    edges: Sequence[Tensor]

    @classmethod
    def halving(cls, intervals: Sequence[Tensor]) -> EdgedAxes:
        """Return the halves of intervals, given by their edges `(n + 1,)`, of each axis."""
        return cls([torch.cat([_woven(ends[:-1], middles(ends)), ends[-1:]]) for ends in intervals])

    def wider(self) -> EdgedAxes:
        """Return axes of cells twice as wide, but for a last one."""
        return EdgedAxes.halving([torch.cat([edges[:-1:4], edges[-1:]]) for edges in self.edges])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(edges) - 1 for edges in self.edges)

    def centres(self) -> Tensor:
        return product([_gauss_points(edges[::2]) for edges in self.edges])

    def log_volumes(self) -> Tensor:
        return product([edges.diff().log() for edges in self.edges]).sum(-1)

    def at(self, position: Tensor) -> Tensor:
        columns = []
        for edges, place in zip(self.edges, position.T, strict=True):
            cell = place.long().clamp(0, len(edges) - 2)
            columns.append(edges[cell] + (place - cell) * edges.diff()[cell])
        return torch.stack(columns, -1)


def middles(edges: Tensor) -> Tensor:
    """Return the middles between neighbours, `(n + 1,) -> (n,)`."""
    return 0.5 * (edges[1:] + edges[:-1])


def _gauss_points(ends: Tensor) -> Tensor:
    """Return two points of each interval, `(n + 1,) -> (2 n,)`."""
    away = 0.5 * _GAUSS * ends.diff()
    return _woven(middles(ends) - away, middles(ends) + away)


def _woven(a: Tensor, b: Tensor) -> Tensor:
    """Return a_0, b_0, a_1, b_1, ..."""
    return torch.stack([a, b], -1).flatten()


def product(axes: Sequence[Tensor]) -> Tensor:
    """Return all combinations of the axes' values, `(n^d, d)`."""
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
