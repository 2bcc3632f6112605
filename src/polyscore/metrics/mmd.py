"""Unbiased MMD^2 with a Gaussian kernel (Gretton et al. 2012).

    MMD^2 = mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean_{i, j} k(x_i, y_j),

with k(x, y) = exp(-gamma |x - y|^2) and gamma = 1 / (2 med^2), med the median of the *cross* distances. The U-statistic
may be negative: it is centred on 0 for equal distributions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.devices import on_cpu
from polyscore.errors import is_finite, require, shorten
from polyscore.metrics._points import pair

_CHUNK_NUMBERS = 1 << 24
_MOST_PAIRS = 10**13  # a day of one core


@on_cpu
def mmd2(x: Any, y: Any, gamma: float | None = None) -> float:
    """Return the unbiased MMD^2 between two point sets; `gamma` from the median heuristic unless given.

    Args:
        x, y: points `(n, *event)` and `(m, *event)`, two or more of each.
        gamma: kernel rate, positive.
    """
    x, y = pair(x, y, least=2)
    n, m = len(x), len(y)
    require(max(n, m) ** 2 <= _MOST_PAIRS, "mmd2", f"compare at most {_MOST_PAIRS:.0e} pairs", f"{n} and {m} points",
            "Take random subsets.")  # fmt: skip
    if gamma is None:
        median = _median_distance(x, y)
        require(median > 0, "the median cross distance", "be positive", median, "Pass gamma= for degenerate sets.")
        gamma = 1 / (2 * median**2)
    require(is_finite(gamma) and gamma > 0, "gamma", "be positive and finite", shorten(gamma),
            "Leave it out for the median heuristic.")  # fmt: skip
    gamma = float(gamma)
    within_x = (_kernel_sum(x, x, gamma) - n) / (n * (n - 1))
    within_y = (_kernel_sum(y, y, gamma) - m) / (m * (m - 1))
    return within_x + within_y - 2 * _kernel_sum(x, y, gamma) / (n * m)


def _blocks(x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Yield the squared distances of all pairs, block by block, in bounded memory."""
    for columns in y.split(_CHUNK_NUMBERS):
        for rows in x.split(max(1, _CHUNK_NUMBERS // len(columns))):
            yield _squared_distances(rows, columns)


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
    for squared in _blocks(x, y):
        total += squared.mul_(-gamma).exp_().sum(dtype=torch.float64)
    return total.item()


def _median_distance(x: Tensor, y: Tensor) -> float:
    """Median of all cross distances, the mean of the middle two where their number is even (as NumPy does)."""
    count = len(x) * len(y)
    ranks = [(count - 1) // 2, count // 2]
    if count > _CHUNK_NUMBERS * 8:
        middle = _ranked(x, y, ranks)
    else:
        squared = torch.cat([block.flatten() for block in _blocks(x, y)])
        ordered = squared.sort().values if squared.is_cuda else torch.from_numpy(np.partition(squared.numpy(), ranks))
        middle = ordered[ranks]
    return middle.sqrt().double().mean().item()


def _ranked(x: Tensor, y: Tensor, ranks: Sequence[int]) -> Tensor:
    """Return the squared distances of these ranks exactly, without holding all: a radix search over their bits.

    Floats of one sign are ordered like the integers that their bits spell, so 16 bits more are known after every pass
    that counts the distances with the bits known so far.
    """
    integer = torch.int32 if x.dtype == torch.float32 else torch.int64
    found, left = [0] * len(ranks), list(ranks)
    for shift in range(8 * x.dtype.itemsize - 16, -1, -16):
        counts = _counts(x, y, integer, shift, set(found))
        for i, prefix in enumerate(found):
            digit = int(torch.searchsorted(counts[prefix], left[i], right=True))
            left[i] -= int(counts[prefix][digit - 1]) if digit else 0
            found[i] = prefix << 16 | digit
    return torch.tensor(found, dtype=integer).view(x.dtype)


def _counts(x: Tensor, y: Tensor, integer: torch.dtype, shift: int, prefixes: set[int]) -> dict[int, Tensor]:
    """Return for each prefix the cumulated counts of the next 16 bits among the distances that begin with it."""
    counts = {prefix: torch.zeros(1 << 16, dtype=torch.long, device=x.device) for prefix in prefixes}
    for block in _blocks(x, y):
        digits = block.view(integer).flatten() >> shift
        for prefix, histogram in counts.items():
            inside = digits if shift + 16 == 8 * x.dtype.itemsize else digits[digits >> 16 == prefix]
            histogram += torch.bincount(inside & 0xFFFF, minlength=1 << 16)
    return {prefix: histogram.cumsum(0).cpu() for prefix, histogram in counts.items()}
