"""What the samplers that aim at the product make of it, with exact scores: SW2 to exact draws.

    python benchmarks/samplers.py [--runs 3] [-n 4000]      # three minutes of one core

"exact" compares two sets of exact draws: no sampler can be below it but by chance. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import torch

import polyscore as ps
from polyscore.paper.settings import SETTINGS, setting

SAMPLERS = {
    "denoise": ps.Denoise(),
    "feynman-kac, K = 16": ps.FeynmanKac(16),
    "feynman-kac, K = 16, mala": ps.FeynmanKac(16, kernels=("mala",)),
    "annealed-langevin": ps.AnnealedLangevin(),
    "precision-weighted": ps.PrecisionWeighted(),
}


def broad() -> ps.Composition:
    """Mixtures whose components overlap: one bulk, and W = 1.2."""
    p = ps.Family({"a": ps.Mixture([[-1.0, 0.0], [1.2, 0.8]], cov=[0.9, [1.4, 0.5]], weights=[0.4, 0.6]),
                   "b": ps.Mixture([[0.0, -1.1], [0.6, 1.0]], cov=[[0.6, 1.5], 0.8], weights=[0.3, 0.7]),
                   "base": ps.Mixture([[0.0, 0.0], [1.0, 1.0]], cov=[5.0, 4.0])})  # fmt: skip
    return p["a"] * p["b"] / p["base"] ** 0.8


def row(name: str, q: ps.Composition, n: int, runs: int) -> str:
    """A line of the table: median SW2 over runs, and seconds."""
    target = ps.exact(q)
    references = [target.sample(n, seed=100 + k) for k in range(runs + 1)]
    distances = [ps.sliced_wasserstein(a, b) for a, b in zip(references[1:], references, strict=False)]
    cells = [f"{statistics.median(distances):.3f}"]
    for sampler in SAMPLERS.values():
        start, found = time.perf_counter(), []
        for k, reference in enumerate(references[:runs]):
            found.append(ps.sliced_wasserstein(sampler.sample(q, n, seed=k).samples, reference))
        cells.append(f"{statistics.median(found):.3f} ({(time.perf_counter() - start) / runs:.1f} s)")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-n", type=int, default=4000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"| composition | exact | {' | '.join(SAMPLERS)} |\n|{'---|' * (len(SAMPLERS) + 2)}")
    compositions = {"broad mixtures, W = 1.2": broad()} | {
        name: ps.base_composition(setting(name), base="base") for name in SETTINGS
    }
    for name, q in compositions.items():
        print(row(name, q, asked.n, asked.runs), flush=True)


if __name__ == "__main__":
    main()
