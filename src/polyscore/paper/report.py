"""The report: tables in three formats, figures, and one HTML file that holds all of it and asks nobody for anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyscore.algebra import Family
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.formats import corner, heading, latex_document, stub
from polyscore.experiments.pages import Picture, render
from polyscore.experiments.report import WrittenReport, grids, lead, settings_of
from polyscore.experiments.store import Store
from polyscore.experiments.tables import symbol
from polyscore.files.atomic import check_directory, file_name, write_text
from polyscore.paper import figures, formats, words
from polyscore.paper.agreement import Agreement, Pair, agreement, claims, pairs
from polyscore.paper.tables import (
    TITLES,
    PaperTable,
    combined,
    compared_table,
    compared_tables,
    is_papers,
    title_of,
)


@dataclass(frozen=True)
class PaperReport(WrittenReport):
    """What a report found, and its files."""

    agreement: list[Agreement]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        found = [
            {"metric": a.metric, "published": a.published, "compared": a.compared, "share": a.share,
             "beyond": [[formats.cell_name(t, e), e.z] for t, e in a.beyond],
             "runaways": [[formats.cell_name(t, e), e.runaway] for t, e in a.runaways]}
            for a in self.agreement
        ]  # fmt: skip
        return {"agreement": found, **super().to_dict()}

    def sentences(self) -> list[str]:
        """Return what to tell a reader."""
        return [*(item.sentence() for item in self.agreement), *super().sentences()]


@dataclass(frozen=True)
class Opening:
    """A picture that stands before everything else, with its heading and what it shows."""

    heading: str
    picture: Picture

    @classmethod
    def read(cls, heading: str, sentence: str, path: Path) -> Opening:
        """Return one from a picture's file."""
        return cls(heading, Picture.read(path, sentence))


def write_paper_report(
    experiments: Sequence[Experiment],
    store: Store,
    out: Path | str,
    family: Family | None = None,
    title: str = "Catastrophic compositional generation, reproduced",
    opening: Sequence[Opening] = (),
) -> PaperReport:
    """Write report.html, tables.md, tables.tex, tables.csv and figures into `out`.

    Args:
        experiments: what to report; those without a stored cell are left out of tables and figures.
        family: learned scores for Figure 1's second row.
        opening: pictures to begin with, in place of the paper's Figure 1.
    """
    out = Path(out)
    check_directory(out / "figures")
    every = list(compared_tables(experiments, store))
    filled = [item for item in every if item.filled]
    metrics = dict.fromkeys(metric for e in experiments for metric in e.metrics)
    both = [pair for metric in metrics for pair in pairs(experiments, store, metric)]
    found = agreement(every)
    files = _write_tables(out, filled, both, found)
    pictures = [] if opening else [_figure_one(out / "figures", experiments, store, family)] if experiments else []
    pictures += _figures(out / "figures", experiments, store)
    html = _render(experiments, store, filled, both, found, pictures, title, opening)
    return PaperReport([write_text(out / "report.html", html), *files], found)


def _write_tables(out: Path, filled: list[PaperTable], both: list[Pair], found: list[Agreement]) -> list[Path]:
    together = combined(filled)
    head = [formats.markdown_agreement(found), *map(formats.markdown_combined, together)]
    markdown = [*head, *([formats.markdown_pairs(both)] if both else []), "## All tables\n"]
    markdown += map(formats.markdown, filled)
    latex = [*map(formats.latex_combined, together), *map(formats.latex, filled)]
    return [
        write_text(out / "tables.md", "\n".join(markdown)),
        write_text(out / "tables.tex", latex_document(latex)),
        write_text(out / "tables.csv", formats.csv_text(filled)),
    ]


def _figures(folder: Path, experiments: Sequence[Experiment], store: Store) -> list[Picture]:
    pictures = []
    for name in dict.fromkeys(e.family for e in experiments):
        tables = [compared_table(e, store, e.metrics[0]) for e in experiments if e.family == name]
        if found := [table for table in tables if table.filled]:
            figures.against_particles(path := folder / f"{file_name(name)}.png", found)
            what = f"{symbol(found[0].metric)} against K; lines ours, open marks published, with one deviation each."
            pictures.append(Picture.read(path, f"{TITLES.get(name, name)}: {what}"))

    def called(e: Experiment) -> str:
        return f"{title_of(compared_table(e, store, e.metrics[0]))}, {e.kinds} models"

    return pictures + grids(folder, experiments, store, called)


def _figure_one(folder: Path, experiments: Sequence[Experiment], store: Store, family: Family | None) -> Picture:
    steps = min(200, min(e.protocol.steps for e in experiments))
    learned = figures.stored_row(experiments, store) if family is None else figures.sampled_row(family, steps)
    figures.figure_one(path := folder / "figure1.png", learned, steps)
    title = f"The paper's Figure 1 ({TITLES[figures.FIGURE_ONE]})"
    caption = f"{title}, analytic scores" + (f" and {learned.origin}" if learned else "")
    return Picture.read(path, f"{caption}; the dashed circle holds 95 % of the exact composition.")


def _render(
    experiments: Sequence[Experiment], store: Store, filled: list[PaperTable], both: list[Pair], found: list[Agreement],
    pictures: list[Picture], title: str, opening: Sequence[Opening],
) -> str:  # fmt: skip
    note = "" if all(is_papers(e.protocol) for e in experiments) else _note(experiments)
    beyond = [(formats.cell_name(t, e), formats.ours(e), formats.theirs(e), formats.z_text(e.z, ""))
              for item in found for t, e in item.beyond]  # fmt: skip
    return render(
        "polyscore.paper", "report.html.j2", title=title, lead=lead(experiments, store), note=note, agreement=found,
        beyond=beyond, runaways=formats.runaway_sentences(found), combined=combined(filled), tables=filled,
        pairs=_paired(both), figures=pictures, **settings_of(experiments, store), number=formats.number,
        heading=heading, stub=stub, corner=corner, ours=formats.ours, theirs=formats.theirs, z_text=formats.z_text,
        symbol=symbol, title_of=title_of, opening=opening, paper=words.PAPER, definitions=words.DEFINITIONS,
        conclusion=words.conclusion(filled, found),
    )  # fmt: skip


def _note(experiments: Sequence[Experiment]) -> str:
    """Say why there is no z."""
    sampler = " and the sampler is the library's own" if any(e.protocol.corrected for e in experiments) else ""
    return f"These sizes are not the paper's{sampler}: published values are shown for orientation, without z."


def _paired(both: list[Pair]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Metric, claims and rows of the comparison of separate with conditional models."""
    metrics = dict.fromkeys(pair.metric for pair in both)
    groups = {metric: [pair for pair in both if pair.metric == metric] for metric in metrics}
    return [
        (symbol(metric), claims(group), [formats.pair_row(pair, "") for pair in group])
        for metric, group in groups.items()
        if group
    ]
