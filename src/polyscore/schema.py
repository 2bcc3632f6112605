"""What a field may hold, said once: for recipes, protocols, experiments and samplers, in Python and in YAML alike.

    @dataclass(frozen=True)
    class Recipe(Checked):
        steps: int = setting(20_000, count())
        ema: float | None = setting(None, optional(number(0, 1, ends=False)))

A `Checked` dataclass checks its fields when it is made, and keeps plain Python values (NumPy's numbers are welcome,
files hold Python's). `parse` makes one of a mapping as YAML gives it. Nothing here needs more than Python itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np

from polyscore.errors import is_finite, listed, nearest, require, require_known, shorten


@dataclass(frozen=True)
class Domain:
    """The values that a field may hold.

    Attributes:
        rule: completes "{field} must ...".
        holds: whether a value is one of them.
        plain: the value as files hold it.
        known: the names among which it is chosen, if it is; they may grow.
        remedy: what to do about another one.
    """

    rule: str
    holds: Callable[[Any], bool]
    plain: Callable[[Any], Any] = lambda value: value
    known: Collection[str] = ()
    remedy: str = ""

    @property
    def words(self) -> str:
        """The rule with the names that are known now."""
        return self.rule.format(listed(self.known, 30, str)) if self.known else self.rule


def count(least: int = 1, most: int | None = None) -> Domain:
    """Whole numbers from `least` to `most`; True is none."""
    rule = f"be a whole number of at least {least}" + (f", and at most {most}" if most is not None else "")
    return Domain(rule, lambda value: _is_whole(value) and least <= value and (most is None or value <= most), int)


def number(low: float, high: float = float("inf"), *, ends: bool = True) -> Domain:
    """Real numbers from `low` to `high`, both included unless `ends` is False; an infinite end never is."""
    bounded = abs(high) != float("inf")
    rule = f"be a number of at least {low:g}" if ends else f"be a number above {low:g}"
    rule += (f", and at most {high:g}" if ends else f", and below {high:g}") if bounded else ""

    def holds(value: Any) -> bool:
        if not is_finite(value):
            return False
        wide = float(value)  # NumPy's float32 cannot be compared with 1e300
        return low <= wide <= high if ends else low < wide < high

    return Domain(rule, holds, float)


def choice(known: Collection[str]) -> Domain:
    """One of some names; a `Registry` may still grow."""
    return Domain("be one of {}", lambda value: isinstance(value, str) and value in known, known=known)


def flag() -> Domain:
    """True or False; 0 and 1 are neither."""
    return Domain("be True or False", lambda value: isinstance(value, (bool, np.bool_)), bool)


def text(most: int = 200) -> Domain:
    """A printable text."""
    rule = f"be a printable text of at most {most} characters"
    return Domain(rule, lambda value: isinstance(value, str) and value.isprintable() and len(value) <= most)


def optional(domain: Domain) -> Domain:
    """Also None."""
    return Domain(
        f"{domain.rule}, or None",
        lambda value: value is None or domain.holds(value),
        lambda value: None if value is None else domain.plain(value),
        domain.known,
    )


def each(domain: Domain, least: int = 0) -> Domain:
    """Lists and tuples of different values, kept as tuples."""
    some = f"hold {'at least ' + str(least) + ' ' if least else ''}different values that {domain.rule}"

    def holds(value: Any) -> bool:
        if not isinstance(value, (list, tuple)) or len(value) < least or not all(map(domain.holds, value)):
            return False
        return all(value[i] not in value[:i] for i in range(len(value)))

    return Domain(some, holds, lambda value: tuple(map(domain.plain, value)), domain.known)


def instance(kind: type, rule: str) -> Domain:
    """Objects of a class."""
    return Domain(rule, lambda value: isinstance(value, kind))


def setting(default: Any, domain: Domain) -> Any:
    """A dataclass field with a default and a domain."""
    return dataclasses.field(default=default, metadata={"domain": domain})


_AGAIN, _LEAVE = "Correct it.", "Correct it, or leave it out."


@dataclass(frozen=True)
class Checked:
    """A frozen dataclass whose fields have domains; one that a subclass gives another default keeps its domain.

    What `__init__` does not take is a class's own value, and is not checked; its domain is for subclasses that open it.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            domain = _domain(type(self), field.name) if field.init else None
            if domain is not None:
                value = getattr(self, field.name)
                remedy = _near(value, domain) or domain.remedy or (_AGAIN if _required(field) else _LEAVE)
                require(domain.holds(value), field.name, domain.words, shorten(value, 100), remedy)
                object.__setattr__(self, field.name, domain.plain(value))

    @classmethod
    def names(cls) -> list[str]:
        """The fields that `parse` takes."""
        return [field.name for field in dataclasses.fields(cls) if field.init]

    @classmethod
    def parse(cls, mapping: Any, subject: str) -> Self:
        """Return one of a mapping; a key that is no field is an error that names the nearest."""
        require(isinstance(mapping, Mapping), subject, "be a mapping", shorten(mapping, 80), "Write {name: value}.")
        for key in mapping:
            require_known(key, cls.names(), f"a key of {subject}", "Leave it out.")
        missing = [f.name for f in dataclasses.fields(cls) if f.init and _required(f) and f.name not in mapping]
        require(not missing, subject, f"have {listed(missing, 30, str)}", "none", f"Add `{(missing or [''])[0]}:`.")
        return cls(**mapping)


def _domain(cls: type, name: str) -> Domain | None:
    own = (vars(base).get("__dataclass_fields__", {}).get(name) for base in cls.__mro__)
    return next((field.metadata["domain"] for field in own if field is not None and "domain" in field.metadata), None)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _near(value: Any, domain: Domain) -> str:
    """A hint where a name is nearly one of those that are known."""
    return nearest(value, domain.known).strip() if isinstance(value, str) else ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
