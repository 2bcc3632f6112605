"""The one-kernel network beside the Triton one: errors against eager float32, then times.

python benchmarks/hopper.py [-DNAME=VALUE[,-D...] ...]    each argument is a variant to compile and time
"""

from __future__ import annotations

import sys

import torch
from kernels import network
from triton.testing import do_bench

from polyscore.nn.kernels.fused import HopperNetwork
from polyscore.nn.kernels.mlp import FusedNetwork

SHAPES = [
    # rows, conditions, dim, depth, shared
    (1, 1, 1, 2, True), (127, 2, 2, 4, True), (1000, 3, 2, 4, True), (5000, 3, 2, 4, True), (4097, 5, 3, 4, False),
    (33333, 3, 8, 3, False), (300, 4, 17, 4, True), (70001, 3, 64, 4, True), (20000, 3, 2, 6, False),
]  # fmt: skip


def check(options: list[str]) -> None:
    for rows, conditions, dim, depth, shared in SHAPES:
        net = network(conditions, dim, 512, depth, shared)
        x = 3 * torch.randn(rows, dim, device="cuda")
        offsets = net.offsets(torch.tensor([0.3], device="cuda"))[0]
        exact = net.noise(x, offsets)
        hopper = HopperNetwork(net, options)
        half = hopper.half_offsets(offsets)
        torch.full((conditions, rows, dim), float("nan"), device="cuda")  # the next allocation reuses it, poisoned
        answers = [hopper.noise(x, half) for _ in range(3)]
        torch.cuda.synchronize()
        error = max(((answer - exact).norm() / exact.norm()).item() for answer in answers)
        same = all(torch.equal(answer, answers[0]) for answer in answers)
        print(
            f"B {rows:6} A {conditions} d {dim:2} depth {depth} shared {shared!s:5}: error {error:.1e}, repeats {same}"
        )


def main() -> None:
    torch.manual_seed(0)
    variants = [argument.split(",") for argument in sys.argv[1:]] or [[]]
    check(variants[0])
    net = network()
    triton = FusedNetwork(net)
    offsets = net.offsets(torch.tensor([0.3], device="cuda"))[0]
    half = triton.half_offsets(offsets)
    for rows in (1_280_000, 320_000, 80_000, 20_000, 5_000):
        x = 3 * torch.randn(rows, 2, device="cuda")
        flops = 2 * 3 * rows * 512 * 512 * 3
        exact = net.noise(x[-2000:], offsets)
        for name, fast in [("triton", triton), *((" ".join(v) or "hopper", HopperNetwork(net, v)) for v in variants)]:
            answer = fast.noise(x, half)[:, -2000:]
            error = ((answer - exact).norm() / exact.norm()).item()
            ms = do_bench(lambda fast=fast, x=x: fast.noise(x, half), warmup=100, rep=200, return_mode="median")
            print(f"B {rows:8} {name:28} {ms:8.4f} ms  {flops / ms * 1e-9:5.0f} TFLOP/s  error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
