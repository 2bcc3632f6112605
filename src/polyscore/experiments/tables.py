"""Tables: samplers and K down, models and train sizes across, one for each metric; means over the stored runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from polyscore.experiments.cells import COMPOSITION
from polyscore.experiments.experiment import Column, Experiment, Row
from polyscore.experiments.store import Store

SYMBOLS = {"sw2": "SW2", "mmd2": "MMD²"}


def symbol(metric: str) -> str:
    """Return what a heading calls a metric."""
    return SYMBOLS.get(metric, metric)


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        row: K, or a sampler's name.
        values: one a run; empty where nothing is stored.
    """

    row: Row
    column: Column
    values: tuple[float, ...]

    @property
    def runs(self) -> int:
        """Runs behind the cell."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean over the runs, or None."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Population standard deviation over the runs, or None."""
        return statistics.pstdev(self.values) if self.values else None


Of = TypeVar("Of", bound=Entry)


@dataclass(frozen=True)
class ResultTable(Generic[Of]):
    """A metric of an experiment.

    Attributes:
        models: the kinds that are trained, in words.
        rows: from K or a sampler's name to one entry a column; from a condition where these are sampled alone.
        particles: K of the samplers by name.
        alone: whether every row is one condition by itself, with K = 1.
    """

    family: str
    models: str
    metric: str
    columns: tuple[Column, ...]
    rows: dict[Row, list[Of]]
    label: str = ""
    expression: str = ""
    particles: Mapping[str, int] = field(default_factory=dict)
    alone: bool = False

    @property
    def experiment(self) -> str:
        """The experiment's name."""
        return self.label or f"{self.family}-{self.models}"

    @property
    def name(self) -> str:
        """Experiment and metric: a file name."""
        return f"{self.experiment}-{'alone-' if self.alone else ''}{self.metric}"

    @property
    def title(self) -> str:
        """The experiment's name, and what it composes."""
        if self.alone:
            return f"{self.experiment}: each condition alone"
        return f"{self.experiment}: {self.expression}" if self.expression else self.experiment

    @property
    def has_samplers(self) -> bool:
        """Whether rows are samplers by name (or conditions), not K alone."""
        return any(isinstance(row, str) for row in self.rows)

    @property
    def entries(self) -> list[Of]:
        """All cells, row by row."""
        return [entry for row in self.rows.values() for entry in row]

    @property
    def filled(self) -> bool:
        """Whether any cell of it is stored."""
        return any(entry.values for entry in self.entries)

    @property
    def runs(self) -> str:
        """The runs behind its cells, such as "30" or "10 to 30"."""
        counts = sorted({entry.runs for entry in self.entries if entry.runs})
        return " to ".join(dict.fromkeys([str(counts[0]), str(counts[-1])])) if counts else "no"


def table_of(experiment: Experiment, store: Store, metric: str) -> ResultTable[Entry]:
    """Return a metric's table of an experiment, from what is stored."""
    columns = experiment.columns
    rows = {
        row: [Entry(row, column, stored_values(experiment, store, metric, row, column)) for column in columns]
        for row in experiment.rows
    }
    text = experiment.expression or ""
    counts = {name: getattr(sampler, "particles", 1) for name, sampler in experiment.built.items()}
    return ResultTable(experiment.family, experiment.kinds, metric, columns, rows, experiment.label, text, counts)


def alone_table_of(experiment: Experiment, store: Store, metric: str) -> ResultTable[Entry]:
    """Return a metric's table of the conditions by themselves, at the largest train size."""
    columns = tuple(Column(kind, max(experiment.train_sizes)) for kind in experiment.learned)
    rows: dict[Row, list[Entry]] = {
        name: [Entry(name, c, stored_values(experiment, store, metric, 1, c, target)) for c in columns]
        for target, name in experiment.targets.items()
    }
    return ResultTable(experiment.family, experiment.kinds, metric, columns, rows, experiment.label, alone=True)


def stored_values(
    experiment: Experiment, store: Store, metric: str, row: Row, column: Column, target: str = COMPOSITION
) -> tuple[float, ...]:
    """Return a metric of the stored runs of one cell, in the order of the runs; what is not finite is missing."""
    cells = (experiment.cell(row, column, run, target) for run in range(experiment.runs))
    records = [store.get(cell, experiment.protocol_of(cell)) for cell in cells]
    found = (record.results[metric] for record in records if record is not None)
    return tuple(value for value in found if math.isfinite(value))


def tables_of(experiments: Sequence[Experiment], store: Store) -> Iterator[ResultTable[Entry]]:
    """Yield every metric's table of every experiment."""
    for experiment in experiments:
        for metric in experiment.metrics:
            yield table_of(experiment, store, metric)
            if experiment.conditions_alone and experiment.learned and experiment.train_sizes:
                yield alone_table_of(experiment, store, metric)
