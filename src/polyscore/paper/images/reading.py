"""What a store holds of images, as rows: setting, models, K, what was sampled, and its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from polyscore.errors import is_count
from polyscore.experiments.cells import COMPOSITION, is_name
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store
from polyscore.images.counting import NONE
from polyscore.images.recipe import MODELS
from polyscore.notices import warn
from polyscore.paper.images.settings import KINDS, OBJECTS, SETTINGS
from polyscore.rooms.dataset import CLASS

_SHARES = ("tv", "tv_low", "tv_high", "tv_floor", "p", "accuracy", "alarms")
_MORE = ("frechet", "kernel", "ancestors")
_VERDICTS = 5  # four classes and none
_ROUNDING = 1e-5  # records hold six digits
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
    content = protocols.get(record.protocol, {}).get("content")
    content = content.get("images") if isinstance(content, dict) else None
    if not isinstance(content, dict) or "tv" not in record.results:
        return None
    known = SETTINGS.get(record.cell.family)
    if not _is_told(content) or not _is_counted(record.results, known.mixtures.classes if known else None):
        warn(
            f"a record of images should hold all that the report shows; {record.key} of {record.cell.family} does not, "
            "and is passed over. Compute it again."
        )
        return None
    return Row(
        record.key, record.cell.family, content["models"], content["variant"], content["resolution"],
        record.cell.particles, record.cell.target, record.results, record.about, content,
    )  # fmt: skip


def _is_told(content: Mapping[str, Any]) -> bool:
    """Whether a protocol says of its images what the report says."""
    recipe = content.get("recipe")
    if not isinstance(recipe, dict) or not isinstance(recipe.get("unet", {}), dict):
        return False
    variant, steps = content.get("variant"), recipe.get("steps")
    named = content.get("models") in MODELS and (variant == "" or is_name(variant))
    return named and is_count(content.get("resolution")) and (steps is None or is_count(steps))


def _is_counted(results: Mapping[str, float], classes: tuple[str, ...] | None) -> bool:
    """Whether results hold four classes and none, with everything that is shown of each, in numbers that can be.

    Args:
        classes: those of a setting that claims are made of.
    """
    names = [name.removeprefix("count ") for name in results if name.startswith("count ")]
    asked = [f"{part} {name}" for part in ("share", "low", "high", "mass") for name in names]
    shares = [*asked, *_SHARES]
    return (
        len(names) == _VERDICTS and names[-1] == NONE and classes in (None, tuple(names[:-1]))
        and all(re.fullmatch(CLASS, name) for name in names)
        and all(name in results for name in (*shares, *_MORE)) and ("warp" in results) == ("warp error" in results)
        and all(-_ROUNDING <= results[name] <= 1 + _ROUNDING for name in shares)
        and all(results[f"count {name}"] >= 0 for name in names) and sum(results[f"count {n}"] for n in names) >= 1
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
