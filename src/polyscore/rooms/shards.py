"""Shards: a dataset as a few zip files of JPEG or WebP pictures, to travel; any zip program can open them.

Each shard holds its part of the pictures and records, and the whole `dataset.json`; its name says how many there are.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from polyscore.errors import ArgumentError, PolyscoreError, is_number, listed, require, shorten
from polyscore.files.atomic import write_atomically, write_bytes
from polyscore.files.folders import new_folder, require_empty
from polyscore.files.regular import open_regular
from polyscore.files.shards import cut
from polyscore.files.zips import DAMAGED
from polyscore.limits import show_bytes
from polyscore.notices import warn
from polyscore.rooms import pictures
from polyscore.rooms.dataset import CLASS, Dataset, Record, check_about, write_about, write_lines
from polyscore.rooms.labels import NAME as LABELS
from polyscore.schema import count, optional

LARGEST, _HEADER = 15 * 2**20, 2**14  # bytes, and those of them for what is told of all
_SHARD = re.compile(r"shard-([0-9]{4})-of-([0-9]{4})\.zip")
_PICTURE = re.compile(CLASS + r"/[0-9]{6}\.(webp|jpg)")
_TOLD = ("dataset.json", "rooms.jsonl")
_QUALITY = optional(count(0, 100))
_EPOCH = (1980, 1, 1, 0, 0, 0)
_INFLATED = 64 * 2**20  # bytes of the records of a shard, at most; pictures are small already
_TOLD_OF_ALL, _TOLD_OF_ONE = 2**20, 2**12  # bytes of a dataset.json, and on average of a record, at most
Entry = tuple[dict[str, Any], tuple[str, bytes]]  # a record; a name and its content


def pack(dataset: Dataset, out: Path | str, *, quality: int | None = 95, largest: int = LARGEST) -> list[Path]:
    """Write a dataset as shards into a new or empty folder, all or none; return their paths.

    Args:
        quality: of JPEG, from 0 to 100; None keeps every bit, as WebP.
        largest: bytes of a shard.
    """
    require(_QUALITY.holds(quality), "quality", "be a whole number from 0 to 100, or None", quality,
            "Leave it out for 95.")  # fmt: skip
    require(is_number(largest) and largest >= 2**16, "largest", "be at least 65536 bytes", largest,
            "Leave it out for the default.")  # fmt: skip
    quality, out = _QUALITY.plain(quality), require_empty(Path(out), "shards")
    _tell_of_labels(dataset.path)
    counts = {name: len(dataset.records(name)) for name in dataset.classes}
    about = json.dumps(dataset.about | {"classes": counts})
    with new_folder(out, last="shards") as folder:
        files = [write_atomically(folder / f"{k:04}.zip", partial(_write, about, part))
                 for k, part in enumerate(cut(_members(dataset, quality), _bytes, largest - _HEADER))]  # fmt: skip
        names = [f"shard-{k:04}-of-{len(files):04}.zip" for k in range(len(files))]
        for file, name in zip(files, names, strict=True):
            file.rename(folder / name)
    return [out / name for name in names]


def _tell_of_labels(folder: Path) -> None:
    if (folder / LABELS).exists():
        warn(f"shards hold pictures and records only; {folder / LABELS} is not packed. Copy it beside them: it names "
             "files as they are here.")  # fmt: skip


def _members(dataset: Dataset, quality: int | None) -> Iterator[Entry]:
    for name in dataset.classes:
        for k, record in enumerate(dataset.records(name)):
            ending, content = pictures.packed(dataset.images(name, [k])[0], quality)
            file = f"{record.index:06}{ending}"
            yield record.to_dict() | {"file": file}, (f"{name}/{file}", content)


def _bytes(member: Entry) -> int:
    """What a picture takes in a shard, with its record and its headers."""
    line, (name, content) = member
    return len(content) + len(json.dumps(line)) + 2 * len(name) + 100


def _write(about: str, part: list[Entry], path: Path) -> None:
    lines = "".join(json.dumps(line, sort_keys=True) + "\n" for line, _ in part)
    with zipfile.ZipFile(path, "w") as shard:
        for name, content in (("dataset.json", about.encode()), ("rooms.jsonl", lines.encode())):
            shard.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
        for _, (name, content) in part:
            shard.writestr(zipfile.ZipInfo(name, _EPOCH), content)


def unpack(shards: Path | str, out: Path | str) -> Dataset:
    """Write the dataset that a folder of shards holds into a new or empty folder: whole, or nothing."""
    require(not (Path(shards) / "dataset.json").exists(), "shards", "be packed", f"a dataset as it is in {shards}",
            "Use it as it is.")  # fmt: skip
    files, out = _complete(Path(shards)), require_empty(Path(out), "a new dataset")
    with new_folder(out) as folder:
        told = [_unpack(file, folder) for file in files]
        about = told[0][0]
        require(all(other == about for other, _ in told), "shards", "be of one dataset", "several",
                "Keep those of each in a folder of its own.")  # fmt: skip
        _describe(folder, about, [line for _, lines in told for line in lines])
    return Dataset(out)


def _describe(folder: Path, about: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Write the records of each class, as many as the dataset says it has."""
    for name, wanted in about["classes"].items():
        found = [line for line in lines if line["class"] == name]
        require(len(found) == wanted, "shards", f"hold {wanted} of {name}", len(found), "Copy them again.")
        write_lines(folder / name, found)
    write_about(folder, about)
    len(Dataset(folder))  # reads every record


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
    require(files, "a folder of rooms", "hold dataset.json, or shards shard-0000-of-....zip", f"neither in {folder}",
            "Check the path, or make one with `polyscore rooms render`.")  # fmt: skip
    numbers = {int(match[2]) for file in files.values() if (match := _SHARD.fullmatch(file.name))}
    missing = [k for k in range(max(numbers)) if k not in files]
    if missing or len(numbers) > 1:
        raise ArgumentError(
            f"shards must be of one dataset and all there; {listed(missing)} of {max(numbers)} are missing. Copy them "
            "all into a folder of their own."
        )
    return [files[k] for k in sorted(files)]


def _unpack(file: Path, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Write the pictures of a shard; return what it says of the dataset, and its records."""
    with _opened(file) as shard:
        _require_members(shard.infolist(), file)
        about = check_about(_told(shard.read("dataset.json")), file)
        lines = [json.loads(line) for line in shard.read("rooms.jsonl").splitlines()]
        names = [_member(line, file) for line in lines]
        _require_pictures(names, shard.namelist(), about["classes"], file)
        for name in names:
            write_bytes(folder / name, shard.read(name))
        return about, lines


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with open(file, "rb", opener=open_regular) as opened, zipfile.ZipFile(opened) as shard:
            yield shard
    except PolyscoreError:
        raise
    except DAMAGED as error:
        raise ArgumentError(f"a shard must be whole; {str(file)!r} is not ({error}). Copy it again.") from error


def _member(line: Any, file: Path) -> str:
    """The picture that a record is of."""
    record = Record.parse(line, str(file))
    return f"{record.name}/{record.file}"


def _require_pictures(named: list[str], members: list[str], classes: Collection[str], file: Path) -> None:
    """Refuse pictures of other classes, and records and pictures that do not belong together one by one."""
    found = [name for name in members if name not in _TOLD]
    for name in found:
        require(name.partition("/")[0] in classes, "a shard", f"hold pictures and records only, of {listed(classes)}",
                shorten(name), f"Do not use {file}.")  # fmt: skip
    require(len(set(named)) == len(named) and sorted(named) == sorted(found), "a shard", "hold one record a picture",
            f"{len(named)} records and {len(found)} pictures", f"Do not use {file}.")  # fmt: skip


def _require_members(members: list[zipfile.ZipInfo], file: Path) -> None:
    """Refuse names that no shard has: those that lead elsewhere, and what swells beyond what pictures can."""
    packed = sum(info.compress_size for info in members)  # several that share their bytes have more than the file
    # A list of lists has thirty times the bytes in memory, and a thousandth of them in a file.
    told = {"dataset.json": _TOLD_OF_ALL, "rooms.jsonl": min(_INFLATED, _TOLD_OF_ONE * len(members))}
    for info in members:
        named = info.filename in told or _PICTURE.fullmatch(info.filename)
        most = told.get(info.filename, 4096 + 20 * info.compress_size)
        if not named or info.file_size > most or packed > file.stat().st_size:
            raise ArgumentError(
                f"a shard must hold pictures and records only; {str(file)!r} holds {shorten(info.filename)} of "
                f"{show_bytes(info.file_size)}. Do not use it."
            )
