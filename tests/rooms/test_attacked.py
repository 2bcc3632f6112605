"""`rooms generate` attacked: cut, raced, misled by models, prompts and classes; on a tiny random Flux pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polyscore.cli import app
from polyscore.errors import OutputError, PolyscoreError
from polyscore.files.atomic import held
from polyscore.rooms import Dataset, flux, pack, pictures, render
from polyscore.rooms.generating import Drawing, generate
from polyscore.rooms.label_server import check
from polyscore.rooms.labelling import Labelling
from polyscore.rooms.prompts import PROMPTS, check_prompt
from polyscore.rooms.selecting import select
from polyscore.rooms.sheet import contact_sheet
from rooms.by_hand import write_rooms
from rooms.tiny_flux import save

TINY: dict[str, Any] = {"device": "cpu", "batch": 3, "classes": ["couch"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "tiny-flux")


def tiny(folder: Path, **options: Any) -> Drawing:
    return Drawing(**{"resolution": 8, "drawn": 16, "steps": 1, "model": str(folder)} | options)


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is asked for, to change."""
    mine = dict(PROMPTS._entries)
    monkeypatch.setattr(PROMPTS, "_entries", mine)
    return mine


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def cut_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    real, calls = flux.Flux.paint, []

    def paint(self: flux.Flux, *arguments: Any) -> np.ndarray:
        calls.append(1)
        if len(calls) > batches:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(flux.Flux, "paint", paint)


def test_an_interruption_costs_the_batch_in_flight(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path / "whole", 7, drawing=tiny(folder), **TINY)
    asked = ["rooms", "generate", str(tmp_path / "cut"), "-n", "7", "--class", "couch", "--model", str(folder),
             "--drawn", "16", "--resolution", "8", "--steps", "1", "--device", "cpu", "--batch", "3"]  # fmt: skip
    with monkeypatch.context() as patch:
        cut_after(patch, 1)
        said = CliRunner().invoke(app, asked)
    assert said.exit_code == 130 and "holds what is done, and the same command goes on" in " ".join(said.stderr.split())
    assert sorted(path.name for path in (tmp_path / "cut" / "couch").iterdir()) == [f"{k:06}.png" for k in range(3)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert content(tmp_path / "cut") == content(tmp_path / "whole")  # not a byte of difference


def test_a_second_writer_is_told_and_changes_nothing(folder: Path, tmp_path: Path) -> None:
    generate(tmp_path / "out", 2, drawing=tiny(folder), **TINY)
    before = content(tmp_path / "out")
    with (
        held(tmp_path / "out" / "dataset.json"),
        pytest.raises(OutputError, match=r"one process may write .* at a time; another does"),
    ):
        generate(tmp_path / "out", 5, drawing=tiny(folder), **TINY)
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("wrong", [{"model": "nowhere"}, {"resolution": 9, "drawn": 18}], ids=["model", "multiple"])
def test_what_nothing_came_of_binds_nobody(folder: Path, tmp_path: Path, wrong: dict) -> None:
    """A model that is not there is refused; the right one may then go to the same place."""
    wrong = wrong if "model" not in wrong else {"model": str(tmp_path / "nowhere")}
    with pytest.raises(PolyscoreError, match=r"model must be|drawn must be"):
        generate(tmp_path / "out", 2, drawing=tiny(folder, **wrong), **TINY)
    found = generate(tmp_path / "out", 2, drawing=tiny(folder), **TINY).dataset
    assert (found.about["model"], found.resolution, len(found)) == ("tiny-flux", 8, 2)
    with pytest.raises(PolyscoreError, match="must keep its resolution"):  # pictures do bind
        generate(tmp_path / "out", 2, drawing=tiny(folder, resolution=16), **TINY)
    (found.path / "couch" / "rooms.jsonl").unlink()
    about = json.loads((found.path / "dataset.json").read_text())
    (found.path / "dataset.json").write_text(json.dumps(about | {"classes": {"couch": 0}}))  # cut before the records
    with pytest.raises(PolyscoreError, match="must keep its resolution"):
        generate(tmp_path / "out", 2, drawing=tiny(folder, resolution=16), **TINY)


def test_no_class_is_not_every_class(folder: Path, tmp_path: Path) -> None:
    for make in (lambda given: generate(tmp_path / "out", 1, drawing=tiny(folder), **TINY | {"classes": given}),
                 lambda given: render(tmp_path / "out", 1, classes=given)):  # fmt: skip
        with pytest.raises(PolyscoreError, match=r"classes must name at least one; got none. Leave them out for all"):
            make([])
        with pytest.raises(PolyscoreError, match=r"classes must be a list of names; got 'couch'. Put it into a list"):
            make("couch")
    assert not (tmp_path / "out").exists()
    data = generate(tmp_path / "data", 1, drawing=tiny(folder), **TINY).dataset
    with pytest.raises(PolyscoreError, match=r"classes must name at least one"):
        select(data.path, tmp_path / "selected", classes=[])


@pytest.mark.parametrize("prompt, rule", [
    (7, "be text; got 7"), (None, "be text; got None"), ("a \ud800 couch", "be text"),
    ("word " * 2000, "have at most 5000 characters; got 10000"),
    ("(" * 12 + "couch", "open at most 3 brackets at once"), ("((((couch))))", "open at most 3 brackets at once"),
    ("a (b (c (d (e", "open at most 3 brackets at once"),
    ('("a couch", "a table").and()', "a prompt must be one, with weights"),
    ('("a couch", "a table").blend(1, 0.5)', "a prompt must be one, with weights"),
])  # fmt: skip
def test_prompts_that_cannot_be_read_are_refused(
    folder: Path, tmp_path: Path, prompts: dict, prompt: Any, rule: str
) -> None:
    """compel takes five times as long for each bracket that is open: twelve are minutes."""
    prompts["couch"] = prompt
    with pytest.raises(PolyscoreError, match=rule):
        generate(tmp_path / "out", 1, drawing=tiny(folder), **TINY)
    assert not list(tmp_path.rglob("*.png"))


ODD = ["", "a\x00b\n\u202ec", "🛋 سرير", "a \"couch' \\( {0} %s $(x)", "(couch", "couch)))))", "((a)1.2 b)1.1", "[a|b]"]


@pytest.mark.parametrize("prompt", ODD)
def test_odd_prompts_are_kept_to_the_letter(folder: Path, tmp_path: Path, prompts: dict, prompt: str) -> None:
    prompts["couch"] = check_prompt(prompt, "couch")
    found = generate(tmp_path / "out", 1, drawing=tiny(folder), **TINY).dataset
    assert found.records("couch")[0].prompt == prompt
    assert pictures.record(found.path / "couch" / "000000.png")["prompt"] == prompt
    assert found.images("couch").std() > 5


def test_a_class_that_grows_keeps_its_prompt(folder: Path, tmp_path: Path, prompts: dict) -> None:
    generate(tmp_path / "out", 2, drawing=tiny(folder), **TINY)
    prompts["couch"] = "a couch of another kind"
    with pytest.raises(PolyscoreError, match=r"a class that grows \(couch\) must keep its prompt; got 'a couch of ano"):
        generate(tmp_path / "out", 4, drawing=tiny(folder), **TINY)
    assert len(list((tmp_path / "out" / "couch").glob("*.png"))) == 2
    more = generate(tmp_path / "out", 1, drawing=tiny(folder), **TINY | {"classes": ["table"]}).dataset
    assert more.about["classes"] == {"couch": 2, "table": 1}  # other classes may come
    assert len(Dataset(tmp_path / "out")) == 3


def two_rooms(out: Path) -> Dataset:
    return write_rooms(out, {"couch": 2}, lambda index: np.full((8, 8, 3), 90 * index, np.uint8))


ODD = [5, 0.5, True, object(), b"couch"]


@pytest.mark.parametrize("classes", ODD)
def test_classes_that_are_no_list_are_refused_everywhere(tmp_path: Path, classes: Any) -> None:
    data = two_rooms(tmp_path / "data")
    for work in (
        lambda: render(tmp_path / "out", 1, classes=classes),
        lambda: generate(tmp_path / "out", 1, classes=classes),
        lambda: select(data.path, tmp_path / "out", classes=classes),
        lambda: Labelling(data, classes),
    ):
        with pytest.raises(PolyscoreError, match=r"classes must be a list of names; got .* Put it into a list"):
            work()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["runs/selected", 0, False, {}, Path("x")])
def test_what_is_no_selector_look_or_drawing_is_refused(tmp_path: Path, value: Any) -> None:
    data = two_rooms(tmp_path / "data")
    for name, work in {
        "selector": lambda: select(data.path, tmp_path / "out", selector=value),
        " selector": lambda: generate(tmp_path / "out", 1, classes=["couch"], selector=value),
        "look": lambda: render(tmp_path / "out", 1, look=value),
        "drawing": lambda: generate(tmp_path / "out", 1, drawing=value),
    }.items():
        with pytest.raises(PolyscoreError, match=f"{name.strip()} must be a {name.strip().capitalize()}"):
            work()
    assert not (tmp_path / "out").exists()


def test_numbers_of_rooms_may_be_numpys_and_must_be_numbers(tmp_path: Path) -> None:
    data = two_rooms(tmp_path / "data")
    (by_numpy,) = pack(data, tmp_path / "numpy", quality=np.int64(90))  # type: ignore[arg-type]
    assert by_numpy.read_bytes() == pack(data, tmp_path / "own", quality=90)[0].read_bytes()
    with pytest.raises(PolyscoreError, match="threshold must be a number above 0"):
        select(data.path, tmp_path / "out", threshold=10**400)
    with pytest.raises(PolyscoreError, match="port must be from 0 to 65535; got True"):
        check(data.path, None, 1, True)
    for options, rule in (({"columns": 1.5}, "columns must be at least 1, and whole"), ({"columns": None}, "columns"),
                          ({"least": "96"}, "least must be a whole"), ({"least": 10**9}, "least must")):  # fmt: skip
        with pytest.raises(PolyscoreError, match=rule):
            contact_sheet(data, **options)
