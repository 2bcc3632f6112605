"""Sliced Wasserstein-2: the root mean square, over directions on the sphere, of the one-dimensional W2.

In one dimension W2^2 is the integral over u of (F^-1(u) - G^-1(u))^2: sorting, and for unequal sizes a merge of the two
quantile grids. Bonneel et al. (2015); POT computes the same number for the same projections.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.devices import on_cpu, without_autocast
from polyscore.errors import is_count, require
from polyscore.limits import require_memory
from polyscore.metrics._points import pair
from polyscore.rng import generator

_CHUNK_NUMBERS = 1 << 24


@on_cpu
def sliced_wasserstein(x: Any, y: Any, projections: int = 2000, seed: int = 0) -> float:
    """Return the sliced W2 distance between two point sets.

    Args:
        x, y: points `(n, *event)` and `(m, *event)`; sizes may differ.
        projections: number of random directions, the same for the same seed and dimension.
        seed: of the directions.
    """
    require(is_count(projections), "projections", "be a whole number, at least 1", projections,
            "Leave it out for 2000.")  # fmt: skip
    x, y = _centred(*pair(x, y, least=1))
    require_memory(24 * x.shape[1] * int(projections), f"{projections} projections", "Use fewer.")
    directions = random_directions(x.shape[1], projections, seed).to(x)
    chunk = max(1, _CHUNK_NUMBERS // (len(x) + len(y)))
    with without_autocast(x.device):
        squared = [_squared_w2(x @ part, y @ part) for part in directions.split(chunk, dim=1)]
    return torch.cat(squared).double().mean().sqrt().item()


def _centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Move both sets to the origin where they are far from it: a shift of both changes no distance, but digits."""
    centre = 0.5 * (x.double().mean(0) + y.double().mean(0))
    reach = max((points.double() - centre).abs().max().item() for points in (x, y))
    far = centre.abs().max().item() > 16 * reach
    return ((x.double() - centre).to(x), (y.double() - centre).to(y)) if far else (x, y)


def random_directions(dim: int, count: int, seed: int) -> Tensor:
    """Return `count` unit vectors as columns, `(dim, count)`, float64: drawn on the CPU so that devices agree."""
    normals = torch.randn(dim, count, generator=generator(seed, "projections"), dtype=torch.float64)
    return normals / normals.norm(dim=0)


def _sorted(rows: Tensor) -> Tensor:
    """Sort along the last axis; on a CPU by NumPy, whose sort is vectorised and eight times as fast."""
    if rows.is_cuda:
        return rows.contiguous().sort(-1).values
    return torch.from_numpy(np.sort(rows.contiguous().numpy(), axis=-1))


def _squared_w2(x: Tensor, y: Tensor) -> Tensor:
    """One-dimensional W2^2 of each column pair, `(n, p), (m, p) -> (p,)`."""
    x, y = _sorted(x.T), _sorted(y.T)
    n, m = x.shape[-1], y.shape[-1]
    if n == m:
        return (x - y).square().mean(-1)
    # Both quantile functions are constant between consecutive points of the merged grids i/n and j/m.
    grid = torch.cat([torch.arange(1, n + 1, dtype=torch.float64) / n, torch.arange(1, m + 1, dtype=torch.float64) / m])
    ends = grid.unique()
    widths = torch.diff(ends, prepend=ends.new_zeros(1))
    middle = ends - 0.5 * widths
    at_x, at_y = (middle * n).long().clamp_max(n - 1), (middle * m).long().clamp_max(m - 1)
    gaps = x[:, at_x.to(x.device)] - y[:, at_y.to(y.device)]
    return gaps.square() @ widths.to(gaps)
