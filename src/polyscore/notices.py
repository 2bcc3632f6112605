"""Warnings that point at the caller's line, however deep in the library they arise."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from polyscore.errors import DegeneracyWarning, PolyscoreWarning

# What may stand between our functions: cached properties, `no_grad` and other decorators.
_PASSED = (str(Path(__file__).parent), functools.__file__, contextlib.__file__, str(Path(torch.__file__).parent))


_told = threading.local()


@contextlib.contextmanager
def recording() -> Iterator[list[str]]:
    """Yield a list that fills with what is warned of in this thread while it lasts, whatever filters show of it."""
    before, found = getattr(_told, "messages", None), list[str]()
    _told.messages = found
    try:
        yield found
    finally:
        _told.messages = before


def warn(message: str, category: type[PolyscoreWarning] = DegeneracyWarning) -> None:
    """Warn at the first line outside of this package: the one that a user can change."""
    messages = getattr(_told, "messages", None)
    if messages is not None:
        messages.append(message)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
