"""Opening files that a user names: a pipe has no end and a device no size, so neither is waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_regular(file: Path | str, flags: int) -> int:
    """Open a regular file, or a link to one: an `opener` for `open`. A pipe or device is an `OSError`, no wait."""
    handle = os.open(file, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "no regular file")
    return handle


def read_regular(file: Path | str) -> bytes:
    """Return the content of a regular file; a pipe or device is an `OSError`, no wait."""
    with open(file, "rb", opener=open_regular) as opened:
        return opened.read()
