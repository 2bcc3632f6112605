"""What can be seen of each object: its box in the picture and its share of the pixels, from numbered pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 0.01  # share of the pixels below which an object does not count as seen


@dataclass(frozen=True)
class Seen:
    """The visible part of an object.

    Attributes:
        box: left, top, right, bottom as shares of the picture's sides; (0, 0) is the upper left corner.
        share: of the pixels.
    """

    box: tuple[float, float, float, float]
    share: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self) | {"box": list(self.box)}

    def pixels(self, resolution: int) -> tuple[int, int, int, int]:
        """Return the box in whole pixels of a picture: left, top, right, bottom, the last two not included."""
        left, top, right, bottom = (resolution * side for side in self.box)
        return int(left), int(top), int(np.ceil(right)), int(np.ceil(bottom))


def seen(number: NDArray[np.int64], things: Sequence[str]) -> dict[str, Seen]:
    """Return what is seen of each thing.

    Args:
        number: of the part that each pixel shows, (H, W); -1 is none.
        things: which thing a part belongs to.
    """
    names = np.array([*things, ""])[number]
    return {thing: _seen(names == thing) for thing in sorted(set(things)) if bool((names == thing).any())}


def _seen(mask: NDArray[np.bool_]) -> Seen:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    height, width = mask.shape
    box = columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height
    return Seen((float(box[0]), float(box[1]), float(box[2]), float(box[3])), float(mask.mean()))
