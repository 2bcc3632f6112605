"""Conditions as mixtures of classes, and the exact class masses of their compositions.

A class is what one image shows ("couch"); a condition of a model is a distribution m_a over classes. Where images of
different classes hardly overlap, the composition prod_a p_a^{w_a} of p_a = sum_c m_a(c) p(. | c) has the class masses

    M(c) = prod_a m_a(c)^{w_a} / sum_c' prod_a m_a(c')^{w_a}      where sum_a w_a = 1,

which need no image at all. For other sums of exponents they hold where every class covers the same volume.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyscore.errors import check_conditions, is_finite, listed, nearest, require, require_known, shorten
from polyscore.notices import warn

CLASSES = ("empty", "couch", "painting", "couch+painting")
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Mixtures:
    """Conditions, each a mixture of the same classes.

    Attributes:
        classes: names of the classes, each once.
        conditions: from a condition's name to its mass on each class, in their order; masses are at least 0 and sum
            to 1 within 1e-6.
    """

    classes: tuple[str, ...] = CLASSES
    conditions: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _names(self.classes))
        require(isinstance(self.conditions, Mapping) and self.conditions, "conditions",
                "map at least one name to its masses", shorten(self.conditions, 80),
                f"Write {{base: [{', '.join(['...'] * len(self.classes))}]}}.")  # fmt: skip
        check_conditions(self.conditions)
        kept = {str(name): self._vector(str(name), masses) for name, masses in self.conditions.items()}
        object.__setattr__(self, "conditions", kept)

    def _vector(self, name: str, masses: object) -> tuple[float, ...]:
        """Return the masses of a condition, one a class, which sum to 1."""
        found, subject = _listed(masses), f"condition {name!r}"
        each = f"have {len(self.classes)} masses, one for each of {', '.join(self.classes)}"
        require(found is not None and len(found) == len(self.classes), subject, each, shorten(masses, 100),
                "Write one number for each class.")  # fmt: skip
        require(found is not None and all(is_finite(m) and m >= 0 for m in found), subject,
                "have finite masses of at least 0", shorten(masses, 100), "Correct that mass.")  # fmt: skip
        vector = tuple(float(m) for m in found or ())
        require(abs(math.fsum(vector) - 1) <= _TOLERANCE, subject, f"have masses that sum to 1 within {_TOLERANCE:g}",
                f"{shorten(list(vector), 100)}, which sum to {math.fsum(vector):.9g}",
                "Divide them by their sum.")  # fmt: skip
        return vector

    def masses(self, exponents: Mapping[str, float]) -> dict[str, float]:
        """Return the class masses of the composition with these exponents, which sum to 1 or are warned of.

        Args:
            exponents: by condition; those that are not named have exponent 0.
        """
        require(isinstance(exponents, Mapping), "exponents", "be a mapping from conditions", shorten(exponents, 80),
                "Write {condition: exponent}.")  # fmt: skip
        logs = {name: self._log_mass(place, exponents) for place, name in enumerate(self.classes)}
        _doubt(math.fsum(exponents.values()))
        largest = max(logs.values())
        require(largest > -math.inf, "a composition", "leave mass to some class",
                f"none for {shorten(dict(exponents), 80)}", "No class is in all of its conditions.")  # fmt: skip
        unnormalised = {name: math.exp(log - largest) for name, log in logs.items()}
        total = math.fsum(unnormalised.values())
        return {name: mass / total for name, mass in unnormalised.items()}

    def _log_mass(self, place: int, exponents: Mapping[str, float]) -> float:
        """Sum of w_a log m_a(c) for the class at `place`; -inf where a numerator has none of it."""
        factors = [(self._known(name)[place], self._exponent(name, w)) for name, w in exponents.items() if w != 0]
        if any(mass == 0 and w > 0 for mass, w in factors):
            return -math.inf  # 0/0 too: what a numerator never shows, no composition does
        divisors = [name for name, w in exponents.items() if w < 0 and self._known(name)[place] == 0]
        require(not divisors, f"a divisor's mass of class {self.classes[place]!r}", "be positive where the numerator's "
                "is", f"0 in {listed(divisors)}", "Give it a small mass: nothing can be divided by 0.")  # fmt: skip
        return math.fsum(w * math.log(mass) for mass, w in factors)

    def _known(self, name: str) -> tuple[float, ...]:
        require_known(name, self.conditions, "a condition")
        return self.conditions[name]

    def _exponent(self, name: str, w: float) -> float:
        require(is_finite(w), f"the exponent of {name!r}", "be a finite number", shorten(w),
                "Leave the condition out where it has none.")  # fmt: skip
        return float(w)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description, which `parse` takes."""
        return {"classes": list(self.classes), "conditions": {k: list(v) for k, v in self.conditions.items()}}

    @classmethod
    def parse(cls, mapping: Any, subject: str = "mixtures") -> Mixtures:
        """Return those of a mapping as YAML or JSON gives it; masses may be a list, or a mapping from class to mass."""
        require(isinstance(mapping, Mapping) and "conditions" in mapping and set(mapping) <= {"classes", "conditions"},
                subject, "be a mapping with `conditions` and, if they are others, `classes`", shorten(mapping, 80),
                "Write {classes: [...], conditions: {base: [...]}}.")  # fmt: skip
        classes = _names(mapping.get("classes", CLASSES))
        given = mapping["conditions"]
        require(isinstance(given, Mapping), "conditions", "map names to masses", shorten(given, 80),
                "Write {condition: {class: mass}}.")  # fmt: skip
        return cls(classes, {name: _in_order(name, masses, classes) for name, masses in given.items()})


def _doubt(total: float) -> None:
    """Warn where a class's mass also depends on the integral of p(. | c)^W, which only W = 1 makes 1."""
    if abs(total - 1) > _TOLERANCE:
        warn(f"class masses should be asked of exponents that sum to 1; these sum to {total:g}. They hold only "
             "where pictures of every class spread alike: change an exponent, or take them for a guess.")  # fmt: skip


def _names(classes: object) -> tuple[str, ...]:
    names = tuple(_listed(classes) or ())
    good = names and all(isinstance(name, str) and name and name.isprintable() for name in names)
    require(good and len(set(names)) == len(names), "classes", "be different names", shorten(classes, 80),
            f"Use {list(CLASSES)}.")  # fmt: skip
    return names


def _listed(values: object) -> list[Any] | None:
    """A sequence as a list; a text and what has no order are none."""
    if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(values, Iterable):
        return None
    return list(values)


def _in_order(name: object, masses: Any, classes: tuple[str, ...]) -> Any:
    """Masses in the order of the classes; one that a mapping leaves out is 0."""
    if not isinstance(masses, Mapping):
        return masses
    unknown = [one for one in masses if one not in classes]
    require(not unknown, f"a class of condition {name!r}", f"be one of {', '.join(classes)}", listed(unknown),
            nearest((unknown or [""])[0], classes).strip() or "Choose among these.")  # fmt: skip
    return [masses.get(one, 0.0) for one in classes]
