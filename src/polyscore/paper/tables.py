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
from polyscore.experiments.cells import ANALYTIC
from polyscore.experiments.experiment import Column, Experiment, Row
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.store import Store
from polyscore.experiments.tables import Entry, ResultTable, table_of
from polyscore.paper.published import RUNS, Published, published
from polyscore.paper.settings import Setting
from polyscore.paper.specs import KINDS, PROTOCOL

ROUNDING = 5e-5
BEYOND = 3.0
RUNAWAY = 10.0  # times the median: a run that by itself decides mean and deviation
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
class Compared(Entry):
    """One cell of a table beside the published one.

    Attributes:
        published: None where the paper has no such cell.
        comparable: whether ours follows the paper's protocol, so that z means something.
    """

    published: Published | None = None
    comparable: bool = True

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


PaperTable = ResultTable[Compared]


def title_of(table: PaperTable) -> str:
    """Return the paper's title for the setting, and the experiment's own name where it has one."""
    title = TITLES.get(table.family, table.family)
    return f"{title} ({table.label})" if table.label else title


def is_papers(protocol: Protocol) -> bool:
    """Whether results may be compared with the published ones: the paper's protocol, in any precision."""
    return dataclasses.replace(protocol, precision=PROTOCOL.precision) == PROTOCOL


def compared_table(experiment: Experiment, store: Store, metric: str = "sw2") -> PaperTable:
    """Return a metric's table of an experiment, from what is stored, beside the published one."""
    table, comparable = table_of(experiment, store, metric), is_papers(experiment.protocol)

    def beside(e: Entry) -> Compared:
        return Compared(e.row, e.column, e.values, _published(experiment, metric, e.row, e.column), comparable)

    return ResultTable(**{**vars(table), "rows": {row: [*map(beside, entries)] for row, entries in table.rows.items()}})


def _published(experiment: Experiment, metric: str, row: Row, column: Column) -> Published | None:
    """The published cell of the same place: of the conditional tables where ours trains nothing."""
    kind = column.models if column.size else (experiment.learned or KINDS)[0]
    if not isinstance(experiment.source, Setting) or not isinstance(row, int) or experiment.expression is not None:
        return None
    try:
        return published(experiment.family, kind, metric, row, column.size or ANALYTIC)
    except ArgumentError:
        return None


def compared_tables(experiments: Sequence[Experiment], store: Store) -> Iterator[PaperTable]:
    """Yield every metric's table of every experiment."""
    for experiment in experiments:
        for metric in experiment.metrics:
            yield compared_table(experiment, store, metric)


@dataclass(frozen=True)
class Combined:
    """Several settings' means in one table, as the paper's Tables 1, 2 and that of appendix E."""

    name: str
    title: str
    parts: list[PaperTable]


def _is_part(table: PaperTable, kind: str, models: str) -> bool:
    """Whether a table is one of the paper's, and not of a family or an experiment that goes by a name of its own."""
    papers = table.family in TITLES and table.family.startswith(kind)
    return papers and (table.metric, table.models, table.label) == ("sw2", models, "")


def combined(every: Sequence[PaperTable]) -> list[Combined]:
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
