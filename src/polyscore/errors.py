"""What can go wrong, as types: every message says rule, value, remedy.

Errors are all `ValueError`s, so a caller may catch them without knowing this module; degeneracy that does not stop a
computation is a warning (and a field of the result), never a silent clamp.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from numbers import Integral, Real

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class PolyscoreError(ValueError):
    """An input that breaks a rule: `{subject} must {rule}; got {value}. {remedy}`."""


class ArgumentError(PolyscoreError):
    """A number, shape or option outside its domain."""


class CompositionError(PolyscoreError):
    """An algebra of conditions that cannot be formed: unknown names, mixed dimensions or schedules."""


class UnknownConditionError(CompositionError, KeyError):
    """A condition that the family does not have; a `KeyError` too, since a family is a mapping."""

    def __str__(self) -> str:
        return str(self.args[0])


class ExpressionError(CompositionError):
    """A malformed expression; the message carries a caret below the offending character."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(f"{message}\n  {text}\n  {' ' * position}^")
        self.text, self.position = text, position


class ImproperError(CompositionError):
    """A composition whose density cannot be normalised, with the direction in which it does not decay."""


class ScoreError(PolyscoreError):
    """A score that is not finite: names the condition and the time."""


class OutputError(PolyscoreError):
    """A path that cannot be written."""


class PolyscoreWarning(UserWarning):
    """Parent of all our warnings."""


class DegeneracyWarning(PolyscoreWarning):
    """A result that exists but rests on too little: low effective sample size, coarse steps, an improper path."""


def check_conditions(names: Iterable[object]) -> None:
    """Raise `CompositionError` unless every name can be a condition: a non-empty string without quotes."""
    for name in names:
        if not isinstance(name, str) or not name or '"' in name:
            raise CompositionError(f"a condition must be a non-empty string without quotes; got {name!r}. Rename it.")


def require(condition: object, subject: str, rule: str, value: object, remedy: str = "") -> None:
    """Raise `ArgumentError` with the house's sentence unless `condition` holds."""
    if not condition:
        raise ArgumentError(f"{subject} must {rule}; got {value}. {remedy}".strip())


def is_number(value: object) -> bool:
    """Whether a value is a real number, NumPy's too; True is not one, nor is NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1, NumPy's too; True is not one."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def warn(message: str, category: type[PolyscoreWarning] = DegeneracyWarning) -> None:
    """Warn at the line outside this package that led here, whatever lies between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _lies_between(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _lies_between(file: str) -> bool:
    """Whether a file is ours, or holds the decorators and contexts in which ours are wrapped."""
    return file.startswith(_HERE) or file.endswith("contextlib.py")
