"""Two point sets, checked: what both metrics ask of their input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyscore.errors import require


def pair(x: Any, y: Any, least: int) -> tuple[Tensor, Tensor]:
    """Return `x` and `y` as float matrices `(n, d)` and `(m, d)` on x's device, events flattened."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    y = y.to(x.device)
    for name, points in (("x", x), ("y", y)):
        require(points.ndim >= 2, name, "hold points in rows, (n, *event)", f"shape {tuple(points.shape)}")
        require(len(points) >= least, name, f"hold at least {least} points", len(points))
    x, y = x.flatten(1), y.flatten(1)
    require(x.shape[1] == y.shape[1], "x and y", "have the same dimension", (x.shape[1], y.shape[1]))
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = x.to(dtype), y.to(dtype)
    for name, points in (("x", x), ("y", y)):
        require(points.isfinite().all(), name, "be finite", f"{int((~points.isfinite()).sum())} non-finite entries")
    return x, y
