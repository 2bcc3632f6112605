"""The data of many models, checked and stacked: a fixed pool of points per model and condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.errors import ArgumentError, check_conditions, require

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Pools:
    """Pools of M models over the same conditions.

    Attributes:
        conditions: their names, in order.
        points: `(M, A, most, d)`, padded with zeros beyond each pool's size.
        sizes: `(M, A)`.
        shift, scale: `(M, d)`, of the standardisation; 0 and 1 without.
    """

    conditions: list[str]
    points: Tensor
    sizes: Tensor
    shift: Tensor
    scale: Tensor

    @property
    def dim(self) -> int:
        """Dimension of one point."""
        return self.points.shape[-1]


def stack_pools(datasets: Sequence[Data], standardise: bool) -> Pools:
    """Check every pool and return them stacked."""
    require(len(datasets) >= 1, "datasets", "hold at least one", 0)
    conditions = list(datasets[0])
    require(conditions, "data", "hold at least one condition", "none")
    check_conditions(conditions)
    for data in datasets:
        require(list(data) == conditions, "all models", f"have the conditions {conditions}", list(data))
    which = [f" in dataset {m}" if len(datasets) > 1 else "" for m in range(len(datasets))]
    pools = [
        [_points(f"the data of {name!r}{where}", data[name]) for name in conditions]
        for where, data in zip(which, datasets, strict=True)
    ]
    for m, row in enumerate(pools):
        dims = {name: pool.shape[1] for name, pool in zip(conditions, row, strict=True)}
        if set(dims.values()) != {pools[0][0].shape[1]}:
            where = f" in dataset {m}, where the first has {pools[0][0].shape[1]}" if m else ""
            raise ArgumentError(
                f"all conditions must have one dimension; got {dims}{where}. Select the same columns for each."
            )
    moments = [_moments(torch.cat(row), standardise) for row in pools]
    most = max(len(pool) for row in pools for pool in row)
    points = torch.zeros(len(pools), len(conditions), most, pools[0][0].shape[1], dtype=torch.float32)
    for m, row in enumerate(pools):
        for a, (name, pool) in enumerate(zip(conditions, row, strict=True)):
            points[m, a, : len(pool)] = _single((pool - moments[m][0]) / moments[m][1], name)
    sizes = torch.tensor([[len(pool) for pool in row] for row in pools])
    shift, scale = (torch.stack(column) for column in zip(*moments, strict=True))
    return Pools(conditions, points, sizes, shift, scale)


def _points(subject: str, data: Any) -> Tensor:
    """Return one pool as float64 `(n, d)` on the CPU, or say which row is bad."""
    try:
        points = data.detach().cpu() if isinstance(data, Tensor) else torch.from_numpy(_array(data))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"{subject} must be an array of numbers (n, d); got {type(data).__name__}. Convert it with numpy."
        ) from error
    require(not points.is_complex(), subject, "be real numbers", points.dtype, "Pass real and imaginary parts apart.")
    require(points.ndim == 2, subject, "be a matrix (n, d)", f"shape {tuple(points.shape)}",
            "Reshape a vector with data[:, None].")  # fmt: skip
    require(len(points) >= 2 and points.shape[1] >= 1, subject, "hold two points or more",
            f"{len(points)} rows, {points.shape[1]} columns")  # fmt: skip
    points = points.double()
    bad = (~points.isfinite()).any(1).nonzero().flatten()
    require(not len(bad), subject, "be finite",
            f"{len(bad)} rows with NaN or infinity, the first is row {bad[0].item() if len(bad) else 0}",
            "Drop or impute them.")  # fmt: skip
    return points


def _array(data: Any) -> np.ndarray[Any, Any]:
    """Return anything array-like as numbers; masked entries are missing ones."""
    if np.ma.isMaskedArray(data):
        return np.ma.filled(np.ma.asarray(data, dtype=np.float64), np.nan)
    return np.array(data, dtype=np.complex128 if np.iscomplexobj(data) else np.float64)


def _single(points: Tensor, name: str) -> Tensor:
    """Return points in float32, in which networks compute, if they have a size there."""
    single = points.float()
    lost = bool(single.isinf().any()) or (bool(points.any()) and not bool(single.any()))
    require(not lost, f"the data of {name!r}", "fit float32", f"values up to {points.abs().max().item():.3g}",
            "Pass standardise=True.")  # fmt: skip
    return single


def _moments(points: Tensor, standardise: bool) -> tuple[Tensor, Tensor]:
    """Return the shift and scale of a model's data; a constant column keeps its scale."""
    shift, scale = torch.zeros(points.shape[1], dtype=torch.float64), torch.ones(points.shape[1], dtype=torch.float64)
    if not standardise:
        return shift, scale
    spread = points.std(0)
    return points.mean(0), torch.where(spread > 0, spread, scale)
