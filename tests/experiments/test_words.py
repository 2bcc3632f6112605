"""What a report says in words, from invented tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyscore.experiments.experiment import Column
from polyscore.experiments.tables import ResultTable
from polyscore.paper.agreement import agreement
from polyscore.paper.report import write_paper_report
from polyscore.paper.tables import Compared
from polyscore.paper.words import DEFINITIONS, PAPER, conclusion, outcome
from small import experiment, filled


def column_of(size: int, first: tuple[float, ...], last: tuple[float, ...]) -> tuple[Compared, Compared]:
    column = Column("conditional" if size else "analytic", size)
    return Compared(1, column, first), Compared(256, column, last)


def invented(setting: str, *columns: tuple[Compared, Compared], models: str = "conditional") -> ResultTable:
    rows = {k: [column[i] for column in columns] for i, k in enumerate((1, 256))}
    return ResultTable(setting, models, "sw2", tuple(column[0].column for column in columns), rows)


LOW, HIGH = (0.10, 0.11, 0.12), (1.0, 1.1, 1.2)


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [(HIGH, LOW, "lowers"), (LOW, HIGH, "raises"), (LOW, LOW, "leaves"), (LOW, (0.1, 0.2, 0.3), "leaves")],
)
def test_only_clear_differences_count(first: tuple[float, ...], last: tuple[float, ...], said: str) -> None:
    assert outcome(*column_of(0, first, last)) == said


def test_exact_learned_in_and_out_of_distribution_are_told_apart() -> None:
    """An analytic column that two tables share counts once; a column of single runs has no error and does not count."""
    tables = [
        invented("x-id", column_of(100, HIGH, LOW), column_of(0, HIGH, LOW)),
        invented("x-id", column_of(100, LOW, LOW), column_of(0, HIGH, LOW), models="separate"),
        invented("x-ood", column_of(100, LOW, HIGH), column_of(1000, LOW[:1], HIGH[:1]), column_of(0, LOW, LOW)),
    ]
    exact, inside, outside = conclusion(tables, agreement(tables))
    assert "lowers SW2 in 1, raises it in 0 and makes no clear difference in 1 of 2 settings" in exact
    assert "lowers SW2 in 1, raises it in 0 and makes no clear difference in 1 of 2 columns" in inside
    assert "lowers SW2 in 0, raises it in 1 and makes no clear difference in 0 of 1 columns" in outside
    assert "factor of 10.00" in outside and "follows their errors" in outside and "follows" not in inside


def test_nothing_is_concluded_from_nothing() -> None:
    assert conclusion([], agreement([])) == []
    raised = invented("x-id", column_of(0, LOW, HIGH))
    assert "helps or does nothing" not in conclusion([raised], [])[0]


def test_a_report_names_the_paper_defines_its_letters_and_ends_in_words(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", experiment())
    write_paper_report([experiment()], store, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert PAPER in page
    assert [name for name, _ in DEFINITIONS] == ["composition", "K", "N", "SW2", "MMD²", "ID", "OOD"]
    places = [page.index(f"<dt>{name}</dt>") for name, _ in DEFINITIONS]
    assert places == sorted(places) and places[-1] < page.index("<table")
    assert page.rindex("<h2") == page.index('<h2 id="conclusion"') > page.rindex("<table")
