"""Other runs of cells that were looked at twice, and resampling schemes side by side; on a CPU.

    python benchmarks/followups.py cells          # other runs of four analytic cells, about 12 minutes
    python benchmarks/followups.py resampling     # the OOD mixture at K = 64, four ways to resample, about 10 minutes

Results go to benchmarks/results/followups-*.md.
"""

from __future__ import annotations

import dataclasses
import platform
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch

import polyscore as ps
from polyscore.algebra import base_composition
from polyscore.errors import DegeneracyWarning
from polyscore.experiments.cells import Cell
from polyscore.experiments.compute import compute, reference_of
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.tables import z_score
from polyscore.paper.published import published
from polyscore.paper.settings import setting

CELLS = (
    ("gaussian-factorized-id", 4, 60),
    ("gaussian-factorized-id", 16, 60),
    ("mixture-ood", 16, 60),
    ("mixture-ood", 64, 22),
)
FIRST = 1000  # runs that no store has
SCHEMES = ("systematic", "multinomial")


def cells() -> list[str]:
    """Mean and population deviation of SW2 over other runs, and z to both published tables."""
    lines = [
        "| cell, analytic | other runs | SW2 | z, conditional table | z, separate table |",
        "|---|---|---|---|---|",
    ]
    protocol = Protocol()
    for name, particles, count in CELLS:
        values = []
        for run in range(FIRST, FIRST + count):
            cell = Cell(name, "analytic", 0, run, particles)
            values.append(compute(cell, setting(name), protocol, "cpu")[0]["sw2"])
        mean, std = statistics.fmean(values), statistics.pstdev(values)
        tables = [published(name, kind, "sw2", particles) for kind in ("conditional", "separate")]
        zs = [f"{z_score(mean, std, count, table):+.1f}" for table in tables]
        lines.append(f"| {name}, K = {particles} | {count} | {mean:.4f} ± {std:.4f} | {' | '.join(zs)} |")
        print(lines[-1], flush=True)
    return lines


def resampling(runs: int = 6) -> list[str]:
    """SW2 when the output is a slot drawn by weight, as in the library, and when it is always slot 0."""
    lines = ["| SW2 | a random slot is the output | slot 0 is the output |", "|---|---|---|"]
    q = base_composition(setting("mixture-ood"))
    for scheme in SCHEMES:
        drawn, first = [], []
        for run in range(FIRST, FIRST + runs):
            reference = reference_of(Cell("mixture-ood", "analytic", 0, run, 64), Protocol())
            sampler = dataclasses.replace(ps.FeynmanKac.published(64), resampling=scheme)
            result = sampler.sample(q, 5000, seed=run, device="cpu")
            drawn.append(ps.sliced_wasserstein(result.samples, reference, seed=run))
            first.append(ps.sliced_wasserstein(result.particles[:, 0], reference, seed=run))
        columns = [f"{statistics.fmean(v):.2f} ± {statistics.pstdev(v):.2f}" for v in (drawn, first)]
        lines.append(f"| {scheme} | {' | '.join(columns)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    what = {"cells": cells, "resampling": resampling}[sys.argv[1]]
    warnings.simplefilter("ignore", DegeneracyWarning)
    head = f"{time.strftime('%Y-%m-%d')}, CPU, torch {torch.__version__}, Python {platform.python_version()}\n"
    target = Path("benchmarks/results") / f"followups-{sys.argv[1]}.md"
    target.write_text("\n".join([head, *what()]) + "\n")


if __name__ == "__main__":
    main()
