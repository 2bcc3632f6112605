"""How much a model computes, counted: the same number on every machine and day, unlike seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_MATRIX = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv")


class _Counting(TorchDispatchMode):
    """Adds up the multiplications and additions of matrix products and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [part for part in args if isinstance(part, Tensor)]
        if name in _MATRIX and isinstance(out, Tensor) and len(tensors) >= 2:
            inner = tensors[-2] if name != "linear" else tensors[0]
            self.total += 2 * out.numel() * inner.shape[-1]
        elif "convolution" in name and isinstance(out, Tensor):
            self.total += 2 * out.numel() * math.prod(args[1].shape[1:])
        return out


@torch.no_grad()
def products(work: Callable[[], object]) -> int:
    """Return the multiplications and additions of matrix products and convolutions in some work."""
    with _Counting() as counting:
        work()
    return counting.total
