"""Unbiased MMD^2 with a Gaussian kernel (Gretton et al. 2012).

    MMD^2 = mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean_{i, j} k(x_i, y_j),

with k(x, y) = exp(-gamma |x - y|^2) and gamma = 1 / (2 med^2), med the median of the *cross* distances. The U-statistic
may be negative: it is centred on 0 for equal distributions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
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
    if x.shape[1] > 16:
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_()
    total = (x[:, :1] - y[:, 0]).square_()
    for k in range(1, x.shape[1]):
        difference = x[:, k : k + 1] - y[:, k]
        total.addcmul_(difference, difference)
    return total


def _kernel_sum(x: Tensor, y: Tensor, gamma: float) -> float:
    """Sum of k over all pairs, accumulated in float64."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for rows in _rows(x, y):
        total += _squared_distances(rows, y).mul_(-gamma).exp_().sum(dtype=torch.float64)
    return total.item()


def _median_distance(x: Tensor, y: Tensor) -> float:
    """Median of all cross distances, the mean of the middle two where their number is even (as NumPy does)."""
    count = len(x) * len(y)
    if count > _CHUNK_NUMBERS * 8:
        return _median_by_bisection(x, y)
    squared = torch.cat([_squared_distances(rows, y).flatten() for rows in _rows(x, y)])
    if squared.is_cuda:
        middle = squared.sort().values[(count - 1) // 2 : count // 2 + 1]
    else:
        array = np.partition(squared.numpy(), [(count - 1) // 2, count // 2])
        middle = torch.from_numpy(array[(count - 1) // 2 : count // 2 + 1])
    return middle.sqrt().double().mean().item()


def _median_by_bisection(x: Tensor, y: Tensor) -> float:
    """The lower median to float32 precision without holding all distances: 40 counting passes."""
    low, high = 0.0, max(_squared_distances(rows, y).max().item() for rows in _rows(x, y))
    for _ in range(40):
        middle = 0.5 * (low + high)
        below = sum(int((_squared_distances(rows, y) <= middle).sum()) for rows in _rows(x, y))
        low, high = (low, middle) if below * 2 >= len(x) * len(y) else (middle, high)
    return math.sqrt(high)
