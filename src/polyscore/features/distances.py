"""Distances between two sets of features: of their Gaussians (Fréchet), and by a polynomial kernel.

**Fréchet**, squared, between the Gaussians of two sets with means m and covariances C = X'X, X the centred rows over
the root of n - 1:

    |m_a - m_b|^2 + tr C_a + tr C_b - 2 tr (C_a C_b)^(1/2),

where the last trace is the sum of the singular values of X_a X_b': no root of a matrix is taken, and sets of fewer rows
than features are as exact as any. *The estimate is biased upwards*, by about c / n: compare numbers of the same n only,
or ask for the `extrapolated` one, 2 F(n) - F(n / 2), in which c cancels (Chong and Forsyth 2020 fit the same line).

**Kernel**: the unbiased MMD^2 with k(x, y) = (<x, y> / d + 1)^3 (Binkowski et al. 2018). Centred on 0 for equal
distributions at any n, so the one to use for a few hundred pictures; it may be negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.devices import on_cpu
from polyscore.errors import ArgumentError, is_count, require
from polyscore.rng import generator

_BLOCK = 4096
_MOST_SPLITS = 1000


@on_cpu
def frechet(a: Any, b: Any, *, extrapolated: bool = False, splits: int = 4, seed: int = 0) -> float:
    """Return the squared Fréchet distance between the Gaussians of two sets of features.

    Args:
        a, b: (n, d) and (m, d), two or more rows each; four or more to extrapolate.
        extrapolated: to infinitely many rows, from the whole sets and their halves; may be slightly negative.
        splits: into random halves, over which F(n / 2) is averaged.
        seed: of those splits.
    """
    require(is_count(splits) and splits <= _MOST_SPLITS, "splits",
            f"be a whole number of at least 1, and at most {_MOST_SPLITS}", splits,
            "Leave it out for the default.")  # fmt: skip
    a, b = _pair(a, b, least=4 if extrapolated else 2)
    whole = _frechet(a, b)
    if not extrapolated:
        return whole
    halves = [_frechet(*pair) for split in range(splits) for pair in _halves(a, b, seed, split)]
    return 2 * whole - float(np.mean(halves))


def _frechet(a: Tensor, b: Tensor) -> float:
    x, y = _root(a), _root(b)
    between = (a.mean(0) - b.mean(0)).square().sum()
    common = torch.linalg.svdvals(x @ y.T).sum()
    return float(between + x.square().sum() + y.square().sum() - 2 * common)


def _root(points: Tensor) -> Tensor:
    """A matrix X of at most d rows with X'X the covariance."""
    x = (points - points.mean(0)) / (len(points) - 1) ** 0.5
    return torch.linalg.qr(x, mode="r").R if len(x) > x.shape[1] else x


def _halves(a: Tensor, b: Tensor, seed: int, split: int) -> list[tuple[Tensor, Tensor]]:
    def cut(x: Tensor, which: str) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(x), generator=generator(seed, "frechet", split, which)).to(x.device)
        return x[order[: len(x) // 2]], x[order[len(x) // 2 : len(x) // 2 * 2]]

    return list(zip(cut(a, "a"), cut(b, "b"), strict=True))


@on_cpu
def kernel_distance(a: Any, b: Any) -> float:
    """Return the unbiased MMD^2 of two sets of features (n, d) and (m, d) with a cubic kernel; n, m at least 2."""
    a, b = _pair(a, b, least=2)
    n, m = len(a), len(b)
    within = (_kernel_sum(a, a) - _diagonal(a)) / (n * (n - 1)) + (_kernel_sum(b, b) - _diagonal(b)) / (m * (m - 1))
    return within - 2 * _kernel_sum(a, b) / (n * m)


def _kernel_sum(x: Tensor, y: Tensor) -> float:
    blocks = ((rows @ columns.T / x.shape[1] + 1) ** 3 for rows in x.split(_BLOCK) for columns in y.split(_BLOCK))
    return float(sum(float(block.sum()) for block in blocks))


def _diagonal(x: Tensor) -> float:
    return float(((x.square().sum(1) / x.shape[1] + 1) ** 3).sum())


def _pair(a: Any, b: Any, least: int) -> tuple[Tensor, Tensor]:
    """Both sets in float64: traces of 1280 features cancel."""
    a, b = _rows("a", a, least), _rows("b", b, least)
    require(a.shape[1] == b.shape[1], "a and b", "have as many features", (a.shape[1], b.shape[1]),
            "Embed both alike.")  # fmt: skip
    return a, b.to(a.device)


def _rows(name: str, value: Any, least: int) -> Tensor:
    try:
        rows = (
            value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.require(value, requirements=["C", "W"]))
        ).double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"{name} must be an array of numbers; got {type(value).__name__}. Convert it with numpy."
        ) from error
    good = rows.ndim == 2 and len(rows) >= least and rows.shape[1] >= 1
    require(good, name, f"hold features in rows, (n, d), at least {least}", f"shape {tuple(rows.shape)}",
            "Pass features of more images, one a row.")  # fmt: skip
    require(rows.isfinite().all(), name, "be finite", f"{int((~rows.isfinite()).sum())} entries that are not",
            "Drop images without features.")  # fmt: skip
    return rows
