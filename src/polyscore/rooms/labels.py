"""Labels of pictures: one file, one line a label, on the disk before anybody is told.

    {"class": "couch", "file": "000012.png", "accepted": true, "at": "2026-11-16T19:20:00+00:00"}

The last line of a picture counts; `null` takes its label back. Lines are only ever appended, each by one write under a
lock, so that several pages and processes may label one dataset; a line of ours that a kill or a full disk cut is taken
away before the next one is written. What somebody else wrote there is passed over, and stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from polyscore.errors import ArgumentError, OutputError, require, shorten
from polyscore.files.regular import open_regular
from polyscore.notices import warn

NAME = "labels.jsonl"
_LONGEST, _BEGINNING = 1 << 13, b'{"class": "'  # of a line of ours


class Picture(NamedTuple):
    """A picture by class and file name."""

    name: str
    file: str


class Labels:
    """The labels of a dataset, those of others included as of the last `refresh`.

    Args:
        folder: the dataset's.
    """

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder) / NAME
        self._start_again()
        self.mend()
        self.refresh()

    def _start_again(self) -> None:
        self._accepted: dict[Picture, bool] = {}
        self._read, self._file = 0, -1

    def __len__(self) -> int:
        return len(self._accepted)

    def __contains__(self, picture: object) -> bool:
        return picture in self._accepted

    def items(self) -> list[tuple[Picture, bool]]:
        """Return every picture that has a label, and whether it was accepted; the one labelled last comes last."""
        return list(self._accepted.items())

    def get(self, picture: Picture) -> bool | None:
        """Return whether a picture was accepted; None where it has no label."""
        return self._accepted.get(picture)

    def add(self, picture: Picture, accepted: bool | None) -> None:
        """Write a label, or take it back (None); it is on the disk when this returns, or `OutputError` says why not."""
        require(accepted is None or isinstance(accepted, bool), "a label", "be True, False or None", accepted,
                "Write true, false or null.")  # fmt: skip
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"class": picture.name, "file": picture.file, "accepted": accepted, "at": at}) + "\n"
        try:
            with self._held(os.O_RDWR | os.O_CREAT | os.O_APPEND) as handle:
                _append(handle, line.encode())
            _sync_folder(self.path.parent)
        except OSError as error:
            raise OutputError(
                f"a label must be written at once; that of {picture.name}/{picture.file} was not ({error.strerror}). "
                "Free some space, or change permissions, then answer again."
            ) from error
        self.refresh()

    def mend(self) -> None:
        """Take away a last line that was cut; one that only lacks its end gets it. What can only be read stays."""
        with (contextlib.suppress(FileNotFoundError), self._readable(), _where_writable(),
              self._held(os.O_RDWR | os.O_APPEND) as handle):  # fmt: skip
            _mend(handle)

    def refresh(self) -> None:
        """Read what was written since the last time, by whomever."""
        with contextlib.suppress(FileNotFoundError), self._readable():
            handle = open_regular(self.path, os.O_RDONLY | os.O_NOFOLLOW)
            with open(handle, "rb") as file:
                self._take(file.fileno(), file)

    def _take(self, handle: int, file: Any) -> None:
        found = os.fstat(handle)
        if found.st_ino != self._file or found.st_size < self._read:  # somebody put another file there
            self._start_again()
            self._file = found.st_ino
        file.seek(self._read)
        whole, end, _ = file.read().rpartition(b"\n")  # a line that another writes at this moment comes next time
        self._read += len(whole) + len(end)
        damaged = sum(not self._learn(line) for line in whole.splitlines() if line.strip())
        if damaged:
            warn(f"every line must be a label; {self.path} holds {damaged} that are none. They are passed over.")

    def _learn(self, line: bytes) -> bool:
        label = _parsed(line)
        if label is None:
            return False
        picture, accepted = label
        self._accepted.pop(picture, None)  # so that the last label comes last
        if accepted is not None:
            self._accepted[picture] = accepted
        return True

    @contextlib.contextmanager
    def _held(self, flags: int) -> Iterator[int]:
        """The file, locked against other writers; the lock ends with the process."""
        handle = open_regular(self.path, flags | os.O_NOFOLLOW)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: one append is one write there too
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArgumentError(
                f"labels must be in a file of the dataset's own that can be written; {str(self.path)!r} is not "
                f"({shorten(error.strerror)}). Put the file itself there."
            ) from error


@contextlib.contextmanager
def _where_writable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise


def _parsed(line: bytes) -> tuple[Picture, bool | None] | None:
    """A label, or None where a line is none."""
    try:
        found = json.loads(line)
        picture, accepted = Picture(found["class"], found["file"]), found["accepted"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    good = isinstance(picture.name, str) and isinstance(picture.file, str) and accepted in (True, False, None)
    return (picture, accepted if accepted is None else bool(accepted)) if good else None


def _append(handle: int, line: bytes) -> None:
    """Write a line whole and to the disk, or leave the file as it was."""
    size = _mend(handle)
    try:
        written = os.write(handle, line)
        if written < len(line):
            raise OSError(0, "the disk is full")
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def _mend(handle: int) -> int:
    """End the file with a whole line; return its size."""
    size = os.fstat(handle).st_size
    if not size or os.pread(handle, 1, size - 1) == b"\n":
        return size
    start = _last_line(handle, size)
    if not _is_cut(os.pread(handle, _LONGEST, start)):
        return size + os.write(handle, b"\n")
    os.ftruncate(handle, start)
    return start


def _is_cut(line: bytes) -> bool:
    """Whether the last line is the beginning of one of ours, or the zeros that a power cut leaves in its place."""
    begun = line.rstrip(b"\0")
    ours = begun.startswith(_BEGINNING) or _BEGINNING.startswith(begun)
    return ours and not begun.rstrip().endswith(b"}")


def _last_line(handle: int, size: int) -> int:
    """Where the last line of a file begins, however long it is."""
    end = size
    while end > 0:
        start = max(0, end - (1 << 16))
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    """A file that is new is there after a power cut only when its folder is on the disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
