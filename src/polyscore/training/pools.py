"""The data of many models, checked and stacked: a fixed pool of points per model and condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.data.frames import is_frame
from polyscore.errors import ArgumentError, check_conditions, require
from polyscore.models.units import Units
from polyscore.training.bending import bent_units

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Pools:
    """Pools of M models over the same conditions.

    Attributes:
        conditions: their names, in order.
        points: `(M, A, most, d)`, padded with zeros beyond each pool's size.
        sizes: `(M, A)`.
        units: of each model's standardisation, bent where that is called for; None without.
        variables: names of the columns, where the data had them.
    """

    conditions: list[str]
    points: Tensor
    sizes: Tensor
    units: list[Units | None]
    variables: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """Dimension of one point."""
        return self.points.shape[-1]


def stack_pools(datasets: Sequence[Data], standardise: bool, bend: bool | str = False) -> Pools:
    """Check every pool and return them stacked, standardised and bent as a recipe asks."""
    conditions = _common_conditions(datasets)
    which = [f" in dataset {m}" if len(datasets) > 1 else "" for m in range(len(datasets))]
    pools = [
        [_points(f"the data of {name!r}{where}", data[name]) for name in conditions]
        for where, data in zip(which, datasets, strict=True)
    ]
    _check_dimensions(conditions, pools)
    units: list[Units | None] = [Units(*_moments(torch.cat(row))) if standardise else None for row in pools]
    known: dict[int, Units] = {}  # the same data are bent alike, and once: an ensemble lives in one place
    for m, (data, own) in enumerate(zip(datasets, units, strict=True)):
        if bend and own is not None:
            units[m] = known[id(data)] = known.get(id(data)) or bent_units(pools[m], own, bend)
    sizes = torch.tensor([[len(pool) for pool in row] for row in pools])
    points = torch.zeros(*sizes.shape, int(sizes.max()), pools[0][0].shape[1], dtype=torch.float32)
    for m, (row, own) in enumerate(zip(pools, units, strict=True)):
        for a, (name, pool) in enumerate(zip(conditions, row, strict=True)):
            points[m, a, : len(pool)] = _single(pool if own is None else own.standardise(pool), name)
    return Pools(conditions, points, sizes, units, _common_names(datasets))


def _common_conditions(datasets: Sequence[Data]) -> list[str]:
    """Return the conditions of all models, which must agree."""
    require(len(datasets) >= 1, "datasets", "hold at least one", 0, "Pass a list of mappings.")
    for data in datasets:
        require(isinstance(data, Mapping), "data", "map conditions to points", type(data).__name__,
                "Write {'control': points, ...}, or fit(frame_or_file, condition_column=...).")  # fmt: skip
    conditions = list(datasets[0])
    require(conditions, "data", "hold at least one condition", "none", "Write {'control': points, ...}.")
    check_conditions(conditions)
    for data in datasets:
        require(list(data) == conditions, "all models", f"have the conditions {conditions}", list(data),
                "Give every dataset the same conditions, in one order.")  # fmt: skip
    return conditions


def _check_dimensions(conditions: list[str], pools: list[list[Tensor]]) -> None:
    for m, row in enumerate(pools):
        dims = {name: pool.shape[1] for name, pool in zip(conditions, row, strict=True)}
        if set(dims.values()) != {pools[0][0].shape[1]}:
            where = f" in dataset {m}, where the first has {pools[0][0].shape[1]}" if m else ""
            raise ArgumentError(
                f"all conditions must have one dimension; got {dims}{where}. Select the same columns for each."
            )


def _common_names(datasets: Sequence[Data]) -> tuple[str, ...]:
    """Return the names of the columns: a table's own, or those of frames, which must agree."""
    if own := getattr(datasets[0], "variables", ()):
        return tuple(own)
    named = [
        (name, tuple(map(str, pool.columns))) for data in datasets for name, pool in data.items() if is_frame(pool)
    ]
    if len(named) < sum(map(len, datasets)):
        return ()
    first, names = named[0]
    for name, other in named:
        require(other == names, "all conditions", "have the same columns in one order",
                f"{first!r} has {', '.join(names)[:200]}; {name!r} has {', '.join(other)[:200]}",
                "Select them: frame[[...]].")  # fmt: skip
    require(len(set(names)) == len(names) and all(names), "columns", "have different names", ", ".join(names)[:200],
            "Rename them.")  # fmt: skip
    return names


def _points(subject: str, data: Any) -> Tensor:
    """Return one pool as float64 `(n, d)` on the CPU, or say what is wrong with it, and where."""
    points = _tensor(subject, data)
    require(points.ndim == 2, subject, "be a matrix (n, d)", f"shape {tuple(points.shape)}",
            "Reshape a vector with data[:, None].")  # fmt: skip
    require(len(points) >= 2 and points.shape[1] >= 1, subject, "hold two points or more",
            f"{len(points)} rows, {points.shape[1]} columns", "Add rows, or leave the condition out.")  # fmt: skip
    bad = (~points.isfinite()).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise ArgumentError(
            f"{subject} must be finite; got {len(bad[:, 0].unique())} rows with NaN or infinity, the first is row "
            f"{row}, column {_column(data, column)}. Drop or impute them."
        )
    return points


def _tensor(subject: str, data: Any) -> Tensor:
    """Return real numbers as float64; text, dates, truth values and complex numbers are none."""
    if isinstance(data, Tensor):
        require(data.layout == torch.strided, subject, "be a dense tensor", data.layout, "Call data.to_dense().")
        data = data.detach().cpu()
        if data.dtype != torch.bool and not data.is_complex() and not data.is_quantized:
            return data.double()
        kind = str(data.dtype)
    else:
        array = _array(subject, data)
        if array.dtype.kind in "iuf":
            return torch.from_numpy(np.array(array, dtype=np.float64))
        kind = "text" if array.dtype.kind in "US" else str(array.dtype)
    raise ArgumentError(f"{subject} must be real numbers; got {kind}. {_REMEDIES.get(kind.split('[')[0], _CONVERT)}")


_CONVERT = "Convert it: np.asarray(data, dtype=float)."
_REMEDIES = {
    "datetime64": "Subtract a date and divide by a unit of time.",
    "timedelta64": "Divide by a unit of time.",
    **dict.fromkeys(("complex64", "complex128", "clongdouble", "torch.complex64", "torch.complex128"),
                    "Pass real and imaginary parts apart."),
    **dict.fromkeys(("bool", "torch.bool"), "Convert it with astype(float), if 0 and 1 are meant as positions."),
}  # fmt: skip


def _array(subject: str, data: Any) -> np.ndarray[Any, Any]:
    """Return anything array-like; masked entries and a frame's missing ones are NaN."""
    try:
        if np.ma.isMaskedArray(data):
            return np.ma.filled(np.ma.asarray(data, dtype=np.float64), np.nan)
        if is_frame(data):
            return _frame_numbers(subject, data)
        return np.asarray(data)
    except ArgumentError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(
            f"{subject} must be an array of numbers (n, d); got {type(data).__name__}. Convert it with numpy."
        ) from error


def _frame_numbers(subject: str, frame: Any) -> np.ndarray[Any, Any]:
    """Return a frame's columns as float64 `(n, d)`, missing ones NaN; every column must hold numbers."""
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        require(getattr(dtype, "kind", "O") in "iuf", subject, "hold numbers in every column", f"{dtype} in {name!r}",
                "Select numeric ones, or name that of the conditions: fit(frame, condition_column=...).")  # fmt: skip
    return frame.to_numpy(dtype=np.float64, na_value=np.nan)


def _column(data: Any, index: int) -> str:
    return repr(str(data.columns[index])) if is_frame(data) else str(index)


def _single(points: Tensor, name: str) -> Tensor:
    """Return points in float32, in which networks compute, if they have a size there."""
    single = points.float()
    lost = bool(single.isinf().any()) or (bool(points.any()) and not bool(single.any()))
    require(not lost, f"the data of {name!r}", "fit float32", f"values up to {points.abs().max().item():.3g}",
            "Pass standardise=True.")  # fmt: skip
    return single


def _moments(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shift and scale of a model's data; a constant column keeps its scale."""
    # The mean of equal numbers is off by rounding, which is no deviation.
    middle, deviation, constant = points.mean(0), points.std(0), (points == points[0]).all(0)
    good = constant | (deviation.isfinite() & (deviation > 0))
    require(good.all(), "data", "have a standard deviation in float64", f"values up to {points.abs().max().item():.3g}",
            "Change their unit.")  # fmt: skip
    return torch.where(constant, points[0], middle), torch.where(constant, 1.0, deviation)
