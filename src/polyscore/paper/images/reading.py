"""What a store holds of images, as rows: setting, models, K, what was sampled, and its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from polyscore.experiments.cells import COMPOSITION
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store
from polyscore.images.counting import NONE
from polyscore.paper.images.settings import KINDS, OBJECTS

_ORDER = [f"{kind}-{other}" for other in OBJECTS for kind in KINDS]


@dataclass(frozen=True)
class Row:
    """One record of images.

    Attributes:
        key: of its record, and of its contact sheet.
        content: what its protocol says of images: setting, variant, resolution, recipe.
    """

    key: str
    setting: str
    models: str
    variant: str
    resolution: int
    particles: int
    target: str
    results: Mapping[str, float]
    about: Mapping[str, Any]
    content: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """ "id", "ood" or "ood-both"."""
        return self.setting.rpartition("-")[0]

    @property
    def other(self) -> str:
        """The object beside the couch."""
        return self.setting.rpartition("-")[2]

    @property
    def composed(self) -> bool:
        """Whether it is of the composition, and not of one condition alone."""
        return self.target == COMPOSITION

    @property
    def classes(self) -> list[str]:
        """Empty, couch, X, both."""
        return [name.removeprefix("count ") for name in self.results if name.startswith("count ")][:-1]

    @property
    def total(self) -> int:
        """Images that were counted."""
        return int(sum(self.results[f"count {name}"] for name in (*self.classes, NONE)))

    def count(self, name: str) -> int:
        """Return the verdicts for a class."""
        return int(self.results[f"count {name}"])

    def share(self, name: str) -> float:
        """Return the share of a class, corrected for the classifier's confusion."""
        return self.results[f"share {name}"]

    def interval(self, name: str) -> tuple[float, float]:
        """Return the 95 % interval of the corrected share of a class."""
        return self.results[f"low {name}"], self.results[f"high {name}"]

    def mass(self, name: str) -> float:
        """Return the exact mass of a class in what was sampled."""
        return self.results[f"mass {name}"]

    @property
    def train_steps(self) -> int:
        """Optimiser steps of its training; 0 where the recipe counts epochs."""
        return int(self.content["recipe"].get("steps") or 0)

    @property
    def both(self) -> str:
        """The class with both objects."""
        return f"couch+{self.other}"


def rows(store: Store) -> list[Row]:
    """Return every record of images, in the order of the table; others are passed over."""
    protocols = store.protocols()
    found = [row for record in store.records.values() if (row := _row(record, protocols))]
    return sorted(found, key=_place)


def _row(record: Record, protocols: Mapping[str, Any]) -> Row | None:
    content = (protocols.get(record.protocol, {}).get("content") or {}).get("images")
    if not isinstance(content, dict) or "tv" not in record.results:
        return None
    return Row(
        record.key, record.cell.family, str(content["models"]), str(content["variant"]), int(content["resolution"]),
        record.cell.particles, record.cell.target, record.results, record.about, content,
    )  # fmt: skip


def _place(row: Row) -> tuple[Any, ...]:
    known = _ORDER.index(row.setting) if row.setting in _ORDER else len(_ORDER)
    alone = not row.composed
    place = (row.resolution, known, row.setting, row.models, row.variant, alone, row.target, row.particles)
    return (*place, row.train_steps, row.key)


def table(rows: Iterable[Row], resolution: int) -> dict[tuple[str, str, int], Row]:
    """Return the compositions of one resolution by setting, models, K, no studies; of several the longest trained."""
    chosen = [row for row in rows if row.resolution == resolution and row.composed and not row.variant]
    return {(row.setting, row.models, row.particles): row for row in chosen}
