"""Warnings that point at the caller's line, however deep in the library they arise."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from pathlib import Path

import torch

from polyscore.errors import DegeneracyWarning, PolyscoreWarning

# What may stand between our functions: cached properties, `no_grad` and other decorators.
_PASSED = (str(Path(__file__).parent), functools.__file__, contextlib.__file__, str(Path(torch.__file__).parent))


def warn(message: str, category: type[PolyscoreWarning] = DegeneracyWarning) -> None:
    """Warn at the first line outside of this package: the one that a user can change."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
