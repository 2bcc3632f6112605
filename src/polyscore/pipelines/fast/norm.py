"""Group norm with SiLU behind it, as one step of a network: Triton's kernels on a GPU, PyTorch's elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def plain(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool) -> Tensor:
    """Return act(group_norm(x)) of x (N, C, *pixels)."""
    y = F.group_norm(x, groups, weight, bias, eps)
    return F.silu(y) if act else y


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool) -> Tensor:
        from polyscore.pipelines.fast import norm_kernel

        rows = _rows(x)
        y, ab, moments = norm_kernel.forward(rows, weight, bias, groups, eps, act)
        ctx.save_for_backward(rows, weight, ab, moments)
        ctx.act, ctx.shape = act, x.shape
        return _pictures(y, x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from polyscore.pipelines.fast import norm_kernel

        rows, weight, ab, moments = ctx.saved_tensors
        dx, dweight, dbias = norm_kernel.backward(_rows(grads[0]).to(rows.dtype), rows, weight, ab, moments, ctx.act)
        return _pictures(dx, ctx.shape), dweight.to(weight.dtype), dbias.to(weight.dtype), None, None, None


def _rows(x: Tensor) -> Tensor:
    """(N, C, *pixels) as (N, pixels, C); no copy where channels lie side by side."""
    return x.flatten(2).transpose(1, 2).contiguous()


def _pictures(rows: Tensor, shape: torch.Size) -> Tensor:
    return rows.transpose(1, 2).unflatten(2, shape[2:])


def norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool) -> Tensor:
    """Return act(group_norm(x)) of x (N, C, *pixels) in the type of x; sums are float32."""
    if not x.is_cuda:
        return plain(x, weight, bias, groups, eps, act)
    found: Tensor = _Norm.apply(x, weight, bias, groups, eps, act)
    return found
