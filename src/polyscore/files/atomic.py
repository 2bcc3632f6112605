"""Files that are written whole or not at all: a temporary file beside the target, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from polyscore.errors import OutputError, shorten


def printable(value: object, most: int = 200) -> str:
    """Return a text from somebody's file as one short line that does nothing to a terminal."""
    text = str(value)[:most]
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def file_name(text: str) -> str:
    """Return a name as part of a file name: it stays in its folder; one that had to be changed stays unlike others."""
    kept = re.sub(r"[^A-Za-z0-9 ._+=&%-]", "-", text).lstrip(". -")[:100] or "unnamed"
    return kept if kept == text else f"{kept}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def check_directory(directory: Path | str) -> Path:
    """Return `directory` if it can be written or made, else raise `OutputError`: call it before the long work.

    Nothing is made here, so a command that fails later leaves nothing behind.
    """
    directory = Path(directory)
    _check_name(directory, "an output directory")
    try:
        existing = next(place for place in (directory, *directory.parents) if place.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise OutputError(
            f"an output directory must be writable; got {str(directory)!r} ({error.strerror}). "
            "Choose another place, or change its permissions."
        ) from error
    return directory


def check_file(path: Path | str, endings: tuple[str, ...]) -> Path:
    """Return `path` if it has one of the endings and can be written; nothing is left there.

    Args:
        endings: allowed suffixes with their dot, such as `(".npz", ".csv")`.
    """
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise OutputError(f"an output file must end in {', '.join(endings)}; got {str(path)!r}. Rename it.")
    _check_name(path, "an output file")
    if path.is_dir():
        raise OutputError(f"an output file must not be a directory; got {str(path)!r}. Choose a file name.")
    check_directory(path.parent)
    return path


def _check_name(path: Path, subject: str) -> None:
    """Refuse a name that the system does not take: too long, no text, or in a folder that may not be searched."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutputError(
            f"{subject} must have a usable name; got {shorten(str(path))} ({why}). Choose another."
        ) from error


def begun(path: Path) -> str:
    """Return what the names of temporary files for `path` begin with: no other path's do."""
    stem = path.stem if len(os.fsencode(path.stem)) <= 100 else hashlib.sha256(os.fsencode(path.stem)).hexdigest()
    return f".{stem}-"


def sweep(path: Path | str) -> None:
    """Take away what a process that was killed had begun to write to `path`; for whoever holds it alone."""
    path = Path(path)
    for file in path.parent.glob(f"{glob.escape(begun(path))}????????.part*"):
        with contextlib.suppress(OSError):
            file.unlink()


def is_leftover(path: Path) -> bool:
    """Whether a file or folder is a lock, or what somebody began to write here: neither is there in the end."""
    return re.fullmatch(r"\..+(-[a-z0-9_]{8}\.part(\..+)?|\.lock)", path.name) is not None


def write_atomically(path: Path | str, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary file beside `path`, then put it in place in one step; return `path`."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=begun(path), suffix=f".part{path.suffix}", dir=path.parent)
    except (OSError, ValueError) as error:  # a name may hold a null byte
        why = getattr(error, "strerror", None) or error
        raise OutputError(
            f"an output path must be writable; got {str(path)[:300]!r} ({why}). Choose another."
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(
            f"an output file must be written whole; {str(path)!r} was not ({error.strerror}). Free some space, or "
            "choose another place."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep others from writing what belongs to `path`, or say that one does; the lock ends with the process.

    What a process that was killed had begun to write there is taken away.
    """
    lock, new = path.parent / f".{path.name}.lock", not path.parent.exists()
    handle = _opened(lock, path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        while not _is_at(handle, lock):  # its last holder took it away between our two steps: it keeps nobody out
            os.close(handle)
            handle = _opened(lock, path)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            yield  # a file system without locks: one is its own keeper there
            return
        raise OutputError(
            f"one process may write {str(path)!r} at a time; another does. Wait for it, or choose another place."
        ) from error
    try:
        sweep(path)
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
            if new:
                path.parent.rmdir()  # where nothing came of it
        os.close(handle)


def _opened(lock: Path, path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise OutputError(
            f"an output path must be writable; got {str(path)!r} ({error.strerror}). Choose another."
        ) from error


def _is_at(handle: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(lock))
    except FileNotFoundError:
        return False


def write_bytes(path: Path | str, content: bytes) -> Path:
    """Write bytes atomically."""
    return write_atomically(path, lambda temporary: _write_bytes(temporary, content))


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def write_text(path: Path | str, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_atomically(path, lambda temporary: _write(temporary, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")  # half a surrogate pair, from somebody's JSON
