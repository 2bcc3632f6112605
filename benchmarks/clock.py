"""Does it matter whether a network sees t or 1 - t? The factorized OOD setting, N = 10,000, both ways, on a GPU.

python benchmarks/clock.py [runs]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

from torch import Tensor

import polyscore.nn.perceptron as perceptron
import polyscore.nn.vanilla as vanilla
from polyscore.experiments.cells import Cell
from polyscore.experiments.compute import compute, model_of, train
from polyscore.paper import experiment
from polyscore.paper.published import RUNS, published

NAME = "gaussian-factorized-ood"
CHOSEN = experiment(NAME)


def measure(feature: Callable[[Tensor], Tensor], runs: int) -> list[str]:
    """Train and sample with a network that sees feature(t); one line a particle count."""
    perceptron.time_feature = vanilla.time_feature = feature  # type: ignore[assignment]
    cells = [Cell(NAME, "conditional", 10_000, run, k) for k in (1, 4, 16) for run in range(runs)]
    families = train(list(dict.fromkeys(map(model_of, cells))), CHOSEN, "cuda")
    lines = []
    for k in (1, 4, 16):
        chosen = [cell for cell in cells if cell.particles == k]
        values = [compute(cell, families[model_of(cell)], CHOSEN, "cuda")[0]["sw2"] for cell in chosen]
        mean, std, cell = (
            statistics.fmean(values),
            statistics.pstdev(values),
            published(NAME, particles=k, train_size=10_000),
        )
        z = (mean - cell.mean) / (std**2 / runs + cell.std**2 / RUNS) ** 0.5
        lines.append(f"K = {k:2}: {mean:.4f} ± {std:.4f}, published {cell.mean:.4f} ± {cell.std:.4f}, z {z:+.2f}")
    return lines


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for label, feature in (("1 - t", lambda t: 1 - t), ("t", lambda t: t)):
        print(f"network sees {label}, {runs} runs", *measure(feature, runs), sep="\n  ")


if __name__ == "__main__":
    main()
