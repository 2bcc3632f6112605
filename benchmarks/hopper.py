"""The one-kernel network beside the Triton one: times, share of the peak, error against eager float32.

python benchmarks/hopper.py [triton] [depth,-DNAME=VALUE,... ...]    each argument is a variant to build and time
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from kernels import network
from triton.testing import do_bench

from polyscore.nn import Perceptron
from polyscore.nn.fast.hopper import DEPTH, HopperNetwork
from polyscore.nn.fast.layered import FusedNetwork


def build(net: Perceptron, argument: str) -> FusedNetwork | HopperNetwork:
    if argument == "triton":
        return FusedNetwork(net)
    depth, *options = argument.split(",")
    return HopperNetwork(net, options, int(depth))


def main() -> None:
    torch.manual_seed(0)
    net = network()
    arguments = sys.argv[1:] or ["triton", str(DEPTH)]
    with ThreadPoolExecutor() as pool:
        candidates = dict(zip(arguments, pool.map(lambda argument: build(net, argument), arguments)))
    offsets = net.offsets(torch.tensor([0.3], device="cuda"))[0]
    half = candidates[arguments[0]].half_offsets(offsets)
    for rows in (1_280_000, 320_000, 80_000, 20_000, 5_000):
        x = 3 * torch.randn(rows, 2, device="cuda")
        flops = 2 * 3 * rows * 512 * 512 * 3
        exact = net.noise(x[-2000:], (offsets,))
        for name, fast in candidates.items():
            answer = fast.noise(x, half)[:, -2000:]
            error = ((answer - exact).norm() / exact.norm()).item()
            ms = do_bench(lambda fast=fast, x=x: fast.noise(x, half), warmup=50, rep=150, return_mode="median")
            print(f"B {rows:8} {name:28} {ms:8.4f} ms  {flops / ms * 1e-9:5.0f} TFLOP/s  error {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
