"""Folders that grow: what lies there counts only where it is the picture that belongs there. No renderer needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyscore.errors import PolyscoreError
from polyscore.rooms import Dataset, Look, making, pack, pictures, render, unpack
from polyscore.rooms.dataset import write_about

LOOK = Look(resolution=16)


@dataclass
class Drawn:
    image: np.ndarray
    line: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.line


def line(name: str, index: int) -> dict[str, Any]:
    return {"class": name, "index": index, "shows": name, "objects": {}, "flaw": None}


def image(name: str, index: int, side: int = 16) -> np.ndarray:
    return np.random.default_rng([len(name), index]).integers(0, 256, (side, side, 3), dtype=np.uint8)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Rooms of noise in place of rendered ones; returns those that were drawn."""
    done: list[tuple[str, int]] = []

    def draw(seed: int, name: str, index: int, look: Look) -> Drawn:
        done.append((name, index))
        return Drawn(image(name, index, look.resolution), line(name, index))

    monkeypatch.setattr(making, "draw", draw)
    monkeypatch.setattr(making, "require_installed", lambda: None)
    return done


def make(out: Path, count: int = 3, **options: Any) -> Dataset:
    return render(out, count, **{"classes": ["couch", "table"], "look": LOOK, "workers": 1} | options)


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "forged",
    [
        pictures.png(image("couch", 1), {}),
        pictures.png(image("couch", 1), line("couch", 1) | {"index": None}),
        pictures.png(image("couch", 1), line("couch", 2)),
        pictures.png(image("couch", 1), line("table", 1)),
        pictures.png(image("couch", 1), line("couch", 1) | {"objects": 3}),
        pictures.png(image("couch", 1, 8), line("couch", 1)),
        pictures.png(image("couch", 1), line("couch", 1))[:-30],
        b"",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
    ],
)
def test_a_picture_that_is_not_the_one_that_belongs_there_is_made_again(
    tmp_path: Path, drawn: list[tuple[str, int]], forged: bytes
) -> None:
    make(tmp_path / "rooms")
    before = content(tmp_path / "rooms")
    drawn.clear()
    (tmp_path / "rooms" / "couch" / "000001.png").write_bytes(forged)
    assert len(make(tmp_path / "rooms")) == 6
    assert drawn == [("couch", 1)] and content(tmp_path / "rooms") == before


def test_other_files_in_a_class_do_not_join_its_records(tmp_path: Path, drawn: list[tuple[str, int]]) -> None:
    make(tmp_path / "rooms")
    (tmp_path / "rooms" / "couch" / "000007.png").write_bytes(pictures.png(image("couch", 7), {"index": "<script>"}))
    (tmp_path / "rooms" / "couch" / "1.png").write_bytes(pictures.png(image("couch", 1), line("couch", 1)))
    found = make(tmp_path / "rooms").records("couch")
    assert [(one.file, one.index) for one in found] == [(f"{k:06}.png", k) for k in range(3)]


def test_a_class_that_is_named_twice_is_made_once(tmp_path: Path, drawn: list[tuple[str, int]]) -> None:
    told: list[tuple[int, int]] = []
    make(tmp_path / "rooms", 2, classes=["couch", "couch"], progress=lambda *done: told.append(done))
    assert drawn == [("couch", 0), ("couch", 1)] and told[-1] == (2, 2)


def test_who_comes_second_sees_what_the_first_wrote(
    tmp_path: Path, drawn: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another renderer begins and ends between our look at the folder and our lock."""
    out = tmp_path / "rooms"

    def another(seed: int) -> None:
        monkeypatch.setattr(making, "require_installed", lambda: None)
        make(out, 2, classes=["table"], seed=seed)

    monkeypatch.setattr(making, "require_installed", lambda: another(8))
    with pytest.raises(PolyscoreError, match="must keep its seed; got 3, it has 8"):
        make(out, 1, classes=["couch"], seed=3)
    assert json.loads((out / "dataset.json").read_text())["seed"] == 8 and not (out / "couch").exists()
    for file in sorted(out.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    monkeypatch.setattr(making, "require_installed", lambda: another(3))
    assert make(out, 1, classes=["couch"], seed=3).about["classes"] == {"couch": 1, "table": 2}


def test_a_dataset_of_another_kind_does_not_grow(tmp_path: Path, drawn: list[tuple[str, int]]) -> None:
    write_about(tmp_path, {"source": "generated", "seed": 0, "resolution": 16, "classes": {"couch": 0}})
    with pytest.raises(PolyscoreError, match="must keep its source"):
        make(tmp_path)
    assert not drawn


@pytest.mark.parametrize("quality", [95, None])
def test_a_dataset_that_was_unpacked_keeps_its_records(
    tmp_path: Path, drawn: list[tuple[str, int]], quality: int | None
) -> None:
    """They are in `rooms.jsonl` alone, which growing writes anew from PNGs."""
    pack(make(tmp_path / "rooms"), tmp_path / "shards", quality=quality)
    out = unpack(tmp_path / "shards", tmp_path / "unpacked").path
    before = content(out)
    drawn.clear()
    with pytest.raises(PolyscoreError, match=r"must hold pictures as they were made, PNGs .*couch/00000\d\.(jpg|webp)"):
        make(out, 4, classes=["couch"])
    assert not drawn and content(out) == before
