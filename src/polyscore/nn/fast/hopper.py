"""The network of all conditions in one kernel, `hopper.cu`: activations stay on the chip from x to the output.

For width 512 on a Hopper GPU. NVRTC, which comes with PyTorch, compiles the source at first use; weights
are laid out once, here, as the images the kernel's shared memory holds, so that it fetches them with plain copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from polyscore.nn.perceptron import Perceptron

WIDTH = 512
LARGEST_DIM = 64
CHUNK, DEPTH = 256, 32  # columns and k of one piece of weights
TILE_PAIR = 256  # rows a cluster of two blocks takes at a time
THREADS = 384
SHARED_BYTES = 2 * 64 * WIDTH * 2 + 192 * CHUNK * 2 + 3072  # activations, ring of weights, barriers and rows of x


def supports(network: Perceptron, device: torch.device) -> bool:
    """Whether the kernel serves this network on this device; its instructions are those of capability 9.0 alone."""
    if device.type != "cuda" or network.activation != "silu" or not network.hidden:
        return False
    if network.width != WIDTH or network.dim > LARGEST_DIM:
        return False
    return torch.cuda.get_device_capability(device) == (9, 0) and hasattr(torch.cuda, "_compile_kernel")


@cache
def _kernel(dim: int, device: int, options: tuple[str, ...] = ()) -> Any:
    """Return the kernel for d columns on a device, compiled once a process."""
    source = Path(__file__).with_suffix(".cu").read_text()
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(source, "perceptron", "90a", nvcc_options=[f"-DDIM={dim}", *options])
        kernel.set_shared_memory_config(SHARED_BYTES)
    return kernel


class HopperNetwork:
    """A `Perceptron` laid out for the kernel: fp16 weights, halved where SiLU wants half its argument."""

    def __init__(self, network: Perceptron, options: Sequence[str] = (), depth: int = DEPTH) -> None:
        self.conditions, self.dim, self.separate = network.conditions, network.dim, not network.shared
        self.layers = len(network.hidden)
        self.first = (0.5 * network.first).float().contiguous()
        self.weights = torch.stack([_weight_images(0.5 * weight, depth) for weight in network.hidden], 1).contiguous()
        self.biases = torch.stack([_by_thread(0.5 * bias) for bias in network.hidden_biases], 1).contiguous()
        self.last = _last_fragments(network.last)
        self.last_bias = network.last_bias.float().contiguous()
        index = network.device.index
        self.device = torch.cuda.current_device() if index is None else index
        self.clusters = torch.cuda.get_device_properties(self.device).multi_processor_count // 2
        self.kernel = _kernel(self.dim, self.device, (f"-DDEPTH={depth}", *options))

    def half_offsets(self, offsets: Tensor) -> Tensor:
        """Return the first layer's constants as `noise` wants them."""
        return (0.5 * offsets).contiguous()

    def noise(self, x: Tensor, half_offset: Tensor) -> Tensor:
        """Return the predicted noise of every condition, `(B, d), (A, width) -> (A, B, d)`."""
        x, half_offset = x.contiguous(), half_offset.contiguous()
        out = torch.empty(self.conditions, len(x), self.dim, device=x.device)
        units = self.conditions * -(-len(x) // TILE_PAIR)
        if not units:
            return out
        sizes = [len(x), self.conditions, self.layers, int(self.separate)]
        operands = [x, self.first, half_offset, self.weights, self.biases, self.last, self.last_bias, out]
        with torch.cuda.device(self.device):
            grid = (2 * min(units, self.clusters), 1, 1)
            self.kernel(grid, (THREADS, 1, 1), operands + sizes, SHARED_BYTES, torch.cuda.current_stream())
        return out


def _weight_images(weight: Tensor, depth: int) -> Tensor:
    """`(P, k, n)` to `(P, n / 256, k / depth, 256, depth)` in fp16, the 16-byte pieces of every 8 rows swizzled."""
    count = len(weight)
    pieces = weight.half().mT.reshape(count, WIDTH // CHUNK, CHUNK // 8, 8, WIDTH // depth, depth // 8, 8)
    pieces = pieces.permute(0, 1, 4, 2, 3, 5, 6)  # (P, chunk, step, 8 rows, row, piece, half)
    row, piece = torch.arange(8, device=weight.device)[:, None], torch.arange(depth // 8, device=weight.device)
    return pieces[..., row, piece ^ row // (64 // depth), :].reshape(count, -1)


def _by_thread(bias: Tensor) -> Tensor:
    """`(P, 1, n)` to `(P, n)`: the columns 8 j + 2 q + e of a chunk in the order q, j, e in which threads hold sums."""
    return bias.float().reshape(len(bias), -1, CHUNK // 8, 4, 2).transpose(2, 3).reshape(len(bias), -1)


def _last_fragments(last: Tensor) -> Tensor:
    """`(P, k, d)` to right operands of 16 x 8 x 16 products: blocks of 16 k, of 8 columns, then lanes."""
    count, width, dim = last.shape
    blocks = -(-dim // 8)
    padded = torch.zeros(count, width, 8 * blocks, dtype=torch.float16, device=last.device)
    padded[:, :, :dim] = last
    split = padded.view(count, width // 16, 2, 4, 2, blocks, 8)  # (P, block, upper, q, e, block of columns, g)
    return split.permute(0, 1, 5, 6, 3, 2, 4).contiguous()
