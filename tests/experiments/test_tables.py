"""Tables against hand-computed values; the report asks nobody for anything."""

from __future__ import annotations

import csv
import dataclasses
import html
import html.parser
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyscore import paper as papers
from polyscore.experiments import thumbnails
from polyscore.experiments.cells import Cell
from polyscore.experiments.costs import whole
from polyscore.experiments.experiment import Column, Experiment
from polyscore.experiments.formats import latex_document
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store
from polyscore.experiments.tables import ResultTable
from polyscore.paper import PROTOCOL as PAPERS
from polyscore.paper import Published, figures, formats
from polyscore.paper.agreement import Agreement, Pair, agreement, claims, pairs
from polyscore.paper.report import write_paper_report
from polyscore.paper.tables import Compared, combined, compared_table, compared_tables, is_papers, z_score
from small import PROTOCOL, experiment, filled

COLUMN, KINDS = Column("conditional", 100), ("conditional", "separate")


def invented(path: Path, value: Callable[[Cell], float], runs: int = 4) -> tuple[list[Experiment], Store]:
    """A store whose sw2 and mmd2 are given by a function: tables need no computing to be tested."""
    store = Store(path)
    every = [dataclasses.replace(papers.named(name), runs=runs) for name in papers.names()]
    protocol = every[0].protocol
    cells = {cell for e in every for cell in e.cells()}
    records = {
        cell.key(protocol): Record(
            cell.key(protocol), protocol.key, cell, {"sw2": value(cell), "mmd2": value(cell)}, {}
        )
        for cell in cells
    }
    store.records.update(records)
    return every, store


def test_z_is_the_difference_over_the_combined_error() -> None:
    # 0.2 - 5e-5 over sqrt(0.3^2 / 9 + (0.5 + 5e-5)^2 / 30) = 0.19995 / 0.135406
    assert z_score(1.2, 0.3, 9, Published(1.0, 0.5)) == pytest.approx(1.47666, abs=1e-4)
    assert z_score(0.8, 0.3, 9, Published(1.0, 0.5)) == pytest.approx(-1.47666, abs=1e-4)
    assert z_score(1.00004, 0.0, 9, Published(1.0, 0.0)) == 0
    # published as 0.0001 ± 0.0000: the spread may be 5e-5, and so may the mean be off
    assert z_score(0.0003, 0.0, 9, Published(0.0001, 0.0)) == pytest.approx(0.00015 / (5e-5 / math.sqrt(30)))


def test_an_entry_has_population_moments_and_no_z_without_a_spread() -> None:
    entry = Compared(4, COLUMN, (1.0, 2.0, 3.0, 4.0), Published(2.5, 1.0))
    assert (entry.mean, entry.std, entry.runs, entry.z) == (2.5, math.sqrt(1.25), 4, 0.0)
    assert Compared(4, COLUMN, (1.0,), Published(2.5, 1.0)).z is None
    assert Compared(4, COLUMN, (), Published(2.5, 1.0)).mean is None
    assert Compared(4, COLUMN, (1.0, 1.1), Published(9.0, 0.1), comparable=False).z is None
    assert Compared(4, COLUMN, (1.0, 1.1), Published(9.0, 0.1)).beyond


def test_a_run_that_decides_the_mean_is_named(tmp_path: Path) -> None:
    """Its own spread hides it from z: 9 runs of 1 and one of 76 are within one standard error of 1."""
    entry = Compared(4, COLUMN, (*(1.0,) * 9, 76.0), Published(0.9, 0.4))
    assert entry.runaway == 76.0 and not entry.beyond
    assert Compared(4, COLUMN, (*(1.0,) * 9, 9.9), Published(0.9, 0.4)).runaway is None
    assert Compared(4, COLUMN, (0.01, 1.0), Published(0.9, 0.4)).runaway is None
    assert Compared(4, COLUMN, (), Published(0.9, 0.4)).runaway is None
    assert Compared(4, COLUMN, (0.0, 0.0, 0.0), Published(0.9, 0.4)).runaway is None
    other = dataclasses.replace(entry, comparable=False)
    assert "single run" not in Agreement("sw2", 2, 1, [], [(ResultTable("x", "y", "sw2", (), {}), other)]).sentence()
    strays = lambda c: 50.0 if (c.train_size, c.run, c.particles) == (100, 3, 64) else 1.0  # noqa: E731
    every, store = invented(tmp_path, strays)
    sw2, mmd2 = agreement(list(compared_tables(every[:1], store)))
    assert [(e.row, e.column.size) for _, e in sw2.runaways] == [(64, 100)] and not mmd2.runaways
    text = formats.markdown_agreement([sw2, mmd2])
    assert "(in 1 of them a single run decides mean and error)" in text
    assert "N = 100, K = 64: one run of 4 is 50.0000, the median 1.0000; samples ran away" in text


def test_only_the_papers_protocol_is_compared() -> None:
    assert is_papers(PAPERS) and is_papers(dataclasses.replace(PAPERS, precision="float32"))
    assert not is_papers(dataclasses.replace(PAPERS, clip=None)) and not is_papers(PROTOCOL)


def test_a_table_reads_its_own_cells(tmp_path: Path) -> None:
    every, store = invented(tmp_path, lambda c: c.particles + c.train_size / 1e5 + c.run)
    found = compared_table(every[0], store)
    assert [column.size for column in found.columns] == [100, 1000, 10000, 0]
    assert list(found.rows) == [
        1,
        4,
        16,
        64,
        256,
    ]
    assert found.rows[16][1].values == (16.01, 17.01, 18.01, 19.01)
    assert found.rows[16][3].mean == 17.5 and found.rows[16][3].published == (0.0351, 0.0054)
    assert found.runs == "4"
    fewer = compared_table(dataclasses.replace(every[0], runs=6), store)
    assert fewer.rows[1][0].runs == 4


def test_agreement_counts_cells_and_lists_those_beyond(tmp_path: Path) -> None:
    def value(cell: Cell) -> float:
        kind = "conditional" if cell.models == "analytic" else cell.models
        known = papers.published(cell.family, kind, "sw2", cell.particles, cell.train_size or "analytic")
        far = cell.family == "mixture-id" and cell.models == "conditional" and cell.particles == 64
        return known.mean + (2.0 if far else 0.0) + known.std * (-1) ** cell.run

    every, store = invented(tmp_path, lambda c: value(c) if c.target == "composition" else 1.0)
    conditional = [e for e in every if e.kinds == "conditional"]
    sw2, mmd2 = agreement(list(compared_tables(conditional, store)))
    assert (sw2.published, sw2.compared, len(sw2.beyond)) == (120, 120, 3)
    assert sw2.share == pytest.approx(117 / 120) and "117 of 120 compared cells (97.5 %)" in sw2.sentence()
    assert {(t.family, e.row) for t, e in sw2.beyond} == {("mixture-id", 64)}
    assert mmd2.published == 120
    assert "mixture-id, conditional, N = 100, K = 64" in formats.markdown_agreement([sw2])


def test_separate_and_conditional_are_paired(tmp_path: Path) -> None:
    every, store = invented(tmp_path, lambda c: (2.0 if c.models == "separate" else 1.0) + c.run)
    found = pairs(every, store)
    assert len(found) == 6 * (3 + 5) and found[0].target == "a1" and found[3].target == "composition"
    assert found[0].conditional == (1.0, 2.0, 3.0, 4.0)
    assert found[0].z == pytest.approx(1 / math.sqrt(2 * 1.25 / 4))
    assert Pair("x", "a1", 1, "sw2", (1.0,), ()).z is None
    assert "| gaussian-factorized-id | a1 | 1 | 2.5000 ± 1.1180 (4) |" in formats.markdown_pairs(found)


def test_only_experiments_of_one_protocol_are_paired(tmp_path: Path) -> None:
    """Whatever their order: another protocol's numbers would be bold and wrong."""
    one, many = (
        papers.experiment("mixture-id", kind, train_sizes=(20, 50), runs=2) for kind in ("conditional", "separate")
    )
    other = dataclasses.replace(one, protocol=dataclasses.replace(PAPERS, steps=5), label="five steps")
    fewer = dataclasses.replace(many, train_sizes=(20, 80))
    store = Store(tmp_path)
    for e, value in ((one, 1.0), (other, 100.0), (many, 2.0), (fewer, 2.0)):
        for cell in set(e.cells()):
            store.records[cell.key(e.protocol)] = Record("", "", cell, {"sw2": value + cell.train_size}, {})
    for order in ([one, other, many], [other, many, one]):
        found = pairs(order, store)
        assert {(pair.conditional, pair.separate) for pair in found} == {((51.0, 51.0), (52.0, 52.0))}
    composed = [pair for pair in pairs([one, fewer], store) if pair.target == "composition"]
    assert composed and all(pair.conditional == (21.0, 21.0) and pair.separate == (22.0, 22.0) for pair in composed)
    assert not pairs([other, many], store)


def test_names_of_specs_do_not_break_latex(tmp_path: Path) -> None:
    sizes = {"train_sizes": (20,), "particles": (1,), "runs": 2}
    named = papers.experiment("mixture-id", **sizes, label="no_clip & 100% {x} ~^\\ #1 $2")
    store = Store(tmp_path)
    document = latex_document([formats.latex(compared_table(named, store))])
    assert r"no\_clip \& 100\% \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} \#1 \$2" in document
    assert r"\label{tab:no-clip---100---x-------1--2-sw2}" in document
    if shutil.which("pdflatex"):
        (tmp_path / "t.tex").write_text(document)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


def test_a_label_keeps_an_experiment_out_of_the_papers_tables(tmp_path: Path) -> None:
    """One of another setting may have the name of one of the paper's, and a family of one's own begin like them."""
    every, store = invented(tmp_path, lambda c: 1.0)
    fake = dataclasses.replace(papers.named("mixture-id-conditional"), label="mixture-ood-conditional")
    own = dataclasses.replace(papers.named("mixture-id-conditional"), family="mixture-of-mine")
    assert own.name == "mixture-of-mine-conditional" and own.label == ""
    assert "table-2" not in {item.name for item in combined(list(compared_tables([every[0], fake, own], store)))}


def test_the_appendix_claim_is_counted(tmp_path: Path) -> None:
    def value(cell: Cell) -> float:
        composed = {True: 3.0, False: 1.0}[cell.family.endswith("ood")]
        separate = composed if cell.target == "composition" else 1.5
        return (separate if cell.models == "separate" else 1.0) + 0.1 * cell.run

    every, store = invented(tmp_path, value)
    alone, inside, outside = claims(pairs(every, store))
    assert alone.startswith("a condition alone: SW2 of separate models is 1.43 times") and "(median of 18)" in alone
    assert "worse by more than 3 standard errors in 18, better in 0" in alone
    assert "is 1.00 times" in inside and "errors in 0, better in 0" in inside
    assert "is 2.74 times" in outside and "(median of 15)" in outside and "errors in 15, better in 0" in outside
    assert claims([]) == []
    conditional, separate = (papers.named(f"mixture-ood-{kind}") for kind in KINDS)
    other = dataclasses.replace(separate, expression="a1 * a2", label="other")
    assert pairs([conditional, other], store) == []
    assert pairs([conditional, other, separate], store) == pairs([conditional, separate], store) != []


def test_figure_one_takes_its_learned_row_from_the_store(tmp_path: Path) -> None:
    every, store = papers.named("gaussian-factorized-ood-conditional"), Store(tmp_path)
    wanted = [Cell(every.family, "conditional", 10_000, 0, 1, name) for name in ("a1", "a2", "base")]
    wanted += [Cell(every.family, "conditional", 10_000, 0, k) for k in (1, 16)]
    for mark, cell in enumerate(wanted):
        assert figures.stored_row([every], store) is None
        thumbnails.keep_points(store, cell, every.protocol, torch.full((5, 2), float(mark)))
    row = figures.stored_row([every], store)
    assert row is not None and "10000" in row.origin
    assert [points[0, 0].item() for points in (*row.sources, *row.composed)] == [0, 1, 2, 3, 4]


def test_figure_one_shows_no_other_composition(tmp_path: Path) -> None:
    every = papers.named("gaussian-factorized-ood-conditional")
    own, store = dataclasses.replace(every, expression="a1^0.5 * a2^0.5"), Store(tmp_path)
    places = [(1, name) for name in ("a1", "a2", "base")] + [(k, "composition") for k in (1, 16)]
    for k, target in places:
        cell = own.cell(k, Column("conditional", 10_000), 0, target)
        thumbnails.keep_points(store, cell, own.protocol_of(cell), torch.zeros(5, 2))
    assert figures.stored_row([own], store) is None


def test_the_cost_of_all_cells_is_computed_from_the_gpus_pace(tmp_path: Path) -> None:
    every, store = dataclasses.replace(papers.named("mixture-id-conditional"), runs=2), Store(tmp_path)
    with store.writing():
        for cell in every.cells():
            slow = {"device": "cpu", "seconds": 1000.0} if cell.run else {"device": "NVIDIA H200", "seconds": 1.0}
            store.add(cell, every.protocol, {"sw2": 1.0, "mmd2": 1.0}, {**slow, "train_seconds": 0.5})
    records = list(store.records.values())
    assert whole(every, records) == pytest.approx(len(list(every.cells())) * 1.5 / 60)
    assert whole(every, [r for r in records if r.about["device"] == "cpu"]) is None
    assert whole(every, [r for r in records if r.cell.particles != 64]) is None


def test_missing_cells_are_dashes_everywhere(tmp_path: Path) -> None:
    found = compared_table(papers.named("mixture-ood-conditional"), Store(tmp_path))
    assert not found.filled and found.runs == "no"
    text = formats.markdown(found)
    assert "| 1 | ours | – | – | – | – |" in text and "4.2102 ± " in text
    assert text.count("| – | – | – | – |") == 10
    assert formats.csv_text([found]).splitlines()[1].startswith("mixture-ood,conditional,sw2,1,100,,,0,")


def test_markdown_marks_what_is_beyond(tmp_path: Path) -> None:
    every, store = invented(tmp_path, lambda c: 5.0 + 0.01 * c.run)
    text = formats.markdown(compared_table(every[0], store))
    assert "| 1 | ours | 5.0150 ± 0.0112 (4) |" in text and "| published | 0.3537 ± 0.0859 |" in text
    assert re.search(r"\| z \| \*\*\+\d+\.\d\*\* \|", text)


def test_latex_iswhole(tmp_path: Path) -> None:
    every, store = invented(tmp_path, lambda c: 5.0 + 0.01 * c.run)
    found = list(compared_tables(every, store))
    document = latex_document([*map(formats.latex_combined, combined(found)), *map(formats.latex, found)])
    for name in ("table", "table*", "tabular", "minipage", "document"):
        assert document.count(rf"\begin{{{name}}}") == document.count(rf"\end{{{name}}}") > 0
    assert document.count("{") == document.count("}") and document.count("$") % 2 == 0
    assert document.isascii() and "_2" in document
    for body in re.findall(r"\\begin\{tabular\}\{(.*?)\}\n(.*?)\\end\{tabular\}", document, re.S):
        columns = sum(body[0].count(letter) for letter in "rlc")
        rows = [line for line in body[1].splitlines() if line.endswith(r"\\")]
        assert len(rows) > 5 and all(row.count("&") == columns - 1 for row in rows)
    if shutil.which("pdflatex"):
        (tmp_path / "t.tex").write_text(document)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120).returncode == 0
        assert "Overfull" not in (tmp_path / "t.log").read_text(errors="replace")  # nothing runs into its neighbour


def test_combined_tables_are_the_papers(tmp_path: Path) -> None:
    every, store = invented(tmp_path, lambda c: 1.0)
    found = combined(list(compared_tables(every, store)))
    assert [(c.name, len(c.parts)) for c in found] == [("table-1", 4), ("table-2", 2), ("table-separate", 4)]
    text = formats.markdown_combined(found[2])
    assert "| 1 | **1.0000 (0.4443)** |" in text and "### Factorized conditionals + ID (4 runs)" in text
    assert "& 1.0000 (0.4443)* &" in formats.latex_combined(found[2])


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]
        assert tag not in ("script", "link", "iframe", "object")


def test_the_report_is_self_contained_and_says_what_is_behind_it(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", experiment(), experiment("separate"))
    report = write_paper_report([experiment(), experiment("separate")], store, tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    links = _Links()
    links.feed(text)
    assert links.found and all(link.startswith(("#", "data:image/")) for link in links.found)
    assert "@import" not in text and "url(" not in text
    for part in ("Factorized conditionals + OOD", "(2)", "cpu", PROTOCOL.key, "train_steps = 10", "18 of 18",
                 "These sizes are not the paper's", "viewport", "@media print"):  # fmt: skip
        assert part in html.unescape(text), part
    assert [path.name for path in report.files] == ["report.html", "tables.md", "tables.tex", "tables.csv"]
    with (tmp_path / "out" / "tables.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2 * 3 and {row["runs"] for row in rows} == {"2"}
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert "figure1.png" in names and "gaussian-factorized-ood-conditional-samples.png" in names


def test_an_empty_store_makes_an_empty_report(tmp_path: Path) -> None:
    report = write_paper_report([papers.named("mixture-id-conditional")], Store(tmp_path / "none"), tmp_path / "out")
    assert "none of 20 published cells" in report.sentences()[0]
    assert isinstance(compared_table(papers.named("mixture-id-conditional"), Store(tmp_path / "none")), ResultTable)


def test_two_experiments_of_one_setting_are_told_apart(tmp_path: Path) -> None:
    """The same cells under two protocols: every row, heading and file says whose it is."""
    plain = experiment()
    other = dataclasses.replace(plain, label="no-clip", protocol=dataclasses.replace(PROTOCOL, clip=None))
    store = filled(tmp_path / "store", plain, other)
    write_paper_report([plain, other], store, tmp_path / "out")
    with (tmp_path / "out" / "tables.csv").open() as file:
        rows = list(csv.DictReader(file))
    places = [tuple(row[k] for k in ("experiment", "metric", "particles", "train_size")) for row in rows]
    assert len(set(places)) == len(places)
    assert {row["experiment"] for row in rows} == {"gaussian-factorized-ood-conditional", "no-clip"}
    assert "(no-clip)" in (tmp_path / "out" / "tables.md").read_text()
    assert (tmp_path / "out" / "figures" / "no-clip-samples.png").is_file()


def test_a_result_that_is_not_finite_is_missing(tmp_path: Path) -> None:
    every, store = invented(tmp_path, lambda c: math.nan if c.run == 1 else 5.0 + c.run)
    entry = compared_table(every[0], store).rows[1][0]
    assert entry.values == (5.0, 7.0, 8.0)
    assert "(3)" in formats.ours(entry)


def test_the_report_counts_the_cells_it_shows(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", experiment(), experiment("separate"))
    write_paper_report([experiment()], store, tmp_path / "out")
    assert f"{len(set(experiment().cells()))} cells computed" in (tmp_path / "out" / "report.html").read_text()
