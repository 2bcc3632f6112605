"""Tiles of the fused network on a GPU: each against the eager float32 result, with its time and its share of the peak.

python benchmarks/kernels.py [rows]
"""

from __future__ import annotations

import sys

import torch
from triton.testing import do_bench

from polyscore.nn import Perceptron, StackedMLP
from polyscore.nn.fast.layered import FusedNetwork, Tile

TILES = [
    Tile(128, 256, 64, 8, 3), Tile(128, 256, 64, 8, 4), Tile(128, 128, 64, 4, 3, 2), Tile(128, 128, 32, 4, 4, 2),
    Tile(128, 128, 64, 8, 4), Tile(128, 128, 64, 4, 2, 2), Tile(64, 256, 64, 4, 2, 2), Tile(64, 256, 64, 4, 3, 1),
    Tile(256, 128, 64, 8, 3), Tile(128, 256, 128, 8, 2), Tile(64, 64, 64, 4, 3, 2),
]  # fmt: skip


def network(conditions: int = 3, dim: int = 2, width: int = 512, depth: int = 4, shared: bool = True) -> Perceptron:
    inputs = 1 + dim + (conditions if shared else 0)
    stack = StackedMLP(inputs, dim, range(1 if shared else conditions), width, depth).cuda()
    return Perceptron(list(stack.weights), list(stack.biases), dim, "silu")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_280_000
    torch.manual_seed(0)
    net = network()
    fused = FusedNetwork(net)
    x = 3 * torch.randn(rows, 2, device="cuda")
    offsets = net.offsets(torch.tensor([0.3], device="cuda"))[0]
    half = fused.half_offsets(offsets)
    exact = net.noise(x[:4096], (offsets,))
    flops = 2 * 3 * rows * 512 * 512 * 3
    first = do_bench(lambda: fused._first(x, half), return_mode="median")
    print(f"first layer alone {first:.3f} ms; floor of the products {flops / 790e12 * 1e3:.2f} ms")
    for tile in TILES:
        try:
            error = (fused.noise(x[:4096], half, tile) - exact).norm() / exact.norm()
            ms = do_bench(lambda tile=tile: fused.noise(x, half, tile), return_mode="median")
        except Exception as problem:  # a tile may not fit the chip's shared memory
            print(tile, "failed:", str(problem)[:80])
            continue
        print(f"{tile!s:64} {ms:8.3f} ms  {flops / ms * 1e-9:6.0f} TFLOP/s  error {error:.1e}")


if __name__ == "__main__":
    main()
