"""Showing what a store holds: the list of experiments, how far they are, and the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyscore.cli import show
from polyscore.cli.choose import left_out, shows_nothing

if TYPE_CHECKING:
    from polyscore.cli.choose import Asked
    from polyscore.experiments.experiment import Experiment
    from polyscore.experiments.report import WrittenReport
    from polyscore.experiments.store import Store

Write = Callable[["list[Experiment]", "Store", Path], "WrittenReport"]


def list_experiments(asked: Asked, as_json: bool) -> None:
    """List experiments: train sizes, rows, runs, cells."""
    with show.clean():
        known = asked.known()
        only_k = all(isinstance(row, int) for e in known.values() for row in e.rows)
        rows = [[name, _sizes(e), _rows(e, only_k), e.runs, len(set(e.cells()))] for name, e in known.items()]
    if as_json:
        show.write_json({"experiments": {name: e.to_dict() for name, e in known.items()}})
    else:
        _table(["name", "train sizes", "K" if only_k else "samplers", "runs", "cells"], rows)


def _sizes(experiment: Experiment) -> str:
    return _join(experiment.train_sizes) if experiment.learned else "–"


def _rows(experiment: Experiment, only_k: bool) -> str:
    return _join(f"K = {row}" if isinstance(row, int) and not only_k else row for row in experiment.rows)


def show_status(asked: Asked, as_json: bool) -> None:
    """Show how many cells of each experiment are stored, and the runs behind each row."""
    with show.clean():
        store = asked.stored()
        chosen = asked.chosen()
        others = left_out(chosen, store)
        rows = [_state(experiment, store) for experiment in chosen]
    if as_json:
        show.write_json({"store": str(store.path), "experiments": rows, "other_records": others})
    else:
        by = "K" if all(isinstance(row, int) for e in chosen for row in e.rows) else "sampler"
        heads = ["experiment", "cells", "stored", f"fewest runs by {by}"]
        _table(heads, [[r["name"], r["cells"], r["stored"], _runs(r["runs"])] for r in rows])
        _tell_of(others)


def _runs(by_row: dict[Any, int]) -> str:
    """Say the runs behind each row, or once where all have the same."""
    if len(set(by_row.values())) == 1:
        return str(next(iter(by_row.values())))
    return _join(f"{row}: {n}" for row, n in by_row.items())


def _state(experiment: Experiment, store: Store) -> dict[str, Any]:
    from collections import Counter

    def where(cell: Any) -> tuple[Any, ...]:
        return (cell.sampler or cell.particles, cell.models, cell.train_size, cell.target)

    cells = list(dict.fromkeys(experiment.cells()))
    stored = [cell for cell in cells if experiment.key(cell) in store]
    found, places = Counter(map(where, stored)), set(map(where, cells))
    runs = {row: min((found[place] for place in places if place[0] == row), default=0) for row in experiment.rows}
    return {"name": experiment.name, "cells": len(cells), "stored": len(stored), "runs": runs}


def write_report_of(asked: Asked, out: Path, write: Write, as_json: bool) -> None:
    """Write a report of what is asked for and say what it found."""
    with show.clean(), show.progress("writing", quiet=as_json):
        from polyscore.experiments.lock import StoreError
        from polyscore.files.atomic import check_directory

        check_directory(out)
        store, chosen = asked.stored(), asked.chosen()
        others = left_out(chosen, store)
        if shows_nothing(chosen, store):
            raise StoreError(
                f"a report must have a cell to show; {store.path} has none that is asked for, and {others} other "
                f"records. Give the {asked.spec_word} or --particles they came from, or fill it with "
                f"`{asked.program} run`."
            )
        written = write(chosen, store, out)
    if as_json:
        show.write_json(written.to_dict())
    else:
        for line in written.sentences():
            show.stdout().print(line, soft_wrap=True)
        _tell_of(others)


def _tell_of(others: int) -> None:
    """Say that a store holds more than is shown."""
    if others:
        show.stderr().print(f"{others} more records of the store are not shown: other runs, K or protocols. "
                            "Ask for them with --runs, --particles or another spec.")  # fmt: skip


def _join(values: Any) -> str:
    return ", ".join(map(str, values))


def _table(header: list[str], rows: list[list[Any]]) -> None:
    from rich.table import Table

    table = Table()
    for name in header:
        first = name in ("name", "experiment")
        table.add_column(name, justify="left" if first else "right", no_wrap=first)
    for row in rows:
        table.add_row(*map(str, row))
    show.stdout().print(table)
