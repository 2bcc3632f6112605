"""Other runs of cells that were looked at twice, and resampling schemes side by side; on a CPU.

    python benchmarks/followups.py cells          # what benchmarks/specs/followups.yaml has filled runs/followups with
    python benchmarks/followups.py resampling     # the OOD mixture at K = 64, four ways to resample, about 10 minutes

Results go to benchmarks/results/followups-*.md. A spec cannot say `resampling`: it measures a slot, not the samples.
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
from polyscore.experiments.cells import ANALYTIC
from polyscore.experiments.compute import reference_of
from polyscore.experiments.experiment import Column
from polyscore.experiments.store import Store
from polyscore.experiments.tables import table_of
from polyscore.paper import experiment, specs
from polyscore.paper.published import published
from polyscore.paper.settings import setting
from polyscore.paper.tables import z_score

FIRST = 1000  # runs that no store has
SCHEMES = ("systematic", "multinomial")


def cells() -> list[str]:
    """Mean and population deviation of SW2 over other runs, and z to both published tables."""
    lines = [
        "| cell, analytic | other runs | SW2 | z, conditional table | z, separate table |",
        "|---|---|---|---|---|",
    ]
    for e in specs.read("benchmarks/specs/followups.yaml").values():
        for entry in (entry for entry in table_of(e, Store("runs/followups"), "sw2").entries if entry.values):
            tables = [published(e.family, kind, "sw2", int(entry.row)) for kind in specs.KINDS]
            zs = [f"{z_score(entry.mean or 0.0, entry.std or 0.0, entry.runs, table):+.1f}" for table in tables]
            numbers = f"{entry.runs} | {entry.mean:.4f} ± {entry.std:.4f} | {' | '.join(zs)}"
            lines.append(f"| {e.family}, K = {entry.row} | {numbers} |")
            print(lines[-1], flush=True)
    return lines


def resampling(runs: int = 6) -> list[str]:
    """SW2 when the output is a slot drawn by weight, as in the library, and when it is always slot 0."""
    lines = ["| SW2 | a random slot is the output | slot 0 is the output |", "|---|---|---|"]
    q, chosen = base_composition(setting("mixture-ood")), experiment("mixture-ood", ANALYTIC)
    for scheme in SCHEMES:
        drawn, first = [], []
        for run in range(FIRST, FIRST + runs):
            reference = reference_of(chosen.cell(64, Column(ANALYTIC), run), chosen)
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
