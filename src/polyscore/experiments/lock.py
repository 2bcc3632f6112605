"""One writer a store: a lock on a file that names its holder, and the errors of a store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from polyscore.errors import PolyscoreError
from polyscore.experiments.records import open_own
from polyscore.files.atomic import printable
from polyscore.notices import warn


class StoreError(PolyscoreError):
    """A store that cannot be used: foreign, of another version, held by another runner, or full."""


class HeldError(StoreError):
    """A store that another runner holds."""


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold a store's folder for writing; a second writer learns who has it."""
    with _lock_file(path) as handle:
        before, here = _take(path, handle), socket.gethostname()
        if before and not before.endswith(f" on {here}"):
            warn(
                f"a runner should end by itself; {before}, which held {path}, did not. Where that machine shares no "
                "locks with this one, see that it has stopped: two at once would do the same work twice."
            )
        with contextlib.suppress(OSError):  # a full disk: the name is lost, the lock holds; the first append tells
            os.ftruncate(handle.fileno(), 0)
            os.write(handle.fileno(), f"process {os.getpid()} on {here}\n".encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(handle.fileno(), 0)


def _lock_file(path: Path) -> IO[bytes]:
    try:
        return open(path / ".lock", "ab+", buffering=0, opener=open_own)
    except OSError as error:
        raise StoreError(f"the store must be writable; {path} is not ({error.strerror}). Choose another.") from error


def _take(path: Path, handle: IO[bytes]) -> str:
    """Lock the store or say who has it; return who did not give it back."""
    handle.seek(0)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise StoreError(
                f"a store must be on a file system that locks files; {path} is not ({error.strerror}). Choose another "
                "place, and copy the store there with `polyscore store merge`."
            ) from error
        raise HeldError(
            f"one runner may write to a store at a time; {path} is held by {_holder(handle) or 'another process'}. "
            "Wait for it, or give this run a store of its own and join them with `polyscore store merge`."
        ) from error
    return _holder(handle)


def _holder(handle: IO[bytes]) -> str:
    """Who wrote their name into a lock's file."""
    return printable(handle.read(200).decode(errors="replace").strip())
