"""Names as people and attackers write them: in labels, settings, paths. None leaves a folder or becomes markup."""

from __future__ import annotations

import csv
import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from faults.stores import fake
from faults.tally import Tally
from polyscore.cli import app
from polyscore.errors import OutputError
from polyscore.experiments.lock import StoreError
from polyscore.experiments.store import Store
from polyscore.experiments.thumbnails import keep_points as save
from polyscore.files.atomic import file_name, printable, write_text
from polyscore.paper.report import write_paper_report as write_report
from small import PROTOCOL, experiment

NAMES = {
    "dots": "../../evil", "absolute": "/tmp/evil", "dot": "..", "hidden": ".bashrc", "dash": "-rf", "slash": "a/b\\c",
    "null": "a\0b", "brackets": "[/][bold red]x[link=file:///etc/passwd]", "maths": "$x^$ $\\input{/etc/passwd}$",
    "escape": "\x1b[2J\x1b]0;owned\x07", "newline": "one\n# two\n| three |\r\n", "script": "<script>alert(1)</script>",
    "attribute": '" onerror="alert(1)', "entity": "&lt;b&gt;", "template": "{{ 7 * 7 }}{% for %}", "formula": "=1+1",
    "latex": "\\end{document}\\write18{id}", "long": "x" * 10_000, "bidi": "\u202egnp.exe", "surrogate": "a\ud800b",
    "star": "**b** `c` _d_ [e](javascript:f)", "accents": "Größe π 实验", "blank": "   ",
}  # fmt: skip


class Tags(HTMLParser):
    """Collects the tags and event handlers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(name for name, _ in attrs if name.startswith("on"))]


def harms(out: Path) -> list[str]:
    """What a report's files should not hold."""
    page = Tags()
    page.feed((out / "report.html").read_text(encoding="utf-8"))
    markdown, latex = ((out / f"tables.{kind}").read_text(encoding="utf-8") for kind in ("md", "tex"))
    found = [tag for tag in page.found if tag in ("script", "b", "iframe") or tag.startswith("on")]
    found += re.findall(r"<script|<b>|\x1b|(?m:^# two)|(?<!\\)\[e\]\(|(?<!\\)\*\*b", markdown)
    found += re.findall(r"\\write18|\\input|\x1b|(?<!\\)\$x", latex)
    found += ["document"] if latex.count(r"\end{document}") != 1 else []
    with open(out / "tables.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    found += [cell for row in rows for cell in row if cell.startswith(("=", "@")) or "\x1b" in cell or "\n" in cell]
    return found + [f"row of {len(row)}" for row in rows if len(row) != len(rows[0])]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_labels_stay_in_their_folder_and_are_text(tmp_path: Path, tally: Tally) -> None:
    store = fake(tmp_path / "deep" / "store")
    small = dataclasses.replace(experiment(), train_sizes=(50,), models=("conditional",), particles=(1,))
    for cell in small.cells():
        if cell.run == 0:
            save(store, cell, PROTOCOL, torch.zeros(5, 2))
    out = tmp_path / "deep" / "out"
    write_report([dataclasses.replace(small, label=name) for name in NAMES.values()], Store(store.path), out)
    tally.add("names", len(NAMES))
    tally.let_in(harms(out))
    places = {path.parent for path in tmp_path.rglob("*") if path.is_file()} - set(store.path.rglob("*"))
    tally.let_in(places - {out, out / "figures", store.path})
    pictures = sorted(path.name for path in (out / "figures").iterdir())
    assert len(pictures) == len(NAMES) + 2 and not [name for name in pictures if name.startswith((".", "-"))]
    tally.let_in(list(Path("/tmp").glob("evil*")))


def test_labels_that_clean_alike_keep_pictures_of_their_own() -> None:
    names = [file_name(name) for name in (*NAMES.values(), "a/b", "a|b", "a?b", "")]
    assert len(set(names)) == len(names) and all(0 < len(name) <= 120 for name in names)
    assert file_name("no clip, 5 %") != "no clip, 5 %" and file_name("no-clip 5 % + x") == "no-clip 5 % + x"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_in_a_message_is_one_short_line(name: str) -> None:
    text = printable(name)
    assert len(text) <= 200 and text.isprintable()


@pytest.mark.parametrize("kind", ["null", "long"])
def test_a_path_that_cannot_be_is_an_error_of_ours(tmp_path: Path, kind: str, tally: Tally) -> None:
    tally.add("names", 2)
    with pytest.raises(OutputError, match="must be writable"):
        write_text(tmp_path / NAMES[kind] / "x", "text")
    with pytest.raises(StoreError):
        fake(tmp_path / NAMES[kind])


@pytest.mark.parametrize("kind", ["brackets", "maths", "escape", "newline", "accents", "blank", "dash"])
def test_stores_of_odd_names_merge_and_are_told_of_harmlessly(tmp_path: Path, kind: str, tally: Tally) -> None:
    source = fake(tmp_path / NAMES[kind].replace("/", "-"), runs=1)
    done = CliRunner().invoke(app, ["store", "merge", "--into", str(tmp_path / "all"), "--", str(source.path)])
    tally.add("names")
    assert done.exit_code == 0, done.output
    assert "4 new records" in done.stdout and "\x1b" not in done.stdout and len(Store(tmp_path / "all").records) == 4


def test_what_reads_without_options_is_what_runs_without_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And neither is the committed store."""
    monkeypatch.chdir(tmp_path)
    for command in (["paper", "status"], ["paper", "report"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2
        said = " ".join(done.stderr.split())
        assert "runs/paper is none" in said and "--store results/paper" in said
    fake(tmp_path / "runs" / "paper")
    assert CliRunner().invoke(app, ["paper", "status"]).exit_code == 0
    assert not (tmp_path / "results").exists()
