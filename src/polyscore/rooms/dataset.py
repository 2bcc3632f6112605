"""Datasets of rooms, whoever made them: a folder a class, a record a picture.

rooms/
  dataset.json          format, version, source, seed, resolution, rooms per class
  couch/000000.png      pictures: PNG, WebP or JPEG
  couch/rooms.jsonl     a line a picture: what was asked for, what is seen, boxes, flaws
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyscore.errors import ArgumentError, is_count, is_finite, require, require_known, shorten
from polyscore.files.atomic import write_text
from polyscore.files.regular import read_regular
from polyscore.rooms import pictures
from polyscore.rooms.classes import OBJECTS
from polyscore.rooms.visibility import Seen

FORMAT, VERSION = "polyscore-rooms", 1
CLASS = r"[A-Za-z0-9][A-Za-z0-9+_-]{0,60}"  # a name of a class, and of its folder
LAST = 999_999  # index


@dataclass(frozen=True)
class Record:
    """What is known of one picture.

    Attributes:
        file: its name in the folder of its class.
        name: the class that was asked for.
        shows: the class that it shows.
        objects: what is seen of each object; empty where nobody drew boxes.
        flaw: what is wrong with it on purpose (kind, object, strength, why), or None.
        attempt: how often a rendered room was drawn again before its objects could be seen.
        prompt: what a model was asked for.
    """

    file: str
    name: str
    index: int
    shows: str
    objects: dict[str, Seen]
    flaw: dict[str, Any] | None
    attempt: int | None = None
    prompt: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a line of `rooms.jsonl`; what only one source of rooms knows is there where it is known."""
        seen = {name: one.to_dict() for name, one in self.objects.items()}
        known = {"attempt": self.attempt, "prompt": self.prompt}
        return {"file": self.file, "class": self.name, "index": self.index, "shows": self.shows, "objects": seen,
                "flaw": self.flaw} | {key: value for key, value in known.items() if value is not None}  # fmt: skip

    @classmethod
    def parse(cls, line: Any, where: str) -> Record:
        """Return one of a line of `rooms.jsonl`."""
        try:
            file, index, flaw = _text(line["file"]), line["index"], line["flaw"]
            objects = {_text(name): Seen(_box(one["box"]), _number(one["share"])) for name, one in
                       line["objects"].items()}  # fmt: skip
            _require_file(file)
            require(_is_index(index), "index", f"be a whole number from 0 to {LAST}", index,
                    "Make the dataset again, or delete the line.")  # fmt: skip
            require(flaw is None or isinstance(flaw, dict), "flaw", "say what is wrong, or be null", flaw,
                    "Make the dataset again, or delete the line.")  # fmt: skip
            attempt, prompt = line.get("attempt"), line.get("prompt")
            require(attempt is None or _is_index(attempt), "attempt", f"be a whole number from 0 to {LAST}", attempt,
                    "Make the dataset again, or delete the line.")  # fmt: skip
            prompt = None if prompt is None else _text(prompt)
            return cls(file, _text(line["class"]), index, _text(line["shows"]), objects, flaw, attempt, prompt)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(
                f"a line of {where} must be a room's record; got {shorten(line, 100)} ({error}). Make it again."
            ) from error


def _box(sides: Sequence[object]) -> tuple[float, float, float, float]:
    left, top, right, bottom = map(_number, sides)
    return left, top, right, bottom


def _number(value: Any) -> float:
    require(is_finite(value), "a box and a share", "be finite numbers", value,
            "Make the dataset again, or delete the line.")  # fmt: skip
    return float(value)


def _text(value: object) -> str:
    require(isinstance(value, str), "a name", "be text", value, "Make the dataset again, or delete the line.")
    return str(value)


def _is_index(value: object) -> bool:
    return type(value) is int and 0 <= value <= LAST


def _require_file(name: str) -> None:
    good = Path(name).name == name and Path(name).suffix in pictures.ENDINGS
    require(good, "a picture's file", f"be a plain name that ends in {' or '.join(pictures.ENDINGS)}", shorten(name),
            "Rename the file and its line.")  # fmt: skip


class Dataset:
    """A dataset that is there.

    Args:
        path: its folder, which holds `dataset.json`.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.about = _about(self.path)
        self.resolution = int(self.about["resolution"])
        self.classes = tuple(self.about["classes"])
        self._records: dict[str, list[Record]] = {}

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {len(self)} rooms of {self.resolution} x {self.resolution})"

    def __len__(self) -> int:
        return sum(len(self.records(name)) for name in self.classes)

    def records(self, name: str) -> list[Record]:
        """Return the records of a class, by index."""
        require_known(name, self.classes, "a class")
        if name not in self._records:  # a class that is not whole yet says nothing against the others
            self._records[name] = _lines(self.path / name)
        return self._records[name]

    def images(self, name: str, indices: Iterable[int] | None = None) -> NDArray[np.uint8]:
        """Return the pictures of a class, or of some rooms in `records`, (N, resolution, resolution, 3)."""
        records = self.records(name)
        chosen = records if indices is None else [records[k] for k in indices]
        require(chosen, f"class {name}", "hold a picture", "none", f"Render or copy some into {self.path / name}.")
        return np.stack([pictures.read(self.path / name / one.file, self.resolution) for one in chosen])

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return all pictures (N, resolution, resolution, 3) and the number of each one's class in `classes` (N,)."""
        images = [self.images(name) for name in self.classes]
        return np.concatenate(images), np.repeat(np.arange(len(images)), [len(part) for part in images])

    def boxes(self, name: str) -> NDArray[np.float64]:
        """Return boxes of couch, painting, table in each picture of a class, (N, 3, 4); NaN where none is seen."""
        none = (float("nan"),) * 4
        return np.array([
            [one.objects[thing].box if thing in one.objects else none for thing in OBJECTS]
            for one in self.records(name)
        ]).reshape(-1, len(OBJECTS), 4)  # fmt: skip

    def flaws(self, name: str) -> list[str | None]:
        """Return the kind of each picture's flaw, or None."""
        return [None if one.flaw is None else str(one.flaw.get("kind")) for one in self.records(name)]


def _about(path: Path) -> dict[str, Any]:
    about = read_about(path)
    if about is None:
        raise ArgumentError(
            f"a dataset must hold dataset.json; {str(path)!r} does not. Check the path, or make one with "
            "`polyscore rooms render`."
        )
    return about


def read_about(path: Path) -> dict[str, Any] | None:
    """Return what `dataset.json` says, or None where there is none."""
    try:
        about = json.loads(read_regular(path / "dataset.json"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"dataset.json must be readable JSON; that of {str(path)!r} is not ({error}). Make the dataset again."
        ) from error
    return check_about(about, path)


def check_about(about: Any, path: Path) -> dict[str, Any]:
    """Return what a `dataset.json` says if it is one of ours."""
    good = isinstance(about, dict) and about.get("format") == FORMAT and is_count(about.get("resolution"))
    classes = about.get("classes") if good else None
    if not isinstance(classes, dict) or not classes or not all(_is_class(*one) for one in classes.items()):
        raise ArgumentError(
            f"dataset.json must be of a {FORMAT} dataset; that of {str(path)!r} is not. Check the path."
        )
    require(about.get("version") == VERSION, "a dataset's version", f"be {VERSION}", about.get("version"),
            "It was made by another version of polyscore.")  # fmt: skip
    return dict(about)


def _is_class(name: str, count: object) -> bool:
    """Whether a name can be that of a folder, and a number one of pictures."""
    return re.fullmatch(CLASS, name) is not None and (is_count(count) or (count == 0 and type(count) is int))


def write_about(path: Path, about: dict[str, Any]) -> None:
    """Write `dataset.json`."""
    write_text(path / "dataset.json", json.dumps({"format": FORMAT, "version": VERSION} | about, indent=2) + "\n")


def write_lines(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write the records of a class, by index."""
    ordered = sorted(lines, key=lambda line: int(line["index"]))
    write_text(folder / "rooms.jsonl", "".join(json.dumps(line, sort_keys=True) + "\n" for line in ordered))


def _lines(folder: Path) -> list[Record]:
    path = folder / "rooms.jsonl"
    try:
        found = [json.loads(line) for line in read_regular(path).splitlines()]
    except FileNotFoundError as error:
        raise ArgumentError(
            f"a class must have its rooms.jsonl; {str(folder)!r} has none. Render it again: what is there is kept."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"rooms.jsonl must be readable; {str(path)!r} is not ({error}). Make it again.") from error
    require(found, f"class {folder.name}", "hold a room", "none", f"Render or copy some into {folder}.")
    records = [Record.parse(line, str(path)) for line in found]
    files, indices = {one.file for one in records}, {one.index for one in records}
    require(len(files) == len(indices) == len(records), str(path), "name every picture once",
            f"{len(records)} lines of {len(files)} files and {len(indices)} indices", "Keep one.")  # fmt: skip
    for one in records:
        require(one.name == folder.name, f"a line of {path}", f"be a room's record of {folder.name}", one.name,
                "Delete the line.")  # fmt: skip
    return records
