"""Shards: a dataset as a few zip files of JPEG or WebP pictures, to travel; any zip program can open them.

Each shard holds its part of the pictures and records, and the whole `dataset.json`; its name says how many there are.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from polyscore.errors import ArgumentError, OutputError, listed, require
from polyscore.files.atomic import write_atomically, write_bytes
from polyscore.rooms import pictures
from polyscore.rooms.dataset import Dataset, check_about, require_empty, write_about, write_lines

LARGEST = 15 * 2**20  # bytes
_SHARD = re.compile(r"shard-(\d{4})-of-(\d{4})\.zip")
_PICTURE = re.compile(r"\d{6}\.(webp|jpg)")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_INFLATED = 64 * 2**20  # bytes of one member, at most
Entry = tuple[dict[str, Any], tuple[str, bytes]]  # a record; a name and its content


def pack(dataset: Dataset, out: Path | str, *, quality: int | None = 95, largest: int = LARGEST) -> list[Path]:
    """Write a dataset as shards into a new or empty folder; return their paths.

    Args:
        quality: of JPEG, from 0 to 100; None keeps every bit, as WebP.
        largest: bytes of a shard.
    """
    require(quality is None or 0 <= quality <= 100, "quality", "be from 0 to 100, or None", quality)
    require(largest >= 2**16, "largest", "be at least 65536 bytes", largest)
    out = require_empty(Path(out), "shards")
    parts = list(_parts(_members(dataset, quality), largest))
    about = json.dumps(dataset.about)
    names = [f"shard-{k:04}-of-{len(parts):04}.zip" for k in range(len(parts))]
    return [write_atomically(out / name, partial(_write, about, part)) for name, part in zip(names, parts, strict=True)]


def _members(dataset: Dataset, quality: int | None) -> Iterator[Entry]:
    for name in dataset.classes:
        for k, record in enumerate(dataset.records(name)):
            ending, content = pictures.packed(dataset.images(name, [k])[0], quality)
            file = f"{record.index:06}{ending}"
            yield record.to_dict() | {"file": file}, (f"{name}/{file}", content)


def _parts(members: Iterator[Entry], largest: int) -> Iterator[list[Entry]]:
    """Cut a row of members so that no part with its records and headers is too large."""
    part: list[Entry] = []
    size = 2**14
    for line, (name, content) in members:
        more = len(content) + len(json.dumps(line)) + 2 * len(name) + 100
        if part and size + more > largest:
            yield part
            part, size = [], 2**14
        part.append((line, (name, content)))
        size += more
    yield part


def _write(about: str, part: list[Entry], path: Path) -> None:
    lines = "".join(json.dumps(line, sort_keys=True) + "\n" for line, _ in part)
    with zipfile.ZipFile(path, "w") as shard:
        for name, content in (("dataset.json", about.encode()), ("rooms.jsonl", lines.encode())):
            shard.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
        for _, (name, content) in part:
            shard.writestr(zipfile.ZipInfo(name, _EPOCH), content)


def unpack(shards: Path | str, out: Path | str) -> Dataset:
    """Write the dataset that a folder of shards holds into a new or empty folder."""
    files, out = _complete(Path(shards)), require_empty(Path(out), "a new dataset")
    lines: dict[str, list[dict[str, Any]]] = {}
    about = b""
    for file in files:
        about, found = _unpack(file, out)
        for line in found:
            lines.setdefault(str(line["class"]), []).append(line)
    return _described(out, about, lines)


def _described(out: Path, about: bytes, lines: dict[str, list[dict[str, Any]]]) -> Dataset:
    """Write what a dataset says of itself last, so that one that is not whole is none."""
    told = check_about(_told(about), out)
    for name, found in lines.items():
        write_lines(out / name, found)
    write_about(out, told)
    return Dataset(out)


def _told(about: bytes) -> Any:
    try:
        return json.loads(about)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"a shard must hold a dataset.json; it cannot be read ({error}). Copy it again.") from error


def _complete(folder: Path) -> list[Path]:
    """The shards of a folder, all of them."""
    files = {
        int(match[1]): file for file in sorted(folder.glob("shard-*.zip")) if (match := _SHARD.fullmatch(file.name))
    }
    require(files, "a folder of shards", "hold shard-0000-of-....zip", f"none in {folder}", "Check the path.")
    numbers = {int(match[2]) for file in files.values() if (match := _SHARD.fullmatch(file.name))}
    missing = [k for k in range(max(numbers)) if k not in files]
    if missing or len(numbers) > 1:
        raise ArgumentError(
            f"shards must be of one dataset and all there; {listed(missing)} of {max(numbers)} are missing."
        )
    return [files[k] for k in sorted(files)]


def _unpack(file: Path, out: Path) -> tuple[bytes, list[dict[str, Any]]]:
    try:
        with zipfile.ZipFile(file) as shard:
            for info in shard.infolist():
                _require_member(info, file)
            lines = [json.loads(line) for line in shard.read("rooms.jsonl").splitlines()]
            for line in lines:
                name = f"{line['class']}/{line['file']}"
                write_bytes(out / name, shard.read(name))
            return shard.read("dataset.json"), lines
    except (zipfile.BadZipFile, OSError, KeyError, TypeError, ValueError, EOFError) as error:
        if isinstance(error, (ArgumentError, OutputError)):
            raise
        raise ArgumentError(f"a shard must be whole; {str(file)!r} is not ({error}). Copy it again.") from error


def _require_member(info: zipfile.ZipInfo, file: Path) -> None:
    """Refuse members that would leave the folder, or that are larger than a picture can be."""
    place = PurePosixPath(info.filename)
    good = (
        len(place.parts) == 2
        and ".." not in place.parts
        and _PICTURE.fullmatch(place.name)
        and "\\" not in info.filename
    )
    if (not good and info.filename not in ("dataset.json", "rooms.jsonl")) or info.file_size > _INFLATED:
        raise ArgumentError(
            f"a shard must hold pictures and records only; {str(file)!r} holds {info.filename!r}. Do not use it."
        )
