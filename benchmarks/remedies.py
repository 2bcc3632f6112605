"""Print the table of remedies: mixtures under five samplers beside the paper's best learned cell of each column.

    python benchmarks/remedies.py [--store results/remedies]

`auto` is compared with the sampler that is best on even runs, both judged on odd ones.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev

from polyscore.experiments.store import Store

SAMPLERS = ("naive", "clipped", "corrected", "controlled", "auto")


def published() -> dict[tuple[str, int], float]:
    """The least mean SW2 over K of conditional models, by setting and train size."""
    best: dict[tuple[str, int], float] = defaultdict(lambda: math.inf)
    with (files("polyscore.paper") / "tables.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["metric"] == "sw2" and row["models"] == "conditional" and row["train_size"] != "analytic":
                key = row["setting"], int(row["train_size"])
                best[key] = min(best[key], float(row["mean"]))
    return best


def found(store: Path) -> dict[tuple[str, int], dict[str, dict[int, float]]]:
    """SW2 by (setting, train size), sampler and run."""
    table: dict[tuple[str, int], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in Store(store).records.values():
        cell = record.cell
        table[cell.family, cell.train_size][cell.sampler][cell.run] = record.results["sw2"]
    return table


def mean(values: list[float]) -> str:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{fmean(values):.3f} ± {error:.3f}"


def regret(column: dict[str, dict[int, float]]) -> str:
    """How far `auto` is from the fixed sampler that is best on even runs, over odd runs."""
    fixed = [name for name in SAMPLERS if name != "auto" and name in column]
    even = {name: fmean([v for run, v in column[name].items() if run % 2 == 0]) for name in fixed}
    best = min(even, key=even.__getitem__)
    pairs = [(column["auto"][run], column[best][run]) for run in column["auto"] if run % 2 and run in column[best]]
    if not pairs:
        return "-"
    mine, other = (fmean(side) for side in zip(*pairs, strict=True))
    return f"{100 * (mine / other - 1):+.0f} % of {best}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("results/remedies"))
    paper, table = published(), found(parser.parse_args().store)
    print(f"| setting | N | runs | paper's best K | {' | '.join(SAMPLERS)} | regret of auto |")
    print("|" + "---|" * (5 + len(SAMPLERS)))
    for (setting, size), column in sorted(table.items()):
        runs = min(len(column[name]) for name in SAMPLERS)
        cells = [mean(list(column[name].values())) if column[name] else "-" for name in SAMPLERS]
        last = regret(column) if runs >= 4 else "-"
        print(f"| {setting} | {size} | {runs} | {paper[setting, size]:.3f} | {' | '.join(cells)} | {last} |")


if __name__ == "__main__":
    main()
