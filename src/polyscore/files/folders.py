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
def new_folder(path: Path | str) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `path`, new or empty, where all went well and vanishes where not."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}-", dir=path.parent))
        yield temporary
        temporary.chmod(0o755)
        os.rename(temporary, path)
    except OSError as error:
        raise OutputError(
            f"an output folder must be written whole; {str(path)!r} was not ({error.strerror}). Free some space, or "
            "choose another place."
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
