"""Contact sheets: a row a class, to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from polyscore.errors import is_count, require, shorten
from polyscore.files.atomic import write_atomically
from polyscore.rooms.dataset import Dataset
from polyscore.schema import count

_LEAST = count(0, 2048)
_TITLE, _GAP, _INK, _FLAWED = 14, 2, (40, 40, 40), (220, 40, 40)


def contact_sheet(dataset: Dataset, columns: int = 8, least: int = 96) -> Image.Image:
    """Return the first rooms of each class under its name; flawed ones have a red frame.

    Args:
        columns: rooms in a row, at most.
        least: pixels a side below which rooms are shown enlarged.
    """
    require(is_count(columns), "columns", "be at least 1, and whole", columns, "Pass one or more.")
    require(_LEAST.holds(least), "least", _LEAST.rule, shorten(least), "Leave it out for 96.")
    rows = {name: len(dataset.records(name)[:columns]) for name in dataset.classes}
    side = dataset.resolution * max(1, -(-least // dataset.resolution))
    step, line = side + _GAP, side + _GAP + _TITLE
    page = Image.new("RGB", (max(rows.values()) * step - _GAP, len(rows) * line - _GAP), "white")
    for row, (name, shown) in enumerate(rows.items()):
        ImageDraw.Draw(page).text((2, row * line + 1), name, fill=_INK)
        for column, image in enumerate(dataset.images(name, range(shown))):
            tile = _tile(image, side, dataset.records(name)[column].flaw is not None)
            page.paste(tile, (column * step, row * line + _TITLE))
    return page


def _tile(image: np.ndarray, side: int, flawed: bool) -> Image.Image:
    tile = Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST)
    if flawed:
        ImageDraw.Draw(tile).rectangle((0, 0, side - 1, side - 1), outline=_FLAWED, width=2)
    return tile


def write_sheet(dataset: Dataset, path: Path) -> Path:
    """Write a contact sheet as PNG."""
    page = contact_sheet(dataset)
    return write_atomically(path, lambda temporary: page.save(temporary, "PNG"))
