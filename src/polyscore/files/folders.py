"""Folders that are there whole or not at all: filled beside their place, put there in one step."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyscore.errors import OutputError
from polyscore.files.atomic import begun, check_directory, held, is_leftover


def require_empty(out: Path, what: str) -> Path:
    """Return a folder that is new or empty and can be written, or refuse it; what a kill left there is nothing."""
    check_directory(out)
    if out.is_dir() and not all(map(is_leftover, out.iterdir())):
        raise OutputError(f"{what} must have an empty folder; {str(out)!r} holds other files. Choose another place.")
    return out


@contextmanager
def new_folder(path: Path | str, last: str = "dataset.json") -> Iterator[Path]:
    """Yield a folder to fill, which becomes `path`, new or empty, where all went well and vanishes where not.

    A folder that is there already may be one that somebody stands in, or a disk of its own, and cannot be replaced: it
    is filled in its inside, and `last`, the file that says what the others are, comes last.
    """
    path = Path(path)
    place = Path(os.path.realpath(path))
    temporary = handle = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        inside = place.is_dir()
        around = place if inside else place.parent
        _sweep(around, place)
        temporary = Path(tempfile.mkdtemp(prefix=begun(place), suffix=".part", dir=around))
        handle = _locked(temporary)
        yield temporary
        temporary.chmod(0o755)
        if inside:
            _empty_into(temporary, place, last)
        else:
            os.rename(temporary, place)
    except OSError as error:
        raise OutputError(
            f"an output folder must be written whole; {str(path)!r} was not ({error.strerror}). Free some space, or "
            "choose another place."
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _empty_into(folder: Path, place: Path, last: str) -> None:
    with held(place / last):  # another process may have filled it meanwhile
        require_empty(place, "a new folder")
        for child in sorted(folder.iterdir(), key=lambda child: child.name == last):
            os.rename(child, place / child.name)


def _locked(folder: Path) -> int:
    """Lock a folder that is being filled, as long as this process lives: nobody else takes it away."""
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _sweep(around: Path, place: Path) -> None:
    """Take away what processes that were killed had begun to fill."""
    for folder in around.glob(f"{glob.escape(begun(place))}????????.part"):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
