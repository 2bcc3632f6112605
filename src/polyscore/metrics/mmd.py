"""Unbiased MMD^2 with a Gaussian kernel (Gretton et al. 2012).

    MMD^2 = mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean_{i, j} k(x_i, y_j),

with k(x, y) = exp(-gamma |x - y|^2) and gamma = 1 / (2 med^2), med the median of the *cross* distances. The U-statistic
may be negative: it is centred on 0 for equal distributions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyscore.errors import require
from polyscore.metrics._points import pair

_CHUNK_NUMBERS = 1 << 24


def mmd2(x: Any, y: Any, gamma: float | None = None) -> float:
    """Return the unbiased MMD^2 between two point sets; `gamma` from the median heuristic unless given.

    Args:
        x, y: points `(n, *event)` and `(m, *event)`, two or more of each.
        gamma: kernel rate, positive.
    """
    x, y = pair(x, y, least=2)
    if gamma is None:
        median = _median_distance(x, y)
        require(median > 0, "the median cross distance", "be positive", median, "Pass gamma= for degenerate sets.")
        gamma = 1 / (2 * median**2)
    require(gamma > 0, "gamma", "be positive", gamma)
    n, m = len(x), len(y)
    within_x = (_kernel_sum(x, x, gamma) - n) / (n * (n - 1))
    within_y = (_kernel_sum(y, y, gamma) - m) / (m * (m - 1))
    return within_x + within_y - 2 * _kernel_sum(x, y, gamma) / (n * m)


def _rows(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.split(max(1, _CHUNK_NUMBERS // len(y)))


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_i - y_j|^2 by direct differences: the expanded form cancels for near points, which is where k matters."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _kernel_sum(x: Tensor, y: Tensor, gamma: float) -> float:
    """Sum of k over all pairs, accumulated in float64."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for rows in _rows(x, y):
        total += _squared_distances(rows, y).mul_(-gamma).exp_().sum(dtype=torch.float64)
    return total.item()


def _median_distance(x: Tensor, y: Tensor) -> float:
    """Median of all cross distances, the mean of the middle two where their number is even (as NumPy does)."""
    distances = torch.cat([_squared_distances(rows, y).flatten() for rows in _rows(x, y)])
    count = distances.numel()
    low = distances.kthvalue((count + 1) // 2).values
    if count % 2:
        return low.sqrt().item()
    above = distances.kthvalue(count // 2 + 1).values
    return (0.5 * (low.sqrt() + above.sqrt())).item()
