"""How far the stored tables agree with the published ones, counted in three ways, and appendix E's ratios; in seconds.

    python benchmarks/agreement.py [results/paper]

The report counts in the first way only (`polyscore paper report`).
"""

from __future__ import annotations

import dataclasses
import statistics
import sys

from polyscore.experiments.experiment import Column
from polyscore.experiments.store import Store
from polyscore.experiments.tables import stored_values
from polyscore.paper import named, names
from polyscore.paper.agreement import METRICS, Pair
from polyscore.paper.published import published
from polyscore.paper.settings import SETTINGS
from polyscore.paper.specs import KINDS
from polyscore.paper.tables import BEYOND, ROUNDING, compared_tables, z_score

PAPERS = [named(name) for name in names()]


def counts(store: Store) -> list[str]:
    """Agreement with all runs, with the first ten, and without the rounding; then appendix E's ratios."""
    every = [entry for table in compared_tables(PAPERS, store) for entry in table.entries]
    metrics = [table.metric for table in compared_tables(PAPERS, store) for _ in table.entries]
    first_ten = [dataclasses.replace(entry, values=entry.values[:10]) for entry in every]
    lines = ["| within 3 | SW2 | MMD² |", "|---|---|---|"]
    for name, entries, rounding in (
        ("all stored runs", every, ROUNDING),
        ("first ten runs of every cell", first_ten, ROUNDING),
        ("all stored runs, the rounding not counted in", every, 0.0),
    ):
        zs = {metric: [] for metric in METRICS}
        for metric, entry in zip(metrics, entries, strict=True):
            zs[metric].append(z_score(entry.mean, entry.std, entry.runs, entry.published, rounding))
        within = [sum(abs(z) <= BEYOND for z in zs[metric]) for metric in METRICS]
        lines.append(f"| {name} | {' | '.join(f'{n} of {len(zs[m])}' for n, m in zip(within, METRICS, strict=True))} |")
        for metric in METRICS:
            far = sum(abs(z) > 2 for z in zs[metric])
            zeros = sum(z == 0 for z in zs[metric])
            print(f"{name}, {metric}: mean z {statistics.fmean(zs[metric]):+.2f}, deviation "
                  f"{statistics.pstdev(zs[metric]):.2f}, {far} beyond 2, {zeros} within the rounding")  # fmt: skip
    return lines


def composed(store: Store) -> list[str]:
    """SW2 of separate models over that of the conditional one, the difference's standard errors, and as published."""
    columns = ((1000, 16), (1000, 256), (10_000, 1), (10_000, 16), (10_000, 256))
    head = " | ".join(f"N = {size}, K = {k}" for size, k in columns)
    lines = [f"| ours (standard errors), published | {head} |", "|---" * (len(columns) + 1) + "|"]
    experiments = {(e.family, e.kinds): e for e in PAPERS}
    for name in SETTINGS:
        row = []
        for size, k in columns:
            one, many = (stored_values(experiments[name, kind], store, "sw2", k, Column(kind, size)) for kind in KINDS)
            pair = Pair(name, "composition", k, "sw2", one, many)
            theirs = [published(name, kind, "sw2", k, size).mean for kind in KINDS]
            ratio = statistics.fmean(many) / statistics.fmean(one)
            row.append(f"{ratio:.2f} ({pair.z:+.1f}), {theirs[1] / theirs[0]:.2f}")
        lines.append(f"| `{name}` | {' | '.join(row)} |")
    return lines


def main() -> None:
    store = Store(sys.argv[1] if len(sys.argv) > 1 else "results/paper")
    print("\n".join([*counts(store), "", *composed(store)]))


if __name__ == "__main__":
    main()
