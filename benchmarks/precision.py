"""Precision, shown: SW2 of trained models in a fast mode and in a slower one, same seeds, paired.

    python benchmarks/precision.py [runs/precision]     # of benchmarks/specs/precision.yaml, which says how to fill it

The mean paired difference must stay below three of its own standard errors and below 2 % of the mean. Results go to
benchmarks/results/precision.md (fp16 against float32) and table.md (tables against the network itself, both fp16).
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from pathlib import Path

import torch

from polyscore.experiments.experiment import Column, Experiment
from polyscore.experiments.store import Store
from polyscore.experiments.tables import stored_values
from polyscore.paper import specs

FILES = {"few": ("precision", "float32"), "many": ("table", "fp16")}


def row(name: str, particles: int, pairs: list[tuple[float, float]]) -> str:
    differences = [fast - slow for fast, slow in pairs]
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / len(pairs) ** 0.5
    fast, slow = (statistics.fmean(column) for column in zip(*pairs))
    holds = abs(mean) < 3 * error and abs(mean) < 0.02 * slow
    numbers = f"{fast:.4f} | {slow:.4f} | {mean:+.5f} | {error:.5f} | {100 * mean / slow:+.2f} %"
    return f"| {name} | {particles} | {numbers} | {'yes' if holds else 'NO'} |"


def rows(fast: Experiment, slow: Experiment, store: Store) -> list[str]:
    column, found = Column("conditional", 10_000), []
    for k in fast.particles:
        values = [stored_values(e, store, "sw2", k, column) for e in (fast, slow)]
        if min(map(len, values)) > 1:
            found.append(row(fast.family, k, list(zip(*values, strict=True))))
    return found


def main() -> None:
    store = Store(sys.argv[1] if len(sys.argv) > 1 else "runs/precision")
    known = specs.read("benchmarks/specs/precision.yaml")
    devices = sorted({str(record.about.get("device")) for record in store.records.values()})
    for kind, (file, slow) in FILES.items():
        fast = [name for name in known if name.endswith(f"{kind} auto")]
        lines = [line for name in fast for line in rows(known[name], known[name.replace("auto", slow)], store)]
        head = f"{time.strftime('%Y-%m-%d')}, {', '.join(devices)}, torch {torch.__version__}, "
        text = [
            f"{head}Python {platform.python_version()}, N = 10,000\n",
            f"| setting | K | SW2 auto | SW2 {slow} | paired difference | its standard error | of the mean | holds |",
            "|---|---|---|---|---|---|---|---|",
            *lines,
        ]
        print("\n".join(text))
        if lines:
            (Path("benchmarks/results") / f"{file}.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
