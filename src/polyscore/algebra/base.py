"""Compositions by their text, the one that people ask for first, and the same one of other members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polyscore.algebra.composition import Composition
from polyscore.algebra.expressions import parse_exponents, unknown_condition
from polyscore.algebra.family import Family
from polyscore.errors import UnknownConditionError, listed, require
from polyscore.notices import warn

BASES = ("control", "ctrl", "base")  # what people call the condition that the others are compared with
_JOINTS = "+&_|,;/"  # what stands between the parts of a name such as A+B


def parse(text: str, family: Family) -> Composition:
    """Return the composition that `text` describes, such as `(a1 * a2)^0.5 / base`."""
    _check_family(family)
    return Composition(family, parse_exponents(text, family))


def base_composition(family: Family, base: str | None = None) -> Composition:
    """Return P_0 prod_a P_a / P_0: exponent 1 for every other condition and 1 - (their number) for the base.

    Args:
        base: the condition P_0; by default the one that is called control, ctrl or base. The composition's text says
            which it is.
    """
    _check_family(family)
    base = _base_of(family) if base is None else base
    if base not in family:
        raise UnknownConditionError(unknown_condition(base, family.members))
    others = [name for name in family if name != base]
    together = measured_together(others, base)
    if together:
        rest = _over(family, [name for name in others if name not in together], base)
        warn(
            f"a composition of all conditions over {base!r} should hold each effect once; by their names "
            f"{listed(together, 6)} are others together, and are multiplied, too. Leave them out: "
            f"parse({str(rest)!r}, family)."
        )
    return _over(family, others, base)


def _check_family(family: object) -> None:
    require(isinstance(family, Family), "what is composed", "be a family", type(family).__name__,
            "Make one: ps.Family({\"A\": ..., \"control\": ...}), or ps.fit(data).")  # fmt: skip


def _over(family: Family, others: list[str], base: str) -> Composition:
    return Composition(family, {**dict.fromkeys(others, 1.0), base: 1.0 - len(others)})


def measured_together(conditions: Iterable[str], base: str | None) -> list[str]:
    """Return the conditions that are others together, by their names: `A+B` beside `A` and `B`, or `A+ctrl`, `ctrl+B`.

    They are what a composition is to be compared with, and no factors of it.
    """
    ways = {name: _taken_apart(name, base) for name in conditions}
    single = {effect for each in ways.values() for parts in each if len(parts) == 1 for effect in parts}
    return [name for name, each in ways.items() if any(len(parts) > 1 and parts <= single for parts in each)]


def _taken_apart(name: str, base: str | None) -> list[set[str]]:
    """The effects that a name may stand for, without the base's: itself, and its parts at every kind of joint."""
    ways = [[name], *(name.split(joint) for joint in _JOINTS if joint in name)]
    return [{part.strip() for part in parts} - {base} for parts in ways]


def recomposed(q: Composition, members: Mapping[str, Any]) -> Composition:
    """Return the composition of other members by the same exponents, in the same units and under the same names."""
    names = q.family.variables if q.family.has_names else None
    return Composition(Family(members, q.schedule, q.family.units, names), dict(q.exponents))


def _base_of(family: Family) -> str:
    """The one condition that is called like a base, in whatever case."""
    found = [name for name in family if name.strip().lower() in BASES]
    if len(found) != 1:
        among = (
            f"{len(found)} of them: {listed(found, 12, str)}"
            if found
            else f"the conditions {listed(list(family), 12, str)}"
        )
        raise UnknownConditionError(
            f"a family must have one condition called {', '.join(BASES[:-1])} or {BASES[-1]} to know its base; got "
            f"{among}. Name it: base_composition(family, base={(found or list(family))[0]!r})."
        )
    return found[0]
