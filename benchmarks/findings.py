"""Print what results/findings holds of benchmarks/specs/findings.yaml, as in docs/findings.md; in seconds.

    python benchmarks/findings.py [results/findings]

The spec says how to fill it.
"""

from __future__ import annotations

import statistics
import sys

from polyscore.experiments.formats import heading
from polyscore.experiments.store import Store
from polyscore.experiments.tables import table_of
from polyscore.paper import specs


def main() -> None:
    store = Store(sys.argv[1] if len(sys.argv) > 1 else "results/findings")
    for name, experiment in specs.read("benchmarks/specs/findings.yaml").items():
        table = table_of(experiment, store, "sw2")
        for entry in (entry for entry in table.entries if entry.values):
            spread = statistics.stdev(entry.values) if entry.runs > 1 else 0.0
            place = f"{heading(entry.column, table):10} K = {entry.row:2}"
            print(f"{name:26} {place}  {entry.mean:7.3f} +- {spread:.3f}  ({entry.runs} runs)")


if __name__ == "__main__":
    main()
