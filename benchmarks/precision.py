"""Precision, shown: SW2 of trained models in a fast mode and in a slower one, same seeds, paired.

    python benchmarks/precision.py [runs]            # fp16 against float32; results/precision.md
    python benchmarks/precision.py [runs] --table    # tables against the network itself, both fp16; results/table.md

On a GPU. The mean paired difference must stay below three of its own standard errors and below 2 % of the mean.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from pathlib import Path

import torch

from polyscore.experiments.cells import Cell
from polyscore.experiments.compute import compute, model_of, train
from polyscore.experiments.protocol import Protocol

# What is compared with what, and where: tables serve only many particles.
MODES = {
    "precision": ("auto", "float32", (("gaussian-factorized-ood", (1, 4, 16)), ("mixture-id", (1, 4)))),
    "table": ("auto", "fp16", (("gaussian-factorized-ood", (64, 256)), ("mixture-ood", (64, 256)))),
}


def row(name: str, particles: int, pairs: list[tuple[float, float]]) -> str:
    differences = [fast - slow for fast, slow in pairs]
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / len(pairs) ** 0.5
    fast, slow = (statistics.fmean(column) for column in zip(*pairs))
    holds = abs(mean) < 3 * error and abs(mean) < 0.02 * slow
    verdict = "yes" if holds else "NO"
    numbers = f"{fast:.4f} | {slow:.4f} | {mean:+.5f} | {error:.5f} | {100 * mean / slow:+.2f} %"
    return f"| {name} | {particles} | {numbers} | {verdict} |"


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    runs, mode = (numbers or [10])[0], "table" if "--table" in sys.argv else "precision"
    fast, slow, cases = MODES[mode]
    protocols = [Protocol(precision=precision) for precision in (fast, slow)]
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, N = 10,000, {runs} runs\n",
        f"| setting | K | SW2 {fast} | SW2 {slow} | paired difference | its standard error | of the mean | holds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    target = Path("benchmarks/results") / f"{mode}.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    for name, counts in cases:
        cells = [Cell(name, "conditional", 10_000, run, k) for k in counts for run in range(runs)]
        families = train(list(dict.fromkeys(map(model_of, cells))), protocols[0], "cuda")
        for k in counts:
            pairs = []
            for cell in (cell for cell in cells if cell.particles == k):
                family = families[model_of(cell)]
                pairs.append(tuple(compute(cell, family, protocol, "cuda")[0]["sw2"] for protocol in protocols))
            lines.append(row(name, k, pairs))
            print(lines[-1], flush=True)
            target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
