"""Group norm with SiLU behind it, and sums, as single steps of a network: Triton's on a GPU, PyTorch's elsewhere.

Without gradients a bias costs no pass over pictures of its own: what is added to a norm's input, a number a channel,
only changes the norm's coefficients, and the bias of a sum is added where the sum is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def plain(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool, shift: Tensor | None = None
) -> Tensor:
    """Return act(group_norm(x + shift)) of x (N, C, *pixels) and a shift (N, C)."""
    y = F.group_norm(_shifted(x, shift), groups, weight, bias, eps)
    return F.silu(y) if act else y


def _shifted(x: Tensor, shift: Tensor | None) -> Tensor:
    return x if shift is None else x + shift.to(x.dtype).view(*shift.shape, *[1] * (x.dim() - 2))


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


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool, shift: Tensor | None = None
) -> Tensor:
    """Return act(group_norm(x + shift)) of x (N, C, *pixels) in the type of x; shift is (N, C), sums are float32."""
    if not x.is_cuda:
        return plain(x, weight, bias, groups, eps, act, shift)
    if shift is None or torch.is_grad_enabled():
        found: Tensor = _Norm.apply(_shifted(x, shift), weight, bias, groups, eps, act)
        return found
    from polyscore.pipelines.fast import norm_kernel

    return _pictures(norm_kernel.forward(_rows(x), weight, bias, groups, eps, act, shift.contiguous())[0], x.shape)


def plain_added(x: Tensor, h: Tensor, bias: Tensor) -> Tensor:
    """Return x + h + bias of pictures (N, C, *pixels) and a bias (C,)."""
    return x + (h + bias.to(h.dtype).view(1, -1, *[1] * (h.dim() - 2)))


def added(x: Tensor, h: Tensor, bias: Tensor) -> Tensor:
    """Return `plain_added`, in one pass where there are no gradients; h may be overwritten then."""
    if not x.is_cuda or torch.is_grad_enabled() or x.dtype != h.dtype:
        return plain_added(x, h, bias)
    from polyscore.pipelines.fast import sum_kernel

    return _pictures(sum_kernel.added(_rows(x), _rows(h), bias), h.shape)
