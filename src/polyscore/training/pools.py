"""The data of many models, checked and stacked: a fixed pool of points per model and condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    pools = [[_points(name, data[name]) for name in conditions] for data in datasets]
    for m, row in enumerate(pools):
        dims = {name: pool.shape[1] for name, pool in zip(conditions, row, strict=True)}
        if set(dims.values()) != {pools[0][0].shape[1]}:
            where = f" in dataset {m}, where the first has {pools[0][0].shape[1]}" if m else ""
            raise ArgumentError(
                f"all conditions must have one dimension; got {dims}{where}. Select the same columns for each."
            )
    moments = [_moments(torch.cat(row), standardise) for row in pools]
    most = max(len(pool) for row in pools for pool in row)
    points = torch.zeros(len(pools), len(conditions), most, pools[0][0].shape[1])
    for m, row in enumerate(pools):
        for a, pool in enumerate(row):
            points[m, a, : len(pool)] = (pool - moments[m][0]) / moments[m][1]
    sizes = torch.tensor([[len(pool) for pool in row] for row in pools])
    shift, scale = (torch.stack(column) for column in zip(*moments, strict=True))
    return Pools(conditions, points, sizes, shift, scale)


def _points(name: str, data: Any) -> Tensor:
    """Return one pool as float32 `(n, d)` on the CPU, or say which row is bad."""
    try:
        points = torch.as_tensor(data).detach().float().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"the data of {name!r} must be an array of numbers (n, d); got {type(data).__name__}."
        ) from error
    require(points.ndim == 2, f"the data of {name!r}", "be a matrix (n, d)", f"shape {tuple(points.shape)}",
            "Reshape a vector with data[:, None].")  # fmt: skip
    require(len(points) >= 2 and points.shape[1] >= 1, f"the data of {name!r}", "hold two points or more",
            f"{len(points)} rows, {points.shape[1]} columns")  # fmt: skip
    bad = (~points.isfinite()).any(1).nonzero().flatten()
    require(not len(bad), f"the data of {name!r}", "be finite",
            f"{len(bad)} rows with NaN or infinity, the first is row {bad[0].item() if len(bad) else 0}",
            "Drop or impute them.")  # fmt: skip
    return points


def _moments(points: Tensor, standardise: bool) -> tuple[Tensor, Tensor]:
    """Return the shift and scale of a model's data; a constant column keeps its scale."""
    dim = points.shape[1]
    if not standardise:
        return torch.zeros(dim), torch.ones(dim)
    scale = points.double().std(0).float()
    return points.double().mean(0).float(), torch.where(scale > 0, scale, torch.ones_like(scale))
