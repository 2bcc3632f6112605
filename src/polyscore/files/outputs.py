"""What may be written where: no file of the user's is replaced unless asked, and none that is being read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from polyscore.errors import OutputError
from polyscore.files.atomic import check_file


def check_output(path: Path | str, endings: tuple[str, ...], force: bool = False, inputs: Iterable[Path] = ()) -> Path:
    """Return `path` if it may be written, else raise `OutputError`: call it before the work.

    Args:
        endings: allowed suffixes.
        force: replace a file that is there.
        inputs: what is read; never replaced, by whatever name.
    """
    path = check_file(path, endings)
    for read in inputs:
        if is_same(path, read):
            raise OutputError(
                f"an output must not be what is read; {str(path)!r} is {str(read)!r}. Choose another name."
            )
    if not force and os.path.lexists(path):
        raise OutputError(
            f"an output must not replace a file unasked; {str(path)!r} exists. Choose another name, or pass force "
            "(--force)."
        )
    return path


def is_same(one: Path, other: Path) -> bool:
    """Whether two names are one file: through links, hard links, `./` or, where it does not matter, case."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other)


def check_model(path: Path) -> None:
    """Check that a model file and the JSON beside it replace nothing but a model's."""
    check_file(path, (path.suffix,))
    for file in (path, path.with_suffix(".json")):
        if file.is_file() and not _is_ours(file):
            raise OutputError(
                f"a model must not replace another program's file; {str(file)!r} is one. Choose another name."
            )


def _is_ours(file: Path) -> bool:
    """Whether the beginning of a file says so; a header is written by us as a whole, or not at all."""
    with file.open("rb") as opened:
        return b"polyscore" in opened.read(1 << 16)
