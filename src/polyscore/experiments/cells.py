"""A cell: one result of a table before averaging, by its coordinates.

Its key is a hash of them and of its protocol, so a result is found again exactly when it would be computed again the
same way. Coordinates that came after 0.3.0 are left out of both at their defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from polyscore.experiments.protocol import Protocol, digest
from polyscore.files.atomic import file_name

ANALYTIC = "analytic"
COMPOSITION = "composition"
METRICS = ("sw2", "mmd2")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_name(text: object) -> bool:
    """Whether a text can stand in a file name of a store: it can neither leave its folder nor hide."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def target_name(condition: str) -> str:
    """Return how cells name a condition: as it is, or where it could not be told apart, changed and with a hash."""
    if is_name(condition) and condition != COMPOSITION:
        return condition
    return "x-" + re.sub(r"[ +=&%]", "-", file_name(condition + "/"))[:90]


@dataclass(frozen=True, order=True)
class Cell:
    """One result: the scores of one run, sampled one way, measured against a reference.

    Attributes:
        family: its name.
        models: "analytic" (the family's own scores) or the name of a kind that is trained.
        train_size: points per condition; 0 for analytic.
        particles: K of the sampler.
        target: "composition", or one condition sampled by itself (`target_name`).
        sampler: its name; "" is the protocol's own.
        metrics: what was measured; () are sw2 and mmd2.
    """

    family: str
    models: str
    train_size: int
    run: int
    particles: int
    target: str = COMPOSITION
    sampler: str = ""
    metrics: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of its metrics."""
        return self.metrics or METRICS

    def place(self) -> list[Any]:
        """Return its coordinates, JSON-ready; `of_place` is the inverse."""
        first = [self.family, self.models, self.train_size, self.run, self.particles, self.target]
        return first + ([self.sampler, list(self.metrics)] if self.sampler or self.metrics else [])

    @classmethod
    def of_place(cls, place: list[Any]) -> Cell:
        """Return the cell of coordinates as a file holds them; `ValueError` where there are not six or eight."""
        if len(place) not in (6, 8) or not isinstance(place[-1], list if len(place) == 8 else str):
            raise ValueError("coordinates")
        return cls(*place[:6], *([place[6], tuple(place[7])] if len(place) == 8 else []))

    def key(self, protocol: Protocol) -> str:
        """Return the hash under which the store keeps this cell."""
        return self.key_under(protocol.key)

    def key_under(self, protocol: str) -> str:
        """Return the key under a protocol that is known by its hash only."""
        return digest([protocol, *self.place()])
