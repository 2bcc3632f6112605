"""The store: one record per cell, in a few append-only files that git and copies between machines like.

    store.json                      format and version
    protocols/<hash>.json           what a record's protocol hash stands for
    records/<setting>-<models>.jsonl  one line per record, with a checksum of its own
    samples/<setting>-<models>.jsonl  a few points of some cells, for pictures (samples.py)
    workers/                          what workers have not handed over yet (jobs.py)

A line is written whole by one append and synced. A kill in the middle leaves a line that fails its checksum: it is
noticed, reported, and its cell computed again. One runner writes at a time; a second one is told who holds the store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from polyscore.errors import DegeneracyWarning, OutputError, PolyscoreError
from polyscore.experiments.cells import Cell, Protocol, digest
from polyscore.files import write_text

FORMAT, VERSION = "polyscore-store", 1


class StoreError(PolyscoreError):
    """A store that cannot be used: foreign, of another version, held by another runner, or full."""


@dataclass(frozen=True)
class Record:
    """A result with its origin.

    Attributes:
        results: numbers by name: sw2, mmd2 and diagnostics.
        about: where and how: version, device, torch, seconds.
    """

    key: str
    protocol: str
    cell: Cell
    results: dict[str, float]
    about: dict[str, Any]

    def line(self) -> str:
        """Return the record as one line with its checksum."""
        body = {**dataclasses.asdict(self), "cell": list(dataclasses.astuple(self.cell))}
        return json.dumps({"sum": digest(body), "record": body}, separators=(",", ":")) + "\n"

    @classmethod
    def parse(cls, line: str) -> Record:
        """Return the record of a line; `ValueError` where it is not whole."""
        outer = json.loads(line)
        body = outer["record"]
        if digest(body) != outer["sum"]:
            raise ValueError("checksum")
        return cls(**{**body, "cell": Cell(*body["cell"])})


class Store:
    """Results on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[str, Record] | None = None
        self._damaged: dict[Path, int] = {}  # what was told already
        self._check_version()

    def _check_version(self) -> None:
        marker = self.path / "store.json"
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"a store must be a folder; {self.path} is a file. Choose another.")
        if not marker.exists():
            # A kill may have left a hidden temporary file and nothing else.
            if self.path.is_dir() and any(not file.name.startswith(".") for file in self.path.iterdir()):
                raise StoreError(
                    f"a store must be an empty or a polyscore folder; {self.path} holds other files. Choose another."
                )
            return
        try:
            found = json.loads(marker.read_text())
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{marker} must be readable JSON; it is damaged ({error}). Restore it from a copy."
            ) from error
        found = found if isinstance(found, dict) else {}
        if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            raise StoreError(
                f"a store must be of {FORMAT} version {VERSION}; {self.path} is {found.get('format')} version "
                f"{found.get('version')}. It was left untouched: use the version of polyscore that wrote it."
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
            for file in sorted(file for file in (self.path / "records").glob("*.jsonl") if file.is_file()):
                self._known.update((record.key, record) for record in self._read(file))
        return self._known

    def _read(self, file: Path) -> Iterator[Record]:
        damaged = 0
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if not line.strip():
                continue
            try:
                yield Record.parse(line)
            except (ValueError, KeyError, TypeError):
                damaged += 1
        if damaged > self._damaged.get(file, 0):
            self._damaged[file] = damaged
            warnings.warn(
                f"every record must be whole; {file} holds {damaged} damaged line(s), which a kill or a full disk "
                "leaves behind. They are passed over: a cell without another record is computed again.",
                DegeneracyWarning,
                stacklevel=3,
            )

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def get(self, cell: Cell, protocol: Protocol) -> Record | None:
        """Return the record of a cell, or None."""
        return self.records.get(cell.key(protocol))

    def missing(self, cells: Iterable[Cell], protocol: Protocol) -> list[Cell]:
        """Return the cells that have no record, in order, each once."""
        return [cell for cell in dict.fromkeys(cells) if cell.key(protocol) not in self.records]

    def add(self, cell: Cell, protocol: Protocol, results: dict[str, float], about: dict[str, Any]) -> Record:
        """Append a record and sync it to disk."""
        record = Record(cell.key(protocol), protocol.key, cell, results, about)
        self.add_records([record], {protocol.key: protocol.to_dict()})
        return record

    def add_records(self, records: Iterable[Record], protocols: dict[str, dict[str, Any]]) -> int:
        """Append the records that are not here yet; return how many were new."""
        self._create()
        for key, description in protocols.items():
            target = self.path / "protocols" / f"{key}.json"
            if _protocol(target) is None:
                write_whole(target, json.dumps(description, indent=1) + "\n")
        new = [record for record in records if record.key not in self.records]
        for record in new:
            self._append(record)
            self.records[record.key] = record
        return len(new)

    def _append(self, record: Record) -> None:
        append_line(self.path / "records" / f"{record.cell.setting}-{record.cell.models}.jsonl", record.line())

    def protocols(self) -> dict[str, dict[str, Any]]:
        """Return the protocols by hash."""
        files = sorted((self.path / "protocols").glob("*.json"))
        return {file.stem: found for file in files if (found := _protocol(file)) is not None}

    def merge(self, other: Store) -> int:
        """Take over the records of another store; return how many were new."""
        return self.add_records(other.records.values(), other.protocols())

    def conflicts(self, other: Store) -> int:
        """Return how many cells both stores have with other results: another device draws other random numbers."""
        both = self.records.keys() & other.records.keys()
        return sum(self.records[key].results != other.records[key].results for key in both)

    def subfolder(self, name: str) -> Path:
        """Make a folder inside the store and return it."""
        folder = self.path / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the store must be writable; making {folder} failed ({error.strerror}). Free some space, or choose "
                "another place."
            ) from error
        return folder

    def _lock_file(self) -> IO[str]:
        try:
            return open(self.path / ".lock", "a+")
        except OSError as error:
            raise StoreError(
                f"the store must be writable; {self.path} is not ({error.strerror}). Choose another."
            ) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the store for writing; a second runner learns who has it."""
        self._create()
        with self._lock_file() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                handle.seek(0)
                holder = handle.read().strip() or "another process"
                raise StoreError(
                    f"one runner may write to a store at a time; {self.path} is held by {holder}. Wait for it, or give "
                    "this run a store of its own and join them with `polyscore store merge`."
                ) from error
            self._known = None  # what a runner that has just ended wrote must be seen
            with contextlib.suppress(OSError):  # a full disk: the name is lost, the lock holds; the first append tells
                os.ftruncate(handle.fileno(), 0)
                os.write(handle.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            yield


def _protocol(file: Path) -> dict[str, Any] | None:
    """A protocol's description, or None where it is missing or damaged: the next writer restores it."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


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
        with open(file, "ab+") as handle:
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
