"""Tables in the paper's layout: K down, train sizes across, ours beside the published.

    z = max(0, |ours - published| - r) / sqrt(s^2 / n + (S + r)^2 / 30),      r = 5e-5,

with the sign of the difference; s, S are population standard deviations and r is the rounding of the published table to
four digits, which counts for us in both its mean and its spread.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyscore.errors import ArgumentError
from polyscore.experiments.cells import ANALYTIC, COMPOSITION, Cell, Experiment, Protocol
from polyscore.experiments.store import Store
from polyscore.paper.published import RUNS, Published, published

ROUNDING = 5e-5
BEYOND = 3.0
RUNAWAY = 10.0  # times the median: a run that by itself decides mean and deviation
SYMBOLS = {"sw2": "SW2", "mmd2": "MMD²"}
METRICS = tuple(SYMBOLS)
TITLES = {
    "gaussian-factorized-id": "Factorized conditionals + ID",
    "gaussian-nonfactorized-id": "Non-factorized conditionals + ID",
    "gaussian-factorized-ood": "Factorized conditionals + OOD",
    "gaussian-nonfactorized-ood": "Non-factorized conditionals + OOD",
    "mixture-id": "Mixture of Gaussians, ID",
    "mixture-ood": "Mixture of Gaussians, OOD",
}


def z_score(mean: float, std: float, runs: int, other: Published, rounding: float = ROUNDING) -> float:
    """Return the difference to a published cell in combined standard errors; 0 within its rounding."""
    difference = mean - other.mean
    beyond_rounding = max(0.0, abs(difference) - rounding)
    error = math.sqrt(std**2 / runs + (other.std + rounding) ** 2 / RUNS)
    return math.copysign(beyond_rounding / error, difference)


@dataclass(frozen=True)
class Entry:
    """One cell of a table: our runs, and what was published.

    Attributes:
        train_size: 0 is the analytic column.
        values: one a run; empty where nothing is stored.
        published: None where the paper has no such cell.
        comparable: whether ours follows the paper's protocol, so that z means something.
    """

    particles: int
    train_size: int
    values: tuple[float, ...]
    published: Published | None
    comparable: bool = True

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

    @property
    def z(self) -> float | None:
        """`z_score`, or None: with fewer than two runs there is no spread to compare with."""
        if self.published is None or self.runs < 2 or not self.comparable:
            return None
        return z_score(statistics.fmean(self.values), statistics.pstdev(self.values), self.runs, self.published)

    @property
    def beyond(self) -> bool:
        """Whether |z| is larger than 3."""
        return self.z is not None and abs(self.z) > BEYOND

    @property
    def runaway(self) -> float | None:
        """The largest run where it is more than 10 times the median: mean and z then say little, though z is small."""
        largest = max(self.values, key=abs, default=0.0)
        return largest if self.runs > 2 and abs(largest) > RUNAWAY * abs(statistics.median(self.values)) else None


@dataclass(frozen=True)
class Table:
    """A metric of an experiment.

    Attributes:
        columns: train sizes, 0 for analytic at the end.
        rows: from K to one entry a column.
    """

    setting: str
    models: str
    metric: str
    columns: tuple[int, ...]
    rows: dict[int, list[Entry]]
    label: str = ""

    @property
    def experiment(self) -> str:
        """The experiment's name."""
        return self.label or f"{self.setting}-{self.models}"

    @property
    def name(self) -> str:
        """Experiment and metric: a file name."""
        return f"{self.experiment}-{self.metric}"

    @property
    def title(self) -> str:
        """The paper's title for the setting, and the experiment's own name where it has one."""
        title = TITLES.get(self.setting, self.setting)
        return f"{title} ({self.label})" if self.label else title

    @property
    def entries(self) -> list[Entry]:
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


def is_papers(protocol: Protocol) -> bool:
    """Whether results may be compared with the published ones: the paper's protocol, in any precision."""
    return dataclasses.replace(protocol, precision=Protocol.precision) == Protocol()


def table(experiment: Experiment, store: Store, metric: str = "sw2") -> Table:
    """Return a metric's table of an experiment, from what is stored."""
    columns = (*sorted(experiment.train_sizes), *((0,) if experiment.analytic else ()))
    rows = {k: [_entry(experiment, store, metric, k, size) for size in columns] for k in sorted(experiment.particles)}
    return Table(experiment.setting, experiment.models, metric, columns, rows, experiment.label)


def _entry(experiment: Experiment, store: Store, metric: str, particles: int, size: int) -> Entry:
    found = values(experiment, store, metric, particles, size)
    theirs = _published(experiment, metric, particles, size)
    return Entry(particles, size, found, theirs, is_papers(experiment.protocol))


def values(
    experiment: Experiment, store: Store, metric: str, particles: int, size: int, target: str = COMPOSITION
) -> tuple[float, ...]:
    """Return a metric of the stored runs of one cell, in the order of the runs; what is not finite is missing."""
    kind = experiment.models if size else ANALYTIC
    cells = (Cell(experiment.setting, kind, size, run, particles, target) for run in range(experiment.runs))
    records = [store.get(cell, experiment.protocol) for cell in cells]
    found = (record.results[metric] for record in records if record is not None)
    return tuple(value for value in found if math.isfinite(value))


def _published(experiment: Experiment, metric: str, particles: int, size: int) -> Published | None:
    kind = "conditional" if experiment.models == ANALYTIC else experiment.models
    try:
        return published(experiment.setting, kind, metric, particles, size or ANALYTIC)
    except ArgumentError:
        return None


def tables(experiments: Sequence[Experiment], store: Store) -> Iterator[Table]:
    """Yield both metrics' tables of every experiment."""
    for experiment in experiments:
        for metric in METRICS:
            yield table(experiment, store, metric)


@dataclass(frozen=True)
class Combined:
    """Several settings' means in one table, as the paper's Tables 1, 2 and that of appendix E."""

    name: str
    title: str
    parts: list[Table]


def _is_part(table: Table, kind: str, models: str) -> bool:
    """Whether a table is one of the paper's, and not of an experiment that goes by a name of its own."""
    return (table.metric, table.models, table.label) == ("sw2", models, "") and table.setting.startswith(kind)


def combined(every: Sequence[Table]) -> list[Combined]:
    """Return the paper's combined tables as far as their settings are among `every`."""
    plan = (
        ("table-1", "Table 1: two-dimensional Gaussians, conditional models", "gaussian", "conditional"),
        ("table-2", "Table 2: mixtures of Gaussians, conditional models", "mixture", "conditional"),
        ("table-separate", "Appendix E: two-dimensional Gaussians, separate models", "gaussian", "separate"),
    )
    found = [
        Combined(name, title, [t for t in every if _is_part(t, kind, models)]) for name, title, kind, models in plan
    ]
    return [table for table in found if table.parts]
