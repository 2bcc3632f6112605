"""Interpolation from a table in one kernel; `polyscore.nn.fast.plane.interpolate` is its oracle.

A node's values of all conditions lie side by side, so that one fetch of 32 bytes brings the six numbers of three
conditions; the table, 2 MB, stays in the cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

if TYPE_CHECKING:
    from polyscore.nn.fast.plane import Nodes

_ROWS = 128


@triton.jit
def _cubic(f, k: tl.constexpr):
    """Lagrange's weight of the node k - 1 of -1, 0, 1, 2 at 0 <= f <= 1."""
    if k == 0:
        return -f * (f - 1) * (f - 2) / 6
    if k == 1:
        return (f + 1) * (f - 1) * (f - 2) / 2
    if k == 2:
        return -(f + 1) * f * (f - 2) / 2
    return (f + 1) * f * (f - 1) / 6


@triton.jit
def _place(x_ptr, grid_ptr, row, inside, AXIS: tl.constexpr, SIDE: tl.constexpr):
    """The corner of a point's cell along one coordinate, and how far the point is beyond it."""
    centre, scale = tl.load(grid_ptr + AXIS), tl.load(grid_ptr + 2 + AXIS)
    low, step = tl.load(grid_ptr + 4 + AXIS), tl.load(grid_ptr + 6 + AXIS)
    x = tl.load(x_ptr + 2 * row + AXIS, mask=inside, other=0.0)
    position = (libdevice.asinh((x - centre) / scale) - low) / step + 1
    # Clamped as whole numbers: a point that is not finite must not become an address.
    corner = tl.minimum(tl.maximum(tl.floor(position).to(tl.int32), 1), SIDE - 3)
    return corner, position - corner


@triton.jit
def _interpolate_kernel(table_ptr, grid_ptr, x_ptr, out_ptr, rows, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
                        PADDED: tl.constexpr, SIDE: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    i, f = _place(x_ptr, grid_ptr, row, inside, 0, SIDE)
    j, g = _place(x_ptr, grid_ptr, row, inside, 1, SIDE)
    value = tl.arange(0, PADDED)
    total = tl.zeros((ROWS, PADDED), dtype=tl.float32)
    for a in tl.static_range(4):
        for b in tl.static_range(4):
            node = (i - 1 + a) * SIDE + j - 1 + b
            part = tl.load(table_ptr + node[:, None] * PADDED + value[None, :])
            total += part * (_cubic(f, a) * _cubic(g, b))[:, None]
    place = ((value // CHANNELS)[None, :].to(tl.int64) * rows + row[:, None]) * CHANNELS + (value % CHANNELS)[None, :]
    tl.store(out_ptr + place, total, mask=inside[:, None] & (value < VALUES)[None, :])


def interpolate(values: Tensor, nodes: Nodes, x: Tensor) -> Tensor:
    """Return the values `(A, side ** 2, C)` at the points `(B, 2)`, `(A, B, C)`."""
    x = x.contiguous()
    conditions, count_of_nodes, channels = values.shape
    count = conditions * channels
    padded = triton.next_power_of_2(count)
    table = torch.empty(count_of_nodes, padded, device=x.device)
    table[:, :count].view(count_of_nodes, conditions, channels).copy_(values.transpose(0, 1))
    out = torch.empty(conditions, len(x), channels, device=x.device)
    packed = torch.cat(nodes)
    launch = _interpolate_kernel[(triton.cdiv(len(x), _ROWS),)]
    launch(table, packed, x, out, len(x), channels, count, padded, math.isqrt(count_of_nodes), _ROWS)
    return out
