"""The published numbers: 480 cells of 24 tables, each the mean and population standard deviation of 30 runs."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from polyscore.errors import ArgumentError, nearest

RUNS = 30

_Key = tuple[str, str, str, str, str]
_COLUMNS = ("setting", "models", "metric", "particles", "train_size")


class Published(NamedTuple):
    """One cell of a published table, over `RUNS` runs."""

    mean: float
    std: float


def published(
    setting: str,
    models: str = "conditional",
    metric: str = "sw2",
    particles: int = 16,
    train_size: int | str = "analytic",
) -> Published:
    """Return the published mean and standard deviation of one cell.

    Args:
        setting: such as `gaussian-factorized-ood`; the keys of `SETTINGS`.
        models: `conditional` (one network) or `separate` (one a condition).
        metric: `sw2` or `mmd2`.
        particles: K, one of 1, 4, 16, 64, 256.
        train_size: 100, 1000, 10000 or `analytic`.
    """
    key = (setting, models, metric, str(particles), str(train_size))
    cells = _cells()
    if key not in cells:
        raise ArgumentError(_missing(key))
    return cells[key]


@lru_cache(maxsize=1)
def _cells() -> dict[_Key, Published]:
    text = resources.files(__package__).joinpath("tables.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {_key(row): Published(float(row["mean"]), float(row["std"])) for row in rows}


def _key(row: dict[str, str]) -> _Key:
    setting, models, metric, particles, train_size = (row[column] for column in _COLUMNS)
    return setting, models, metric, particles, train_size


def _missing(key: _Key) -> str:
    """Name the first coordinate that no published cell has."""
    for column, value, known in zip(_COLUMNS, key, zip(*_cells(), strict=True), strict=True):
        values = list(dict.fromkeys(known))
        if value not in values:
            near = nearest(value, values) or " Choose one of these."
            return f"{column} must be one of {', '.join(values)}; got {value!r}.{near}"
    return f"a published cell must exist; got {key}. Choose a row of the paper's tables."
