"""The store: one record per cell, in a few append-only files that git and copies between machines like.

    store.json                      format and version
    protocols/<hash>.json           what a record's protocol hash stands for
    records/<family>-<models>.jsonl   one line per record, with a checksum of its own
    samples/<family>-<models>.jsonl   a few points of some cells, for pictures (thumbnails.py)
    workers/                          what workers have not handed over yet (jobs.py)

A line is written whole by one append and synced. A kill in the middle leaves a line that fails its checksum: it is
noticed, reported, and its cell computed again; so is a line that is not what it says (records.py). One runner writes at
a time; a second one is told who holds the store. Links inside a store are followed neither to read nor to write.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from polyscore.errors import OutputError
from polyscore.experiments.cells import Cell
from polyscore.experiments.lock import StoreError, holding
from polyscore.experiments.protocol import Protocol, stands_for
from polyscore.experiments.records import Record, is_key, open_own, read_json, read_lines
from polyscore.files.atomic import printable, write_text
from polyscore.notices import warn

FORMAT, VERSION = "polyscore-store", 1


class Store:
    """Results on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[str, Record] | None = None
        self._told: dict[Path, int] = {}  # damaged lines that were told of already
        try:
            self._check_version()
        except OSError as error:
            raise StoreError(
                f"a store must be readable; {str(self.path)[:300]} is not ({error.strerror}). Check the path and its "
                "permissions."
            ) from error

    def _check_version(self) -> None:
        marker = self.path / "store.json"
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"a store must be a folder; {self.path} is a file. Choose another.")
        if not marker.exists() and not marker.is_symlink():
            # A kill may have left a hidden temporary file and nothing else.
            if self.path.is_dir() and any(not file.name.startswith(".") for file in self.path.iterdir()):
                raise StoreError(
                    f"a store must be an empty or a polyscore folder; {self.path} holds other files. Choose another."
                )
            return
        try:
            found = read_json(marker)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{marker} must be readable JSON; it is damaged ({printable(error)}). Restore it from a copy."
            ) from error
        found = found if isinstance(found, dict) else {}
        if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            what = printable(f"{found.get('format')} version {found.get('version')}")
            raise StoreError(
                f"a store must be of {FORMAT} version {VERSION}; {self.path} is {what}. It was left untouched: use the "
                "version of polyscore that wrote it."
            )

    def _create(self) -> None:
        marker = self.path / "store.json"
        if not marker.exists():
            write_whole(marker, json.dumps({"format": FORMAT, "version": VERSION}) + "\n")

    @property
    def records(self) -> dict[str, Record]:
        """All whole records by key; damaged lines are reported once and left out."""
        if self._known is None:
            self._known = {}
            for file in self.files("records", ".jsonl"):
                self._known.update((record.key, record) for record in self._read(file))
        return self._known

    def _read(self, file: Path) -> Iterator[Record]:
        damaged = 0
        for line in self.lines(file):
            try:
                yield Record.parse(line)
            except ValueError:
                damaged += 1
        if damaged > self._told.get(file, 0):
            self._told[file] = damaged
            warn(
                f"every record must be whole; {file} holds {damaged} damaged line(s), which a kill or a full disk "
                "leaves behind, or lines that are not what they say. They are passed over: a cell without another "
                "record is computed again."
            )

    def files(self, folder: str, ending: str) -> list[Path]:
        """Return the files of one of the store's folders in order; links are reported once and left out."""
        named = [entry for entry in self._entries(folder) if entry.name.endswith(ending)]
        return [Path(entry.path) for entry in named if entry.is_file(follow_symlinks=False)]

    def folders(self, folder: str) -> list[Path]:
        """Return the folders in one of the store's folders; links are reported once and left out."""
        return [Path(entry.path) for entry in self._entries(folder) if entry.is_dir(follow_symlinks=False)]

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        place = self.path / folder
        try:
            if place.is_symlink():
                self._tell_of_link(place)
                return []
            entries = sorted(os.scandir(place), key=lambda entry: entry.name) if place.is_dir() else []
        except OSError as error:
            raise _unreadable(place, error) from error
        for entry in entries:
            if entry.is_symlink():
                self._tell_of_link(Path(entry.path))
        return entries

    def _tell_of_link(self, place: Path) -> None:
        if place not in self._told:
            self._told[place] = 1
            warn(f"a store must hold its files itself; {place} is a link, which is not followed. Copy what it names.")

    def lines(self, file: Path) -> Iterator[bytes]:
        """Yield the lines of a file of the store that are not empty; one that is too long comes as an empty one."""
        try:
            yield from read_lines(file)
        except OSError as error:
            raise _unreadable(file, error) from error

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def get(self, cell: Cell, protocol: Protocol) -> Record | None:
        """Return the record of a cell, or None."""
        return self.records.get(cell.key(protocol))

    def missing(self, cells: Iterable[Cell], key: Callable[[Cell], str]) -> list[Cell]:
        """Return the cells that have no record under their key, in order, each once."""
        return [cell for cell in dict.fromkeys(cells) if key(cell) not in self.records]

    def add(self, cell: Cell, protocol: Protocol, results: dict[str, float], about: dict[str, Any]) -> Record:
        """Append a record and sync it to disk."""
        record = Record(cell.key(protocol), protocol.key, cell, results, about)
        self.add_records([record], {protocol.key: protocol.to_dict()})
        return record

    def add_records(self, records: Iterable[Record], protocols: dict[str, dict[str, Any]]) -> int:
        """Append the records that are not here yet; return how many were new."""
        new = [record for record in records if record.key not in self.records]
        for record in new:
            _check(record)
        self._create()
        for key, description in protocols.items():
            self._add_protocol(key, description)
        for record in new:
            self.append("records", f"{record.cell.family}-{record.cell.models}", record.line())
            self.records[record.key] = record
        return len(new)

    def _add_protocol(self, key: str, description: dict[str, Any]) -> None:
        """Keep what a hash stands for; what does not belong to it is not taken over."""
        if is_key(key) and stands_for(key, description):
            target = self.subfolder("protocols") / f"{key}.json"
            if _protocol(target) is None:
                write_whole(target, json.dumps(description, indent=1) + "\n")

    def append(self, folder: str, stem: str, line: str) -> None:
        """Append a whole line to a file of one of the store's folders and sync it."""
        append_line(self.subfolder(folder) / f"{stem}.jsonl", line)

    def protocols(self) -> dict[str, dict[str, Any]]:
        """Return the protocols by hash; what does not belong to its hash is left out."""
        found = {file.stem: _protocol(file) for file in self.files("protocols", ".json")}
        return {key: description for key, description in found.items() if description is not None}

    def merge(self, other: Store) -> int:
        """Take over the records of another store; return how many were new."""
        return self.add_records(other.records.values(), other.protocols())

    def conflicts(self, other: Store) -> int:
        """Return how many cells both stores have with other results: another device draws other random numbers."""
        both = self.records.keys() & other.records.keys()
        return sum(self.records[key].results != other.records[key].results for key in both)

    def subfolder(self, name: str) -> Path:
        """Make a folder inside the store and return it; a link to elsewhere is a `StoreError`."""
        folder = self.path / name
        if folder.is_symlink():
            raise StoreError(
                f"a store must hold its folders itself; {folder} is a link. Put the folder it names in its place."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the store must be writable; making {folder} failed ({error.strerror}). Free some space, or choose "
                "another place."
            ) from error
        return folder

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the store for writing; a second runner learns who has it."""
        self._create()
        with holding(self.path):
            self._known = None  # what a runner that has just ended wrote must be seen
            yield


def _check(record: Record) -> None:
    try:
        record.check()
    except ValueError as error:
        raise StoreError(f"a record must be a result of its cell; got {error}. It was not stored.") from error


def _protocol(file: Path) -> dict[str, Any] | None:
    """A protocol's description, or None where it is missing or damaged: the next writer restores it."""
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return None
    return found if stands_for(file.stem, found) else None


def _unreadable(place: Path, error: OSError) -> StoreError:
    return StoreError(f"a store must be readable; {place} is not ({error.strerror}). Check its permissions.")


def write_whole(file: Path, text: str) -> None:
    """Write a small file; a disk that is full or read-only is a `StoreError`."""
    try:
        write_text(file, text)
    except OutputError as error:  # which says rule, value and remedy already
        raise StoreError(str(error)) from error


def append_line(file: Path, line: str) -> None:
    """Append a whole line and sync it; a disk that is full or read-only is a `StoreError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "ab+", opener=open_own) as handle:
            start = handle.seek(0, os.SEEK_END)
            # A truncated last line must not swallow the next one.
            if start and _last_byte(handle) != b"\n":
                handle.write(b"\n")
            handle.write(line.encode())
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise StoreError(
            f"the store must be writable; appending to {file} failed ({error.strerror}). What was stored before is "
            "safe: free some space and run again, only missing cells are computed."
        ) from error


def _last_byte(handle: Any) -> bytes:
    handle.seek(-1, os.SEEK_END)
    return handle.read(1)
