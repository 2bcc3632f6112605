"""How much a model computes, counted: the same number on every machine and day, unlike seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_MATRIX = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv")

# What an element takes that is written otherwise than by a product, in multiplications and additions of products: on a
# core that makes 1e11 of them a second, 0.07 ns, and 0.2 to 2 ns where it is a function of more than arithmetic.
_ELEMENT = 7
_FUNCTIONS = {"silu": 20, "sigmoid": 20, "gelu": 20, "exp": 60, "log": 60, "elu": 80, "erf": 90, "sin": 90, "cos": 90,
              "softplus": 100, "tanh": 200}  # fmt: skip


class _Counting(TorchDispatchMode):
    """Adds up the multiplications and additions of matrix products and convolutions, and what other elements take."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, Tensor):
            return out
        name = func.overloadpacket.__name__
        tensors = [part for part in args if isinstance(part, Tensor)]
        if name in _MATRIX and len(tensors) >= 2:
            inner = tensors[-2] if name != "linear" else tensors[0]
            self.products += 2 * out.numel() * inner.shape[-1]
        elif "convolution" in name:
            self.products += 2 * out.numel() * math.prod(args[1].shape[1:])
        elif not func.is_view:
            self.elements += out.numel() * _FUNCTIONS.get(name.rstrip("_"), _ELEMENT)
        return out


def products(work: Callable[[], object]) -> int:
    """Return the multiplications and additions of matrix products and convolutions in some work."""
    return _counted(work).products


def operations(work: Callable[[], object]) -> int:
    """Return the same with all other elements that are written, in as many of them as a CPU makes in that time."""
    counting = _counted(work)
    return counting.products + counting.elements


@torch.no_grad()
def _counted(work: Callable[[], object]) -> _Counting:
    with _Counting() as counting:
        work()
    return counting
