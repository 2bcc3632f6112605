"""Two point sets, checked: what both metrics ask of their input."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.errors import ArgumentError, require
from polyscore.limits import require_memory

_TINY = 1e-15  # below, a square leaves float32
_LARGEST = {torch.float32: 1e18, torch.float64: 1e150}


def pair(x: Any, y: Any, least: int) -> tuple[Tensor, Tensor]:
    """Return `x` and `y` as float matrices `(n, d)` and `(m, d)` on x's device, events flattened.

    They are float32 unless an input is float64, holds whole numbers (which float32 may round), or is so small that
    squares would vanish; what is so large that they would overflow has run away, and is refused.
    """
    x, y = _rows("x", x, least), _rows("y", y, least)
    require(x.shape[1] == y.shape[1], "x and y", "have the same dimension", (x.shape[1], y.shape[1]),
            "Compare points of the same variables.")  # fmt: skip
    dtype = torch.promote_types(_float(x.dtype), _float(y.dtype))
    require_memory(sum(points.numel() for points in (x, y)) * (dtype.itemsize + 1), "x and y", "Take subsets.")
    x, y = x.to(dtype), y.to(x.device, dtype)
    for name, points in (("x", x), ("y", y)):
        require(points.isfinite().all(), name, "be finite", f"{int((~points.isfinite()).sum())} non-finite entries",
                "Drop such points, or look at why a sampler made them.")  # fmt: skip
    largest = max(x.abs().max().item(), y.abs().max().item())
    require(largest < _LARGEST[dtype], "x and y", f"stay below {_LARGEST[dtype]:g} to be measured in {dtype}",
            f"{largest:.3g}", "Rescale both alike.")  # fmt: skip
    return (x, y) if largest == 0 or largest > _TINY else (x.double(), y.double())


def _rows(name: str, value: Any, least: int) -> Tensor:
    """Return points in rows, `(n, d)`, as they come."""
    if hasattr(value, "samples"):
        raise ArgumentError(f"{name} must be an array of numbers; got {type(value).__name__}. Pass its `.samples`.")
    try:
        points = (
            value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.require(value, requirements=["C", "W"]))
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"{name} must be an array of numbers; got {type(value).__name__}. Convert it with numpy."
        ) from error
    require(not points.is_complex(), name, "be real", points.dtype, "Stack real and imaginary parts.")
    require(points.ndim >= 2, name, "hold points in rows, (n, *event)", f"shape {tuple(points.shape)}",
            "Reshape a vector with x[:, None].")  # fmt: skip
    require(len(points) >= least, name, f"hold at least {least} points", len(points), "Draw more.")
    require(points.shape[1:].numel() >= 1, name, "have at least one coordinate", f"shape {tuple(points.shape)}",
            "Pass points with a column.")  # fmt: skip
    return points.flatten(1)


def _float(dtype: torch.dtype) -> torch.dtype:
    exact_in_float32 = dtype.is_floating_point or dtype.itemsize <= 2
    return torch.promote_types(dtype, torch.float32) if exact_in_float32 else torch.float64
