"""Fill results/findings: the out-of-distribution settings under other clips and on the ODE, analytic and learned.

    python benchmarks/findings.py [--runs 10] [--seconds 120]     # two minutes of a GPU

Training does not depend on the clip or the churn, so each setting's models train once for all protocols. Every cell is
stored as soon as it is measured; the same command goes on where it stopped. `--show` prints what is there, as in
docs/findings.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch

from polyscore.experiments.cells import ANALYTIC, Cell
from polyscore.experiments.compute import compute, model_of, train
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.store import Store

SETTINGS = ("gaussian-factorized-ood", "mixture-ood")
CLIPS = (1.5, 5.0, 15.0, 50.0, None)
SIZE = 10_000


def sweep(setting: str, models: str, runs: int) -> Iterator[tuple[Cell, Protocol]]:
    """Yield the cells of one setting: every clip with the paper's sampler; ours unclipped, on the SDE and the ODE."""
    size = 0 if models == ANALYTIC else SIZE
    for run in range(runs):
        for particles in (1, 4, 16):
            cell = Cell(setting, models, size, run, particles)
            yield cell, Protocol(corrected=True, clip=None)
            yield cell, Protocol(corrected=True, clip=None, churn=0.0)
            for clip in CLIPS if particles > 1 else ():
                yield cell, Protocol(clip=clip)


def fill(store: Store, setting: str, models: str, runs: int, device: str, deadline: float) -> None:
    missing = [(c, p) for c, p in sweep(setting, models, runs) if c.key(p) not in store]
    if not missing or time.monotonic() > deadline:
        return
    families = train(list(dict.fromkeys(model_of(cell) for cell, _ in missing)), Protocol(), device)
    for cell, protocol in missing:
        if time.monotonic() < deadline:
            store.add(cell, protocol, *compute(cell, families[model_of(cell)], protocol, device))


def show(store: Store, setting: str, models: str, runs: int) -> None:
    """Print mean and deviation of SW2, a protocol a line."""
    values: dict[tuple[str, int], list[float]] = {}
    for cell, protocol in sweep(setting, models, runs):
        if record := store.get(cell, protocol):
            clip = "no clip" if protocol.clip is None else f"clip {protocol.clip:g}"
            name = f"ours, {'SDE' if protocol.churn else 'ODE'}, {clip}" if protocol.corrected else f"paper's, {clip}"
            values.setdefault((name, cell.particles), []).append(record.results["sw2"])
    print(f"{setting}, {models}")
    for (name, particles), column in sorted(values.items()):
        deviation = statistics.stdev(column) if len(column) > 1 else 0.0
        print(
            f"  {name:20} K = {particles:2}  {statistics.fmean(column):7.3f} +- {deviation:.3f}  ({len(column)} runs)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after this")
    parser.add_argument("--models", default="conditional,analytic")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--store", default="results/findings")
    parser.add_argument("--show", action="store_true", help="only print what is stored")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    deadline = time.monotonic() + arguments.seconds
    store = Store(arguments.store)
    cases = [(s, m) for m in arguments.models.split(",") for s in arguments.settings.split(",")]
    if not arguments.show:
        with store.writing():
            for setting, models in cases:
                fill(store, setting, models, arguments.runs, device, deadline)
    for setting, models in cases:
        show(store, setting, models, arguments.runs)


if __name__ == "__main__":
    main()
