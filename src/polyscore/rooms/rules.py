"""Which picture of a class to accept: what must be seen in it, and what must not; the rule that a person follows."""

from __future__ import annotations

from typing import NamedTuple

from polyscore.rooms.classes import OBJECTS

ALWAYS = (
    "nothing that must be seen is cut by the picture's edge",
    "no noise, no smear, nothing warped or doubled",
    "one room, as a camera would see it",
)
FREE = "Windows, curtains, lamps, plants, rugs, and what lies on a table or couch, may be there in any class."


class Rule(NamedTuple):
    """What a picture of a class must show, and must not, and what holds for every class."""

    must: tuple[str, ...]
    never: tuple[str, ...]
    always: tuple[str, ...] = ALWAYS


def rule(name: str) -> Rule:
    """Return the rule of a class, "couch+table" or any other name of that kind."""
    held = () if name == "empty" else tuple(name.split("+"))
    must = tuple(f"one {thing}" for thing in held) or ("an empty room: wall and floor",)
    return Rule(must, tuple(f"a {thing}" for thing in OBJECTS if thing not in held))
