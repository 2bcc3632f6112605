"""A function of the plane by cubic spline: as few nodes as a CPU can do with.

The grid is that of `plane`, even in u = asinh((x - median) / (3/2 quartile range)), from the smallest to the largest
point. Through the values of m x m nodes goes the spline with continuous third derivatives next to its ends ("not a
knot"), of fourth order like Lagrange's cubics but with an error nine times smaller: 3/128 h^4 against 1/384 h^4 of the
fourth derivative. Its coefficients are M V M' with one matrix M a size; a point reads 4 x 4 of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyscore.nn.fast.plane import Nodes

# Points whose quartiles make a grid: to sort all of them took longer than to read them.
_SORTED = 512

# From 1, f, f^2, f^3 to the weights of the four uniform cubic B-splines around a point, f nodes beyond the second.
_WEIGHTS = torch.tensor([[1, 4, 1, 0], [-3, 0, 3, 0], [3, -6, 3, 0], [-1, 3, -3, 1]], dtype=torch.float64,
                        device="cpu") / 6  # fmt: skip

# The same for each of 4 x 4 nodes: those of its row, and those of its column.
_BY_ROW, _BY_COLUMN = _WEIGHTS.repeat_interleave(4, 1), _WEIGHTS.repeat(1, 4)


class Grid(NamedTuple):
    """Nodes 0..side-1 along each coordinate; `nodes` holds where they are."""

    nodes: Nodes
    side: int

    @classmethod
    def around(cls, x: Tensor, side: int) -> Grid:
        """Return the grid of points `(B, 2)`."""
        return cls(Nodes.around(x, side + 2, _SORTED), side)

    def points(self) -> Tensor:
        """Return where all nodes are, `(side ** 2, 2)`, the second coordinate running fastest."""
        return self.nodes.points(self.side + 2).view(self.side + 2, -1, 2)[1:-1, 1:-1].reshape(-1, 2)

    def positions(self, x: Tensor) -> Tensor:
        """Return where points `(B, 2)` lie, in nodes, the first at 1; `(2, B)`."""
        centre, scale, low, step = (part[:, None] for part in self.nodes)
        return _asinh((x.T.contiguous() - centre).div_(scale)).sub_(low).div_(step).add_(1)

    def table(self, values: Tensor) -> Table:
        """Return the spline through values at the nodes, `(A, side ** 2, C)`."""
        conditions, _, channels = values.shape
        matrix, across = _coefficients(self.side).to(values), conditions * channels
        along_one = matrix @ values.transpose(0, 1).reshape(self.side, -1)
        every = matrix @ along_one.view(-1, self.side, across)
        return Table(self.side + 2, every.view(-1, across), conditions)


class Table(NamedTuple):
    """Coefficients of a spline, `(across ** 2, A C)`."""

    across: int
    coefficients: Tensor
    conditions: int

    def at(self, position: Tensor) -> Tensor:
        """Return the values at points of known positions in the grid, `(2, B) -> (A, B, C)`."""
        # Clamped as whole numbers: a point that is not finite must not become an address.
        corner = position.floor().int().clamp_(1, self.across - 3)
        index = torch.arange(4, dtype=torch.int32)
        around = (index[:, None] * self.across + index).flatten() - (self.across + 1)
        result = nn.functional.embedding_bag(
            torch.add(corner[1], corner[0], alpha=self.across)[:, None] + around,
            self.coefficients,
            per_sample_weights=_weights(position - corner),
            mode="sum",
        )
        return result.view(-1, self.conditions, result.shape[1] // self.conditions).transpose(0, 1)


def _asinh(z: Tensor) -> Tensor:
    """asinh |z| = log(|z| + sqrt(z^2 + 1)), off by 2.4e-7 at most, in a seventh of the time of `torch.asinh`."""
    size = z.abs()
    return (size * size).add_(1).sqrt_().add_(size).log_().copysign_(z)


def _weights(f: Tensor) -> Tensor:
    """Weights of the 4 x 4 nodes around points, 0 <= f <= 1 beyond the second each way, `(2, B) -> (B, 16)`."""
    powers = torch.stack([torch.ones_like(f), f, f * f, f * f * f], 1)  # (2, 4, B)
    by_row, by_column = _BY_ROW.to(f), _BY_COLUMN.to(f)
    return (powers[0].T @ by_row).mul_(powers[1].T @ by_column)


@lru_cache(maxsize=32)
def _coefficients(side: int) -> Tensor:
    """From values at `side` nodes to the `side + 2` coefficients of the spline through them, float64."""
    across = side + 2
    system = torch.zeros(across, across, dtype=torch.float64)
    for k in range(side):
        system[k + 1, k : k + 3] = torch.tensor([1.0, 4.0, 1.0], dtype=torch.float64) / 6
    ends = torch.tensor([1.0, -4.0, 6.0, -4.0, 1.0], dtype=torch.float64)
    system[0, :5], system[-1, -5:] = ends, ends
    return torch.linalg.inv(system)[:, 1:-1]
