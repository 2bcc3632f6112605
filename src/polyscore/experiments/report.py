"""The report: tables in three formats, figures, and one HTML file that holds all of it and asks nobody for anything."""

from __future__ import annotations

import base64
import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

import polyscore
from polyscore.algebra import Family
from polyscore.experiments import figures, formats
from polyscore.experiments.cells import Experiment
from polyscore.experiments.store import Record, Store
from polyscore.experiments.tables import METRICS, SYMBOLS, TITLES, Table, combined, is_papers, table, tables
from polyscore.files.atomic import check_directory, file_name, write_text
from polyscore.paper import words
from polyscore.paper.agreement import Agreement, Pair, agreement, claims, pairs


@dataclass(frozen=True)
class Report:
    """What a report found, and its files."""

    agreement: list[Agreement]
    files: list[Path]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        found = [
            {"metric": a.metric, "published": a.published, "compared": a.compared, "share": a.share,
             "beyond": [[formats.cell_name(t, e), e.z] for t, e in a.beyond],
             "runaways": [[formats.cell_name(t, e), e.runaway] for t, e in a.runaways]}
            for a in self.agreement
        ]  # fmt: skip
        return {"agreement": found, "files": [str(path) for path in self.files]}

    def sentences(self) -> list[str]:
        """Return what to tell a reader."""
        return [*(item.sentence() for item in self.agreement), "wrote " + ", ".join(map(str, self.files))]


@dataclass(frozen=True)
class Picture:
    """A figure as a data URL, with its caption."""

    caption: str
    source: str

    @classmethod
    def read(cls, path: Path, caption: str) -> Picture:
        """Return a figure's file inlined."""
        data = base64.b64encode(path.read_bytes()).decode()
        return cls(caption, f"data:image/png;base64,{data}")


@dataclass(frozen=True)
class Opening:
    """A picture that stands before everything else, with its heading and what it shows."""

    heading: str
    picture: Picture

    @classmethod
    def read(cls, heading: str, sentence: str, path: Path) -> Opening:
        """Return one from a picture's file."""
        return cls(heading, Picture.read(path, sentence))


def write_report(
    experiments: Sequence[Experiment],
    store: Store,
    out: Path | str,
    family: Family | None = None,
    title: str = "Catastrophic compositional generation, reproduced",
    opening: Sequence[Opening] = (),
) -> Report:
    """Write report.html, tables.md, tables.tex, tables.csv and figures into `out`.

    Args:
        experiments: what to report; those without a stored cell are left out of tables and figures.
        family: learned scores for Figure 1's second row.
        opening: pictures to begin with, in place of the paper's Figure 1.
    """
    out = Path(out)
    check_directory(out / "figures")
    every = list(tables(experiments, store))
    filled = [item for item in every if item.filled]
    both = [pair for metric in METRICS for pair in pairs(experiments, store, metric)]
    found = agreement(every)
    files = _write_tables(out, filled, both, found)
    pictures = [] if opening else [_figure_one(out / "figures", experiments, store, family)] if experiments else []
    pictures += _figures(out / "figures", experiments, store)
    html = _render(experiments, store, filled, both, found, pictures, title, opening)
    return Report(found, [write_text(out / "report.html", html), *files])


def _write_tables(out: Path, filled: list[Table], both: list[Pair], found: list[Agreement]) -> list[Path]:
    together = combined(filled)
    head = [formats.markdown_agreement(found), *map(formats.markdown_combined, together)]
    markdown = [*head, *([formats.markdown_pairs(both)] if both else []), "## All tables\n"]
    markdown += map(formats.markdown, filled)
    latex = [*map(formats.latex_combined, together), *map(formats.latex, filled)]
    return [
        write_text(out / "tables.md", "\n".join(markdown)),
        write_text(out / "tables.tex", formats.latex_document(latex)),
        write_text(out / "tables.csv", formats.csv_text(filled)),
    ]


def _figures(folder: Path, experiments: Sequence[Experiment], store: Store) -> list[Picture]:
    pictures = []
    for name in dict.fromkeys(e.setting for e in experiments):
        found = [table(e, store) for e in experiments if e.setting == name]
        found = [item for item in found if item.filled]
        if found:
            figures.against_particles(path := folder / f"{file_name(name)}.png", found)
            caption = (
                f"{TITLES.get(name, name)}: SW2 against K; lines ours, open marks published, with one deviation each."
            )
            pictures.append(Picture.read(path, caption))
    for e in experiments:
        if figures.sample_grid(path := folder / f"{file_name(e.name)}-samples.png", e, store):
            caption = f"{table(e, store).title}, {e.models} models: samples of run 0; train sizes down, K across."
            pictures.append(Picture.read(path, caption))
    return pictures


def _figure_one(folder: Path, experiments: Sequence[Experiment], store: Store, family: Family | None) -> Picture:
    steps = min(200, min(e.protocol.steps for e in experiments))
    learned = figures.stored_row(experiments, store) if family is None else figures.sampled_row(family, steps)
    figures.figure_one(path := folder / "figure1.png", learned, steps)
    title = f"The paper's Figure 1 ({TITLES[figures.FIGURE_ONE]})"
    caption = f"{title}, analytic scores" + (f" and {learned.origin}" if learned else "")
    return Picture.read(path, f"{caption}; the dashed circle holds 95 % of the exact composition.")


def _render(
    experiments: Sequence[Experiment], store: Store, filled: list[Table], both: list[Pair], found: list[Agreement],
    pictures: list[Picture], title: str, opening: Sequence[Opening],
) -> str:  # fmt: skip
    source = resources.files("polyscore.experiments").joinpath("report.html.j2").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)
    papers = all(is_papers(e.protocol) for e in experiments)
    note = "" if papers else _note(experiments)
    records = _records(experiments, store)
    versions = sorted({str(r.about.get("version")) for r in records}) or [polyscore.__version__]
    lead = f"{len(records)} cells computed by polyscore {', '.join(versions)}, beside the published numbers."
    beyond = [(formats.cell_name(t, e), formats.ours(e), formats.theirs(e), formats.z_text(e.z, ""))
              for item in found for t, e in item.beyond]  # fmt: skip
    return template.render(
        title=title, lead=lead, note=note, agreement=found, beyond=beyond,
        runaways=formats.runaway_sentences(found), combined=combined(filled), tables=filled,
        pairs=_paired(both), figures=pictures, cost=[_cost(e, store) for e in experiments],
        facts=_facts(experiments, store), number=formats.number, column=formats.column, ours=formats.ours,
        theirs=formats.theirs, z_text=formats.z_text, symbols=SYMBOLS, opening=opening, paper=words.PAPER,
        definitions=words.DEFINITIONS, conclusion=words.conclusion(filled, found),
    )  # fmt: skip


def _note(experiments: Sequence[Experiment]) -> str:
    """Say why there is no z."""
    sampler = " and the sampler is the library's own" if any(e.protocol.corrected for e in experiments) else ""
    return f"These sizes are not the paper's{sampler}: published values are shown for orientation, without z."


def _paired(both: list[Pair]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Metric, claims and rows of the comparison of separate with conditional models."""
    groups = {metric: [pair for pair in both if pair.metric == metric] for metric in METRICS}
    return [
        (SYMBOLS[metric], claims(group), [formats.pair_row(pair, "") for pair in group])
        for metric, group in groups.items()
        if group
    ]


def _records(experiments: Sequence[Experiment], store: Store) -> list[Record]:
    found = {cell.key(e.protocol): store.get(cell, e.protocol) for e in experiments for cell in e.cells()}
    return [record for record in found.values() if record is not None]


def _cost(experiment: Experiment, store: Store) -> dict[str, Any]:
    records = _records([experiment], store)
    return {
        "name": experiment.name,
        "cells": len(set(experiment.cells())),
        "stored": len(records),
        "training": sum(record.about.get("train_seconds", 0.0) for record in records),
        "sampling": sum(record.about.get("seconds", 0.0) for record in records),
        "whole": _whole(experiment, records),
    }


def _whole(experiment: Experiment, records: list[Record]) -> float | None:
    """Minutes that all cells take on the GPU that computed most of these, at the mean pace of each kind; or None."""
    devices = Counter(r.about.get("device") for r in records if r.about.get("device") != "cpu")
    if not devices:
        return None
    device = devices.most_common(1)[0][0]
    paces: dict[tuple[str, int], list[float]] = {}
    for r in records:
        if r.about.get("device") == device:
            spent = r.about.get("seconds", 0.0) + r.about.get("train_seconds", 0.0)
            paces.setdefault((r.cell.models, r.cell.particles), []).append(spent)
    needed = Counter((cell.models, cell.particles) for cell in experiment.cells())
    if needed.keys() - paces.keys():
        return None
    return sum(n * statistics.fmean(paces[kind]) for kind, n in needed.items()) / 60


def _facts(experiments: Sequence[Experiment], store: Store) -> list[tuple[str, str]]:
    """Devices, versions, and every protocol in full."""
    records = _records(experiments, store)
    facts = [
        (label, ", ".join(f"{value} ({n} cells)" for value, n in Counter(r.about.get(key) for r in records).items()))
        for label, key in (("device", "device"), ("polyscore", "version"), ("torch", "torch"))
    ]
    seconds = sum(r.about.get("seconds", 0.0) + r.about.get("train_seconds", 0.0) for r in records)
    protocols = {e.protocol.key: e.protocol for e in experiments}
    settings = [
        (f"protocol {key}", ", ".join(f"{name} = {value}" for name, value in dataclasses.asdict(protocol).items()))
        for key, protocol in protocols.items()
    ]
    return [*facts, ("all cells", f"{seconds:.0f} s of compute"), *settings]
