"""The network of all conditions in `depth` kernels, activations in fp16, sums in fp32.

At K = 256 a step pushes 3 x 1.28 M rows through three 512 x 512 layers: 6 TFLOP, 7.7 ms at the tensor cores' rate. Left
to itself PyTorch sends every SiLU and the wide first layer through memory once more; here

    first:   h = silu(x first + offset_a)               x is read once for all conditions
    middle:  h' = silu(h W + b)                         bias and SiLU in the product's epilogue
    final:   silu(h W + b) last, per tile of columns    the widest activation never reaches memory

silu(z) = y + y tanh(y) with y = z / 2, one special function instead of two; the halves are folded into weights and
biases, exactly, since 1/2 is a power of two. Needs a Hopper GPU or newer, for its copy engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

if TYPE_CHECKING:
    from polyscore.nn.perceptron import Perceptron


@triton.jit
def _silu_of_double(y):
    """silu(2 y) = y + y tanh(y), rounded to fp16 once, at the end."""
    t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1)
    return (y + y * t).to(tl.float16)


@triton.jit
def _first_kernel(x_ptr, first_ptr, offset_ptr, out_ptr, rows, first_stride, CONDITIONS: tl.constexpr,
                  DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                  BLOCK_COLS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    col = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    inside = row < rows
    for a in tl.static_range(CONDITIONS):
        y = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=tl.float32) + tl.load(offset_ptr + a * WIDTH + col)[None, :]
        for k in range(DIM):
            x = tl.load(x_ptr + row * DIM + k, mask=inside, other=0.0)
            w = tl.load(first_ptr + a * first_stride + k * WIDTH + col)
            y += x[:, None] * w[None, :]
        place = (a * rows + row).to(tl.int64)[:, None] * WIDTH + col[None, :]
        tl.store(out_ptr + place, _silu_of_double(y), mask=inside[:, None])


@triton.jit
def _product(h, weight, bias_ptr, row, col, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
             BLOCK_K: tl.constexpr):  # fmt: skip
    """silu(h W + b) of one tile, its operands fetched by the copy engine."""
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=tl.float32)
    for k in range(0, WIDTH, BLOCK_K):
        total = tl.dot(h.load([row, k]), weight.load([k, col]), total)
    return _silu_of_double(total + tl.load(bias_ptr + col + tl.arange(0, BLOCK_COLS))[None, :])


@triton.jit
def _middle_kernel(h, weight, bias_ptr, out, rows, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                   BLOCK_COLS: tl.constexpr, BLOCK_K: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    # Programs stay and take tile after tile, so that fetching the next overlaps finishing the last. Tiles of the same
    # rows are neighbours in time: their rows come from memory once and then from the cache.
    across: tl.constexpr = WIDTH // BLOCK_COLS
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROWS) * across, PROGRAMS, flatten=True):
        row, col = tile // across * BLOCK_ROWS, tile % across * BLOCK_COLS
        out.store([row, col], _product(h, weight, bias_ptr, row, col, WIDTH, BLOCK_ROWS, BLOCK_COLS, BLOCK_K))


@triton.jit
def _final_kernel(h, weight, bias_ptr, last_ptr, out_ptr, rows, WIDTH: tl.constexpr, DIM: tl.constexpr,
                  PADDED: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_K: tl.constexpr,
                  PROGRAMS: tl.constexpr):  # fmt: skip
    across: tl.constexpr = WIDTH // BLOCK_COLS
    out = tl.arange(0, PADDED)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROWS) * across, PROGRAMS, flatten=True):
        part = tile % across
        row, col = tile // across * BLOCK_ROWS, part * BLOCK_COLS
        product = _product(h, weight, bias_ptr, row, col, WIDTH, BLOCK_ROWS, BLOCK_COLS, BLOCK_K)
        last = tl.load(last_ptr + (col + tl.arange(0, BLOCK_COLS))[:, None] * PADDED + out[None, :])
        answer = tl.dot(product, last)
        rows_here = row + tl.arange(0, BLOCK_ROWS)
        place = (rows_here.to(tl.int64)[:, None] * across + part) * DIM + out[None, :]
        tl.store(out_ptr + place, answer, mask=(rows_here < rows)[:, None] & (out < DIM)[None, :])


class Tile(NamedTuple):
    """How one program of a product is cut. Fixed, not autotuned: the order of sums, and so the bytes, must not vary."""

    rows: int
    cols: int
    k: int
    warps: int
    stages: int
    per_multiprocessor: int = 1

    def options(self, h: Tensor) -> dict[str, int]:
        """Return the launch options on the device of `h`."""
        programs = self.per_multiprocessor * torch.cuda.get_device_properties(h.device).multi_processor_count
        return {
            "WIDTH": h.shape[1], "BLOCK_ROWS": self.rows, "BLOCK_COLS": self.cols, "BLOCK_K": self.k,
            "PROGRAMS": programs, "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


LARGE = Tile(128, 256, 64, 8, 3)
SMALL = Tile(64, 64, 64, 4, 3, 2)


def choose_tile(width: int) -> Tile:
    """Return the tile for a width: the large one wherever it divides it."""
    return LARGE if width % LARGE.cols == 0 else SMALL


def supports(network: Perceptron, device: torch.device) -> bool:
    """Whether the kernels serve this network on this device: SiLU, a width of whole tiles, a copy engine."""
    if network.activation != "silu" or not network.hidden or network.width % 64 or network.dim > 64:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 9


class FusedNetwork:
    """A `Perceptron` laid out for the kernels: fp16 weights, halved where SiLU wants half its argument."""

    def __init__(self, network: Perceptron) -> None:
        self.conditions, self.dim, self.width = network.conditions, network.dim, network.width
        self.first = (0.5 * network.first).contiguous()
        self.hidden = [(0.5 * weight).half().contiguous() for weight in network.hidden]
        self.biases = [(0.5 * bias).float().contiguous() for bias in network.hidden_biases]
        self.padded = max(16, triton.next_power_of_2(self.dim))
        self.last = torch.zeros(len(network.last), self.width, self.padded, dtype=torch.float16, device=network.device)
        self.last[:, :, : self.dim] = network.last
        self.last_bias = network.last_bias
        self.shared = network.shared

    def half_offsets(self, offsets: Tensor) -> Tensor:
        """Return the first layer's constants as `noise` wants them."""
        return (0.5 * offsets).contiguous()

    def noise(self, x: Tensor, half_offset: Tensor, tile: Tile | None = None) -> Tensor:
        """Return the predicted noise of every condition, `(B, d), (A, width) -> (A, B, d)`."""
        count, x = len(x), x.contiguous()
        parts = self._parts(count)
        tile = tile or choose_tile(self.width)
        h = self._first(x, half_offset)
        spare = torch.empty_like(h) if len(self.hidden) > 1 else h
        for weight, bias in zip(self.hidden[:-1], self.biases[:-1], strict=True):
            for a, rows in parts:
                _middle(h[rows], weight[a], bias[a], spare[rows], tile)
            h, spare = spare, h
        out = torch.empty(len(h), self.width // tile.cols, self.dim, device=x.device)
        for a, rows in parts:
            _final(h[rows], self.hidden[-1][a], self.biases[-1][a], self.last[a], out[rows], tile)
        return out.sum(1).view(self.conditions, count, self.dim) + self.last_bias

    def _first(self, x: Tensor, half_offset: Tensor) -> Tensor:
        count = len(x)
        h = torch.empty(self.conditions * count, self.width, dtype=torch.float16, device=x.device)
        grid = (triton.cdiv(count, 64), self.width // 64)
        stride = 0 if self.shared else self.dim * self.width
        _first_kernel[grid](x, self.first, half_offset, h, count, stride, self.conditions, self.dim, self.width, 64, 64)
        return h

    def _parts(self, count: int) -> list[tuple[int, slice]]:
        """Which weights serve which rows: all in one launch when conditions share them, else one launch each."""
        if self.shared:
            return [(0, slice(0, self.conditions * count))]
        return [(a, slice(a * count, (a + 1) * count)) for a in range(self.conditions)]


def _middle(h: Tensor, weight: Tensor, bias: Tensor, out: Tensor, tile: Tile) -> None:
    options = tile.options(h)
    operands = _operands(h, weight, tile)
    target = TensorDescriptor.from_tensor(out, [tile.rows, tile.cols])
    _middle_kernel[(options["PROGRAMS"],)](*operands, bias, target, len(h), **options)


def _final(h: Tensor, weight: Tensor, bias: Tensor, last: Tensor, out: Tensor, tile: Tile) -> None:
    options = tile.options(h) | {"DIM": out.shape[-1], "PADDED": last.shape[-1]}
    _final_kernel[(options["PROGRAMS"],)](*_operands(h, weight, tile), bias, last, out, len(h), **options)


def _operands(h: Tensor, weight: Tensor, tile: Tile) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Describe both operands to the copy engine; rows beyond the end read as zero and are never stored."""
    rows = TensorDescriptor.from_tensor(h, [tile.rows, tile.k])
    return rows, TensorDescriptor.from_tensor(weight, [tile.k, tile.cols])
