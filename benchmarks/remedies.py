"""Print a table of remedies: models under samplers, beside the paper's best learned cell and what statistics allows.

    python benchmarks/remedies.py [--store results/remedies]     # or results/shapes, results/remedies-h200

docs/cure.md holds all three, and a test compares.

Samplers whose names end with a budget of evaluations, as `auto-500`, stand in a table of that budget. `auto` is
compared with the sampler that is best on even runs, both judged on odd ones. "likeliest" is the exact composition of
the maximum-likelihood fit in the true family (`benchmarks/likeliest.py`). [n]: a sampler has fewer runs. Columns in
which nothing stands are left out.
"""

from __future__ import annotations

import argparse
import csv
import io
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


Table = dict[tuple[str, int, str], dict[str, dict[int, float]]]


def found(store: Path) -> dict[str, Table]:
    """SW2, of whatever kind, by budget ("" where none is named), (setting, train size, models), sampler and run."""
    tables: dict[str, Table] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for record in Store(store).records.values():
        cell, name = record.cell, next(name for name in record.results if name.startswith("sw2"))
        sampler, _, budget = cell.sampler.partition("-")
        tables[budget][cell.family, cell.train_size, cell.models][sampler][cell.run] = record.results[name]
    return tables


def likeliest(store: Path) -> dict[tuple[str, int], str]:
    """Mean SW2 of maximum-likelihood fits, and how many could not be normalised."""
    rows: dict[tuple[str, int], list[str]] = defaultdict(list)
    path = store / "likeliest.csv"
    with path.open() if path.exists() else io.StringIO() as lines:
        for row in csv.DictReader(lines):
            rows[row["setting"], int(row["train_size"])].append(row["sw2"])
    proper = {key: [float(text) for text in texts if text != "improper"] for key, texts in rows.items()}
    return {key: f"{mean(proper[key])}{_improper(len(rows[key]) - len(proper[key]))}" for key in rows}


def _improper(count: int) -> str:
    return f" ({count} improper)" if count else ""


def mean(values: list[float]) -> str:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{fmean(values):.3f} ± {error:.3f}"


def regret(column: dict[str, dict[int, float]]) -> str:
    """How far `auto` is from the fixed sampler that is best on even runs, over odd runs."""
    fixed = [name for name in SAMPLERS if name != "auto" and name in column]
    even = {name: fmean([v for run, v in column[name].items() if run % 2 == 0]) for name in fixed}
    best = min(even, key=even.__getitem__)
    pairs = [(column["auto"][run], column[best][run]) for run in column["auto"] if run % 2 and run in column[best]]
    if len(pairs) < 2:
        return "-"
    mine, other = (fmean(side) for side in zip(*pairs, strict=True))
    return f"{100 * (mine / other - 1):+.0f} % of {best}"


def rows(table: Table, paper: dict[tuple[str, int], float], allowed: dict[tuple[str, int], str]) -> list[list[str]]:
    """The head, and a row for every setting, train size and kind of models."""
    made = [["setting", "N", "models", "runs", *SAMPLERS, "regret of auto", "paper's best K", "likeliest"]]
    for (setting, size, models), column in sorted(table.items()):
        runs = [len(column[name]) for name in SAMPLERS if name in column]
        cells = [_cell(column[name], max(runs)) if name in column else "" for name in SAMPLERS]
        last = regret(column) if "auto" in column and min(runs) >= 4 else ""
        best, most = paper.get((setting, size)), allowed.get((setting, size), "")
        published_best = "" if best is None else format(best, ".3f")
        made.append([setting, str(size), models, str(max(runs)), *cells, last, published_best, most])
    return made


def written(head: list[str], *others: list[str]) -> str:
    """The rows in Markdown, without columns in which nothing stands."""
    filled = [k for k in range(len(head)) if any(row[k] for row in others)]
    lines = [f"| {' | '.join(row[k] for k in filled)} |\n" for row in (head, *others)]
    return "".join([lines[0], "|" + "---|" * len(filled) + "\n", *lines[1:]])


def _cell(values: dict[int, float], runs: int) -> str:
    """A mean, and of how many runs where others have more."""
    return mean(list(values.values())) + ("" if len(values) == runs else f" [{len(values)}]")


def text(store: Path) -> str:
    """All tables of a store, as they stand in docs/cure.md between their marks."""
    allowed, paper = likeliest(store) or likeliest(store.parent / "remedies"), published()
    tables = sorted(found(store).items(), key=lambda pair: len(pair[0]))
    heads = [f"{budget} evaluations an output and condition:\n\n" if budget else "" for budget, _ in tables]
    bodies = [written(*rows(table, paper, allowed)) for _, table in tables]
    return "\n".join(head + body for head, body in zip(heads, bodies, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("results/remedies"))
    print(text(parser.parse_args().store), end="")


if __name__ == "__main__":
    main()
