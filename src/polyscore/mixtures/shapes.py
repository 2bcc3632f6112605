"""Shapes that the covariances of a mixture may have: what the M-step makes of each component's scatter.

A shape with fewer numbers is known better. That matters more here than elsewhere: the precision of a composition is a
difference of precisions, N(0, 10) N(0, 1) / N(0, 1) has a tenth of what each of the two others has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """A family of covariances.

    Attributes:
        name: as it is shown.
        restrict: the most likely covariances `(M, d, d)` of the shape, for scatters `(M, d, d)` and shares `(M,)`.
        numbers: free numbers in M covariances of d dimensions.
    """

    name: str
    restrict: Callable[[Tensor, Tensor], Tensor]
    numbers: Callable[[int, int], int]


def _full(scatter: Tensor, shares: Tensor) -> Tensor:
    return scatter


def _diagonal(scatter: Tensor, shares: Tensor) -> Tensor:
    return torch.diag_embed(scatter.diagonal(dim1=-2, dim2=-1))


def _spherical(scatter: Tensor, shares: Tensor) -> Tensor:
    mean = scatter.diagonal(dim1=-2, dim2=-1).mean(-1)
    return mean[:, None, None] * torch.eye(scatter.shape[-1], dtype=scatter.dtype)


def _tied(inner: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """One covariance for all components: the shape of their mean scatter."""

    def restrict(scatter: Tensor, shares: Tensor) -> Tensor:
        mean = torch.einsum("m,mde->de", shares / shares.sum(), scatter)
        return inner(mean[None], shares).expand_as(scatter)

    return restrict


def _of_rank(rank: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Probabilistic principal components (Tipping & Bishop 1999): the largest variances, and one for all the rest."""

    def restrict(scatter: Tensor, shares: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(scatter)
        rest = values[:, :-rank].mean(-1, keepdim=True).expand_as(values[:, :-rank])
        kept = torch.cat([rest, values[:, -rank:]], -1)
        return (vectors * kept[:, None]) @ vectors.mT

    return restrict


SHAPES: tuple[Shape, ...] = (
    Shape("full", _full, lambda count, dim: count * dim * (dim + 1) // 2),
    Shape("diagonal", _diagonal, lambda count, dim: count * dim),
    Shape("spherical", _spherical, lambda count, dim: count),
    Shape("one full", _tied(_full), lambda count, dim: dim * (dim + 1) // 2),
    Shape("one diagonal", _tied(_diagonal), lambda count, dim: dim),
    Shape("one spherical", _tied(_spherical), lambda count, dim: 1),
)


def low_rank(rank: int) -> Shape:
    """Return the shape of `rank` free directions and one variance for all others."""
    return Shape(f"rank {rank}", _of_rank(rank),
                 lambda count, dim: count * (dim * rank - rank * (rank - 1) // 2 + 1))  # fmt: skip


def shapes_for(dim: int, count: int, points: float = math.inf) -> list[Shape]:
    """Return the shapes worth trying for `count` components: from ten dimensions on those of low rank as well.

    A single covariance has no prior, so none is tried of a rank that so few points span, or nearly: its likelihood has
    no bound, or a chance one.
    """
    kept = [shape for shape in SHAPES if count > 1 or not shape.name.startswith("one ")]
    kept = [shape for shape in kept if dim > 1 or shape.name in ("full", "one full")]
    ranks = [rank for rank in (1, 2, 4, 8, 16) if rank < dim // 2] if dim >= 10 else []
    if count == 1 and dim > 1 and points < 2 * (dim + 1):
        kept, ranks = kept[1:], [rank for rank in ranks if points >= 2 * (rank + 1)]
    return kept + [low_rank(rank) for rank in ranks]
