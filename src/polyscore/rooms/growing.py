"""Datasets that grow: pictures with their records inside, written one by one; what is there is not made again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyscore.errors import ArgumentError, is_count, require, shorten
from polyscore.files.atomic import check_directory, held
from polyscore.files.atomic import sweep as sweep_file
from polyscore.files.folders import require_empty
from polyscore.limits import require_space
from polyscore.rooms import pictures
from polyscore.rooms.classes import CLASSES
from polyscore.rooms.dataset import Record, read_about, write_about, write_lines

MOST = 1_000_000
_SMALLEST = 0.5  # bytes a pixel of a PNG, from below


def names_of(classes: Collection[str] | None, known: Iterable[str]) -> list[str]:
    """Return classes, each once; all that are known where nobody chose."""
    listed = classes is None or (isinstance(classes, Iterable) and not isinstance(classes, (str, bytes)))
    require(listed, "classes", "be a list of names", shorten(classes), "Put it into a list.")
    names = list(dict.fromkeys(known if classes is None else classes))
    require(names, "classes", "name at least one", "none", "Leave them out for all.")
    return names


def check_count(names: Collection[str], count: int) -> None:
    """Refuse classes that are none, and numbers of pictures that nobody can mean."""
    for name in names:
        CLASSES[name]
    require(
        is_count(count) and count <= MOST, "count", f"be a whole number from 1 to {MOST}", count, "Ask for fewer rooms."
    )


def begun(out: Path | str, told: dict[str, Any], names: Collection[str], count: int) -> tuple[Path, dict[str, Any]]:
    """Return the folder and what it shall say, where `count` pictures of each class may join what is there, and fit."""
    out = check_directory(out)
    about = joined(out, told, names)
    rooms, side = len(names) * count, about["resolution"]
    require_space(out, int(rooms * side**2 * _SMALLEST), f"{rooms} rooms of {side} x {side}", "Ask for fewer.")
    return out, about


@contextmanager
def grown(out: Path, about: dict[str, Any], names: Collection[str]) -> Iterator[None]:
    """Hold the folder while pictures are added: half-written ones are taken away before, records gathered after."""
    with held(out / "dataset.json"):
        about = rejoined(out, about, names)
        write_about(out, about)
        sweep(out, about["classes"])
        yield
        finish(out, about)


def joined(out: Path, about: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """What `dataset.json` shall say, with the classes that are there; or why old and new cannot be in one place."""
    old = read_about(out)
    if old is None:
        require_empty(out, "a new dataset")
    elif old.get("source") == about["source"] and not _holds_any(out, old["classes"]):
        old = None  # nothing came of it, such as of a model that is not there: it binds nobody
    _require_own(out, (old or {}).get("classes", {}))
    for key, value in about.items():
        if old is not None and old.get(key) != value:
            raise ArgumentError(
                f"a dataset that grows must keep its {key}; got {value!r}, it has {old.get(key)!r}. Choose another "
                "place."
            )
    known = dict.fromkeys([*(old or {}).get("classes", {}), *names], 0)
    order = {name: k for k, name in enumerate(CLASSES)}
    return about | {"classes": dict(sorted(known.items(), key=lambda item: order.get(item[0], len(order))))}


def _require_own(out: Path, names: Iterable[str]) -> None:
    """Refuse pictures that were packed: their records are in `rooms.jsonl` alone, which growing writes anew."""
    packed = (file for name in names for file in (out / name).glob("[0-9]*.*") if file.suffix in pictures.ENDINGS[1:])
    found = next(packed, None)
    require(found is None, "a dataset that grows", "hold pictures as they were made, PNGs with their records inside",
            found, "Grow the one that was packed, or choose another place.")  # fmt: skip


def _holds_any(out: Path, classes: Mapping[str, int]) -> bool:
    """Whether there is a picture, or somebody said so."""
    return any(told or next((out / name).glob("[0-9]*.*"), None) for name, told in classes.items())


def rejoined(out: Path, about: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The same, once the folder is ours alone: another process may have begun and ended there since `joined` looked."""
    told = {key: value for key, value in about.items() if key != "classes"}
    return joined(out, told, names) if (out / "dataset.json").exists() else about


def file_of(out: Path, name: str, index: int) -> Path:
    """Return where a picture belongs."""
    return out / name / f"{index:06}.png"


def is_there(out: Path, name: str, index: int, side: int) -> bool:
    """Whether a picture of this size is there with its record."""
    return line_of(file_of(out, name, index), name, side) is not None


def line_of(file: Path, name: str, side: int) -> dict[str, Any] | None:
    """Return the record of a picture, or None: what is damaged, of another size, or another picture's is not there."""
    found = pictures.record(file, side)
    try:
        line = Record.parse((found or {}) | {"file": file.name}, str(file))
    except ArgumentError:
        return None
    ours = line.name == name and file.name == file_of(file, name, line.index).name
    return {**(found or {}), "file": file.name} if ours else None


def sweep(out: Path, names: Collection[str]) -> None:
    """Take away what a process that was killed had begun to write."""
    for name in names:
        sweep_file(out / name / "rooms.jsonl")
        for file in (out / name).glob(".[0-9]*-*.png"):
            file.unlink(missing_ok=True)


def finish(out: Path, about: dict[str, Any]) -> None:
    """Gather the records of all pictures that are there."""
    counts = {}
    for name in about["classes"]:
        found = (line_of(file, name, about["resolution"]) for file in sorted((out / name).glob("[0-9]*.png")))
        lines = [line for line in found if line is not None]
        write_lines(out / name, lines)
        counts[name] = len(lines)
    write_about(out, about | {"classes": counts})
