"""Folders that are there whole or not at all: filled beside their place, put there in one step."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyscore.errors import OutputError


@contextmanager
def new_folder(path: Path | str, last: str = "dataset.json") -> Iterator[Path]:
    """Yield a folder to fill, which becomes `path`, new or empty, where all went well and vanishes where not.

    A folder that is there already may be one that somebody stands in, or a disk of its own, and cannot be replaced: it
    is filled in its inside, and `last`, the file that says what the others are, comes last.
    """
    path = Path(path)
    place = Path(os.path.realpath(path))
    temporary = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        inside = place.is_dir()
        temporary = Path(tempfile.mkdtemp(prefix=f".{place.name[:100]}-", dir=place if inside else place.parent))
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


def _empty_into(folder: Path, place: Path, last: str) -> None:
    for child in sorted(folder.iterdir(), key=lambda child: child.name == last):
        os.rename(child, place / child.name)
