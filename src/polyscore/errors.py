"""What can go wrong, as types: every message says rule, value, remedy.

Errors are all `ValueError`s, so a caller may catch them without knowing this module; degeneracy that does not stop a
computation is a warning (and a field of the result), never a silent clamp. A message is bounded in length, and so is
the work of writing it, whatever value it shows; nothing in it commands a terminal.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from typing import Any

VALUE_LENGTH, MESSAGE_LENGTH, NAME_LENGTH = 200, 4000, 200
_CONTAINERS = (dict, list, tuple, set, frozenset)


def visible(text: str) -> str:
    """Return text with everything unprintable spelled out: control, zero-width and direction marks, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, length: int = VALUE_LENGTH) -> str:
    """Return visible text of at most `length` characters, saying so where it was longer."""
    shown = visible(text[: length + 1])
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


class _Bounded(reprlib.Repr):
    """`repr` that stops early: an alias bomb is small as an object and has no end as text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 8
        self.maxstring = self.maxother = VALUE_LENGTH
        self.maxlong = 60

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 4096:  # Python refuses to write out the digits of more than that
            return f"a whole number of {x.bit_length()} bits"
        return super().repr_int(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            return super().repr_instance(x, level)
        except Exception:  # a foreign object's own repr; the error being told matters more
            return f"<{type(x).__name__}>"


_bounded = _Bounded()


def shorten(value: object, length: int = VALUE_LENGTH) -> str:
    """Return `repr(value)` as a message shows it: bounded in time, memory and length, and visible."""
    return cut(_bounded.repr(value), length)


def _plain(value: object) -> str:
    """A value without quotes, as `{value}` writes it."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, (*_CONTAINERS, int)):
        return shorten(value)
    try:
        return cut(str(value))
    except Exception:  # as above
        return shorten(value)


def _message(text: object) -> object:
    """A whole message: our line breaks stay, what is unprintable is spelled out; rule and remedy outlive a cut."""
    if not isinstance(text, str):
        return text
    half = MESSAGE_LENGTH // 2
    kept = text if len(text) <= MESSAGE_LENGTH else f"{text[:half]} … {text[-half:]}"
    return "\n".join(map(visible, kept.split("\n")))


class PolyscoreError(ValueError):
    """An input that breaks a rule: `{subject} must {rule}; got {value}. {remedy}`."""

    def __init__(self, message: object = "", *more: object) -> None:
        super().__init__(_message(message), *more)


class ArgumentError(PolyscoreError):
    """A number, shape or option outside its domain."""


class ReadOnlyError(ArgumentError, TypeError):
    """A change to what cannot be changed; a `TypeError` too, as Python's own."""


class CompositionError(PolyscoreError):
    """An algebra of conditions that cannot be formed: unknown names, mixed dimensions or schedules."""


class UnknownConditionError(CompositionError, KeyError):
    """A condition that the family does not have; a `KeyError` too, since a family is a mapping."""

    def __str__(self) -> str:
        return str(self.args[0])


class ExpressionError(CompositionError):
    """A malformed expression; the message carries a caret below the offending character."""

    def __init__(self, message: str, text: str, position: int) -> None:
        start, end = max(0, position - 60), position + 60
        before = ("…" if start else "") + visible(text[start:position])
        line = before + visible(text[position:end]) + ("…" if end < len(text) else "")
        super().__init__(f"{message}\n  {line}\n  {' ' * len(before)}^")
        self.text, self.position = text, position

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args, self.text, self.position)


class ImproperError(CompositionError):
    """A composition whose density cannot be normalised, with the direction in which it does not decay."""


class ScoreError(PolyscoreError):
    """A score that is not finite: names the condition and the time."""


class OutputError(PolyscoreError):
    """A path that cannot be written."""


class PolyscoreWarning(UserWarning):
    """Parent of all our warnings."""

    def __init__(self, message: object = "", *more: object) -> None:
        super().__init__(_message(message), *more)


class DegeneracyWarning(PolyscoreWarning):
    """A result that exists but rests on too little: low effective sample size, coarse steps, an improper path."""


def check_conditions(names: Iterable[object]) -> None:
    """Raise `CompositionError` unless every name can be a condition: printable text without quotes, not too long."""
    for name in names:
        good = isinstance(name, str) and name.strip() and name.isprintable() and '"' not in name
        if not good or len(str(name)) > NAME_LENGTH:
            raise CompositionError(
                "a condition must be a non-empty string without quotes, printable and at most "
                f"{NAME_LENGTH} characters long; got {shorten(name, 60)}. Rename it."
            )


def require(condition: object, subject: str, rule: str, value: object, remedy: str = "") -> None:
    """Raise `ArgumentError` with the house's sentence unless `condition` holds."""
    if not condition:
        raise ArgumentError(f"{subject} must {rule}; got {_plain(value)}. {remedy}".strip())


def listed(names: Collection[object], most: int = 30, show: Callable[[object], str] | None = None) -> str:
    """Return names in a row, as a message lists what it knows; of very many the first. They are quoted unless shown."""
    row = ", ".join((show or _name)(name) for name in islice(names, most))
    return row if len(names) <= most else f"{row}, ... ({len(names)} in all)"


def in_a_row(name: object) -> str:
    """Return a name as it stands between commas: in quotes where it holds one."""
    return f'"{name}"' if "," in str(name) else str(name)


def named(names: Sequence[str]) -> str:
    """Return one condition or several as the subject of a sentence."""
    return f"condition {names[0]!r}" if len(names) == 1 else f"conditions {listed(names)}"


def _name(value: object) -> str:
    return shorten(value, 60)


def differing(found: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Say where what was found is not what is asked for, as `recipe (width 64, asked 32)`; nothing where it is."""
    return ", ".join(
        key + (f" ({inner})" if isinstance(value, Mapping) and (inner := _inside(found.get(key), value)) else "")
        for key, value in asked.items()
        if found.get(key) != value
    )


def _inside(found: object, asked: Mapping[str, Any]) -> str:
    held: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    other = [f"{name} {shorten(held.get(name), 40)}, asked {shorten(value, 40)}"
             for name, value in asked.items() if held.get(name) != value]  # fmt: skip
    return "; ".join(other[:6])


def nearest(value: object, known: Iterable[object], cutoff: float = 0.5) -> str:
    """Return " Did you mean ...?" for the closest known name, or nothing.

    Comparing is quadratic in the length of the names: long ones and very many are not compared.
    """
    names = [name for name in islice(known, 1000) if isinstance(name, str) and len(name) <= NAME_LENGTH]
    if not isinstance(value, (str, int, float)) or len(text := _plain(value)) > NAME_LENGTH // 2:
        return ""
    folded = {name.casefold(): name for name in reversed(names)}
    near = difflib.get_close_matches(text.casefold(), folded, n=1, cutoff=cutoff)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def require_known(
    name: object, known: Collection[str], subject: str, remedy: str = "Choose one of these.",
    kind: type[PolyscoreError] = ArgumentError,
) -> None:  # fmt: skip
    """Raise `ArgumentError` unless a name is among those that are known; the remedy is the nearest, if one is near."""
    if not isinstance(name, str) or name not in known:
        near = nearest(name, known) or f" {remedy}"
        raise kind(f"{subject} must be one of {listed(known, 30, str) or 'none'}; got {shorten(name)}.{near}")


def is_finite(value: object) -> bool:
    """Whether a value is one finite real number, NumPy's too; True and text are none."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) < float("inf")
    except OverflowError:  # 10**400
        return False


def _unpickled(kind: type[ExpressionError], args: tuple[Any, ...], text: str, position: int) -> ExpressionError:
    error = kind.__new__(kind, *args)
    error.text, error.position = text, position
    return error


def is_number(value: object) -> bool:
    """Whether a value is a real number, NumPy's too; True is not one, nor is NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1, NumPy's too; True is not one."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
