"""Group norm, and SiLU behind it, for pictures whose channels lie side by side; `norm.plain` is the oracle.

y = act(a x + b) with a = w r, b = beta - mean a for each picture and channel, r = 1 / sqrt(var + eps) of its group.
PyTorch's own kernel wants every channel's pixels side by side: with convolutions that want the opposite, each norm
would copy its input there and its output back. Here every pass reads whole rows (all channels of a pixel), sums are
made in float32 over parts of a picture, and one small kernel turns sums into coefficients.

Backward, with d = dy act'(z), S1 = sum d, S2 = sum d x over a channel, m numbers a group:
A = sum_c w S1 / m, B = sum_c w r (S2 - mean S1) / m, dx = a d - r^2 B x + (r^2 mean B - r A).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 4096  # of one block
_MOST_PROGRAMS = 2048  # for the sums


@triton.jit
def _slope(dy, z, ACT: tl.constexpr):
    """dy times the derivative of the activation."""
    if ACT:
        s = tl.sigmoid(z)
        return dy * s * (1 + z * (1 - s))
    return dy


@triton.jit
def _sums_kernel(x_ptr, dy_ptr, ab_ptr, out_ptr, rows, parts, steps, C, PADDED: tl.constexpr, ROWS: tl.constexpr,
                 BACK: tl.constexpr, ACT: tl.constexpr):  # fmt: skip
    """Of one part of one picture: sums over pixels of (x, x^2), or of (d, d x)."""
    picture, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, PADDED)
    known = c < C
    first, second = tl.zeros((PADDED,), tl.float32), tl.zeros((PADDED,), tl.float32)
    if BACK:
        a = tl.load(ab_ptr + picture * 2 * C + c, mask=known, other=0.0)[None, :]
        b = tl.load(ab_ptr + picture * 2 * C + C + c, mask=known, other=0.0)[None, :]
    for step in range(steps):
        row = (part * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & known[None, :]
        place = (picture * rows + row)[:, None] * C + c[None, :]
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if BACK:
            dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
            d = _slope(dy, a * x + b, ACT)
            first += tl.sum(d, 0)
            second += tl.sum(d * x, 0)
        else:
            first += tl.sum(x, 0)
            second += tl.sum(x * x, 0)
    out = out_ptr + (picture * parts + part) * 2 * C + c
    tl.store(out, first, mask=known)
    tl.store(out + C, second, mask=known)


@triton.jit
def _gather(sums_ptr, picture, parts, c, inside, C):
    """Both sums over all parts, by group and channel."""
    first, second = tl.zeros(c.shape, tl.float32), tl.zeros(c.shape, tl.float32)
    for part in range(parts):
        place = sums_ptr + (picture * parts + part) * 2 * C + c
        first += tl.load(place, mask=inside, other=0.0)
        second += tl.load(place + C, mask=inside, other=0.0)
    return first, second


@triton.jit
def _forward_kernel(sums_ptr, weight_ptr, bias_ptr, shift_ptr, ab_ptr, moments_ptr, rows, eps, parts, C, each,
                    GROUPS: tl.constexpr, G_PADDED: tl.constexpr, E_PADDED: tl.constexpr,
                    SHIFT: tl.constexpr):  # fmt: skip
    """Of one picture: mean and r of each group, a and b of each channel. Sums are of x, moments of x + shift."""
    picture = tl.program_id(0).to(tl.int64)
    g, j = tl.arange(0, G_PADDED), tl.arange(0, E_PADDED)
    c = g[:, None] * each + j[None, :]
    inside = (g < GROUPS)[:, None] & (j < each)[None, :]
    first, second = _gather(sums_ptr, picture, parts, c, inside, C)
    if SHIFT:
        shift = tl.load(shift_ptr + picture * C + c, mask=inside, other=0.0).to(tl.float32)
        second += shift * (2 * first + rows * shift)
        first += rows * shift
    count = rows * each
    mean = tl.sum(first, 1) / count
    variance = tl.maximum(tl.sum(second, 1) / count - mean * mean, 0.0)
    r = 1 / tl.sqrt(variance + eps)
    a = tl.load(weight_ptr + c, mask=inside, other=0.0).to(tl.float32) * r[:, None]
    b = tl.load(bias_ptr + c, mask=inside, other=0.0).to(tl.float32) - mean[:, None] * a
    if SHIFT:
        b += a * shift
    tl.store(ab_ptr + picture * 2 * C + c, a, mask=inside)
    tl.store(ab_ptr + picture * 2 * C + C + c, b, mask=inside)
    tl.store(moments_ptr + picture * 2 * GROUPS + g, mean, mask=g < GROUPS)
    tl.store(moments_ptr + picture * 2 * GROUPS + GROUPS + g, r, mask=g < GROUPS)


@triton.jit
def _backward_kernel(sums_ptr, weight_ptr, moments_ptr, pq_ptr, grads_ptr, rows, parts, C, each,
                     GROUPS: tl.constexpr, G_PADDED: tl.constexpr, E_PADDED: tl.constexpr):  # fmt: skip
    """Of one picture: p and q of each channel, dx = a d + p x + q; its share of the gradients of weight and bias."""
    picture = tl.program_id(0).to(tl.int64)
    g, j = tl.arange(0, G_PADDED), tl.arange(0, E_PADDED)
    c = g[:, None] * each + j[None, :]
    inside = (g < GROUPS)[:, None] & (j < each)[None, :]
    first, second = _gather(sums_ptr, picture, parts, c, inside, C)
    mean = tl.load(moments_ptr + picture * 2 * GROUPS + g, mask=g < GROUPS, other=0.0)
    r = tl.load(moments_ptr + picture * 2 * GROUPS + GROUPS + g, mask=g < GROUPS, other=0.0)
    w = tl.load(weight_ptr + c, mask=inside, other=0.0).to(tl.float32)
    slope = r[:, None] * (second - mean[:, None] * first)
    A = tl.sum(w * first, 1) / (rows * each)
    B = tl.sum(w * slope, 1) / (rows * each)
    p = -r * r * B
    q = -p * mean - r * A
    nothing = tl.zeros((G_PADDED, E_PADDED), tl.float32)
    tl.store(pq_ptr + picture * 2 * C + c, p[:, None] + nothing, mask=inside)
    tl.store(pq_ptr + picture * 2 * C + C + c, q[:, None] + nothing, mask=inside)
    tl.store(grads_ptr + picture * 2 * C + c, slope, mask=inside)
    tl.store(grads_ptr + picture * 2 * C + C + c, first, mask=inside)


@triton.jit
def _apply_kernel(x_ptr, dy_ptr, ab_ptr, pq_ptr, out_ptr, rows, C, PADDED: tl.constexpr, ROWS: tl.constexpr,
                  BACK: tl.constexpr, ACT: tl.constexpr):  # fmt: skip
    """A block of rows of one picture: act(a x + b), or a d + p x + q."""
    picture = tl.program_id(0).to(tl.int64)
    c, row = tl.arange(0, PADDED), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    known = c < C
    inside = (row < rows)[:, None] & known[None, :]
    place = (picture * rows + row)[:, None] * C + c[None, :]
    a = tl.load(ab_ptr + picture * 2 * C + c, mask=known, other=0.0)[None, :]
    b = tl.load(ab_ptr + picture * 2 * C + C + c, mask=known, other=0.0)[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    z = a * x + b
    if BACK:
        p = tl.load(pq_ptr + picture * 2 * C + c, mask=known, other=0.0)[None, :]
        q = tl.load(pq_ptr + picture * 2 * C + C + c, mask=known, other=0.0)[None, :]
        dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
        z = a * _slope(dy, z, ACT) + p * x + q
    else:
        if ACT:
            z = z * tl.sigmoid(z)
    tl.store(out_ptr + place, z.to(out_ptr.dtype.element_ty), mask=inside)


class Cut(NamedTuple):
    """How rows (pictures, pixels, channels) are cut: sizes, rows of a block, parts of a picture, blocks of a part."""

    pictures: int
    rows: int
    channels: int
    padded: int
    block: int
    parts: int
    steps: int


def cut(x: Tensor) -> Cut:
    """Return the cut of (pictures, pixels, channels): enough parts to fill a GPU, few enough to gather."""
    pictures, rows, channels = x.shape
    padded = triton.next_power_of_2(channels)
    block = max(1, _NUMBERS // padded)  # the same for every size of picture: each would be compiled anew
    blocks = triton.cdiv(rows, block)
    steps = triton.cdiv(blocks, max(1, min(32, _MOST_PROGRAMS // pictures)))
    return Cut(pictures, rows, channels, padded, block, triton.cdiv(blocks, steps), steps)


def _groups(channels: int, groups: int) -> tuple[int, int, int, int, int]:
    each = channels // groups
    return channels, each, groups, triton.next_power_of_2(groups), triton.next_power_of_2(each)


def _launches(x: Tensor) -> tuple[Cut, Tensor, Tensor]:
    """The cut of x, and room for its sums and for two numbers a picture and channel."""
    s = cut(x)
    sums = torch.empty(s.pictures, s.parts, 2, s.channels, device=x.device, dtype=torch.float32)
    return s, sums, torch.empty(s.pictures, 2, s.channels, device=x.device, dtype=torch.float32)


def _sum(s: Cut, x: Tensor, dy: Tensor, ab: Tensor, sums: Tensor, back: bool, act: bool) -> None:
    launch = _sums_kernel[(s.pictures, s.parts)]
    launch(x, dy, ab, sums, s.rows, s.parts, s.steps, s.channels, s.padded, s.block, back, act)


def _apply(s: Cut, x: Tensor, dy: Tensor, ab: Tensor, pq: Tensor, back: bool, act: bool) -> Tensor:
    launch, out = _apply_kernel[(s.pictures, triton.cdiv(s.rows, s.block))], torch.empty_like(x)
    launch(x, dy, ab, pq, out, s.rows, s.channels, s.padded, s.block, back, act)
    return out


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, act: bool, shift: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return y like x (pictures, pixels, channels), and what backward needs: a and b, and the moments.

    Args:
        shift: added to x first, (pictures, channels); backward knows nothing of it.
    """
    s, sums, ab = _launches(x)
    moments = torch.empty(s.pictures, 2, groups, device=x.device, dtype=torch.float32)
    _sum(s, x, x, ab, sums, False, False)
    sizes = _groups(s.channels, groups)
    shifts, told = (ab, False) if shift is None else (shift, True)
    _forward_kernel[(s.pictures,)](sums, weight, bias, shifts, ab, moments, s.rows, eps, s.parts, *sizes, told)
    return _apply(s, x, x, ab, ab, False, act), ab, moments


def backward(dy: Tensor, x: Tensor, weight: Tensor, ab: Tensor, moments: Tensor, act: bool) -> tuple[Tensor, ...]:
    """Return the gradients of x, weight and bias."""
    s, sums, pq = _launches(x)
    grads, groups = torch.empty_like(pq), _groups(s.channels, moments.shape[2])
    _sum(s, x, dy, ab, sums, True, act)
    _backward_kernel[(s.pictures,)](sums, weight, moments, pq, grads, s.rows, s.parts, *groups)
    total = grads.sum(0)
    return _apply(s, x, dy, ab, pq, True, act), total[0], total[1]
