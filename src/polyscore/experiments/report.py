"""The report of any experiments: tables in three formats, figures, and one HTML file that holds all of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polyscore
from polyscore.experiments import costs, figures, formats
from polyscore.experiments.compute import metric_of
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.pages import Picture, render
from polyscore.experiments.sources import family_of
from polyscore.experiments.store import Store
from polyscore.experiments.tables import SYMBOLS, Entry, ResultTable, symbol, tables_of
from polyscore.files.atomic import check_directory, file_name, write_text
from polyscore.metrics.named import Metric

LETTERS = (
    ("composition", "the distribution that is sampled, as its expression says it."),
    ("K", "particles a swarm; K = 1 is plain denoising, without any correction."),
    ("N", "training points a condition; \"analytic\" stands for the family's own scores, with nothing trained."),
    ("SW2", "sliced Wasserstein distance to the reference, in the data's units; smaller is better."),
    ("MMD²", "squared maximum mean discrepancy to the reference: 0 for equal distributions, at most 2."),
)  # fmt: skip


@dataclass(frozen=True)
class WrittenReport:
    """The files of a report."""

    files: list[Path]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        return {"files": [str(path) for path in self.files]}

    def sentences(self) -> list[str]:
        """Return what to tell a reader."""
        return ["wrote " + ", ".join(map(str, self.files))]


def write_report(
    experiments: Sequence[Experiment], store: Store, out: Path | str, title: str = "Experiments"
) -> WrittenReport:
    """Write report.html, tables.md, tables.tex, tables.csv and figures into `out`.

    Args:
        experiments: what to report; those without a stored cell are left out of tables and figures.
    """
    out = Path(out)
    check_directory(out / "figures")
    filled = [table for table in tables_of(experiments, store) if table.filled]
    files = [
        write_text(out / "tables.md", "\n".join(["## All tables\n", *map(formats.markdown, filled)])),
        write_text(out / "tables.tex", formats.latex_document(list(map(formats.latex, filled)))),
        write_text(out / "tables.csv", formats.csv_text(filled)),
    ]
    pictures = [*_curves(out / "figures", filled), *grids(out / "figures", experiments, store)]
    html = _page(experiments, store, filled, pictures, title)
    return WrittenReport([write_text(out / "report.html", html), *files])


def _curves(folder: Path, filled: Sequence[ResultTable[Entry]]) -> list[Picture]:
    found = []
    for table in filled:
        figures.curves(path := folder / f"{file_name(table.name)}.png", [table])
        found.append(Picture.read(path, f"{formats.caption(table)}, mean and one deviation over {table.runs} runs."))
    return found


def grids(
    folder: Path,
    experiments: Sequence[Experiment],
    store: Store,
    called: Callable[[Experiment], str] = lambda e: e.name,
) -> list[Picture]:
    """Draw the samples of run 0 that a store keeps, one picture an experiment."""
    found = []
    for e in experiments:
        if figures.sample_grid(path := folder / f"{file_name(e.name)}-samples.png", e, store):
            caption = f"{called(e)}: samples of run 0; models and train sizes down, samplers and K across."
            found.append(Picture.read(path, caption + _coordinates(e)))
    return found


def _coordinates(experiment: Experiment) -> str:
    """What a picture of two coordinates leaves out."""
    names = family_of(experiment.source).variables
    return (
        "" if len(names) <= 2 else f" Shown are {names[0]} and {names[1]}, the first two of {len(names)} coordinates."
    )


def _page(
    experiments: Sequence[Experiment], store: Store, filled: Sequence[ResultTable[Entry]], pictures: list[Picture],
    title: str,
) -> str:  # fmt: skip
    letters = [(name, text) for name, text in LETTERS if not _is_metric(name) or name in _symbols(filled)]
    letters += _own_metrics(experiments, filled)
    return render(
        "polyscore.experiments", "page.html.j2", title=title, lead=lead(experiments, store), definitions=letters,
        tables=filled, figures=pictures, **settings_of(experiments, store), shown=formats.shown,
        heading=formats.heading, stub=formats.stub, corner=formats.corner, caption=formats.caption,
    )  # fmt: skip


def _is_metric(name: str) -> bool:
    return name in ("SW2", "MMD²")


def _symbols(filled: Sequence[ResultTable[Entry]]) -> set[str]:
    return {symbol(table.metric) for table in filled}


def _own_metrics(experiments: Sequence[Experiment], filled: Sequence[ResultTable[Entry]]) -> list[tuple[str, str]]:
    """The first line of the docstring of every metric that is shown and not explained above."""
    shown = {table.metric for table in filled} - SYMBOLS.keys()
    found = {name: metric_of(name, e) for e in experiments for name in e.metrics if name in shown}
    return [(name, _first_line(metric)) for name, metric in found.items()]


def _first_line(metric: Metric) -> str:
    return (inspect.getdoc(metric) or "a metric of your own; its docstring would stand here.").split("\n")[0]


def lead(experiments: Sequence[Experiment], store: Store) -> str:
    """Return how many cells are behind a report, and who computed them."""
    records = costs.records_of(experiments, store)
    versions = sorted({str(r.about.get("version")) for r in records}) or [polyscore.__version__]
    return f"{len(records)} cells computed by polyscore {', '.join(versions)}"


def settings_of(experiments: Sequence[Experiment], store: Store) -> dict[str, Any]:
    """Return what a page says of settings and cost."""
    return {"cost": [costs.cost(e, store) for e in experiments], "facts": costs.facts(experiments, store)}
