"""Precision, shown: SW2 of trained models in the fast mode and in float32, same seeds, paired.

    python benchmarks/precision.py [runs]        # on a GPU; results go to benchmarks/results/precision.md

The mean paired difference must stay below three of its own standard errors and below 2 % of the mean.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from pathlib import Path

import torch

from polyscore.experiments.cells import Cell, Protocol
from polyscore.experiments.compute import compute, model_of, train

CASES = (("gaussian-factorized-ood", (1, 4, 16)), ("mixture-id", (1, 4)))


def row(name: str, particles: int, pairs: list[tuple[float, float]]) -> str:
    differences = [fast - slow for fast, slow in pairs]
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / len(pairs) ** 0.5
    fast, slow = (statistics.fmean(column) for column in zip(*pairs))
    holds = abs(mean) < 3 * error and abs(mean) < 0.02 * slow
    verdict = "yes" if holds else "NO"
    numbers = f"{fast:.4f} | {slow:.4f} | {mean:+.5f} | {error:.5f} | {100 * mean / slow:+.2f} %"
    return f"| {name} | {particles} | {numbers} | {verdict} |"


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    fast, slow = Protocol(), Protocol(precision="float32")
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, N = 10,000, {runs} runs\n",
        "| setting | K | SW2 fast | SW2 float32 | paired difference | its standard error | of the mean | holds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, counts in CASES:
        cells = [Cell(name, "conditional", 10_000, run, k) for k in counts for run in range(runs)]
        families = train(list(dict.fromkeys(map(model_of, cells))), fast, "cuda")
        for k in counts:
            pairs = []
            for cell in (cell for cell in cells if cell.particles == k):
                family = families[model_of(cell)]
                pairs.append(tuple(compute(cell, family, protocol, "cuda")[0]["sw2"] for protocol in (fast, slow)))
            lines.append(row(name, k, pairs))
            print(lines[-1], flush=True)
    target = Path("benchmarks/results/precision.md")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
