"""Classes of rooms: which objects a room holds.

A condition of a model may be a *mixture* of classes; a class is what one image shows.
"""

from __future__ import annotations

import numpy as np

from polyscore.registry import Registry
from polyscore.rng import derive

OBJECTS = ("couch", "painting", "table")
CLASSES = Registry[frozenset[str]](
    "a class of rooms",
    {
        "empty": frozenset(),
        "couch": frozenset({"couch"}),
        "painting": frozenset({"painting"}),
        "table": frozenset({"table"}),
        "couch+painting": frozenset({"couch", "painting"}),
        "couch+table": frozenset({"couch", "table"}),
    },
)


def named(objects: frozenset[str]) -> str:
    """Return the name of a set of objects, that of a class where it is one: "couch+table"."""
    return "+".join(sorted(objects)) or "empty"


def generator(seed: int, name: str, index: int, *purpose: object) -> np.random.Generator:
    """Return NumPy's generator that belongs to one room of one class, and to one purpose in it."""
    return np.random.default_rng(derive(seed, "rooms", name, index, *purpose))
