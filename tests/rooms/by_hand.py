"""Folders of pictures as `render` and `generate` leave them, written by hand: no renderer and no model needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyscore.rooms import Dataset, pictures
from polyscore.rooms.dataset import write_about, write_lines


def line(name: str, index: int) -> dict[str, Any]:
    """What is known of a picture without objects and flaws."""
    return {"file": f"{index:06}.png", "class": name, "index": index, "shows": name, "objects": {}, "flaw": None}


def write_rooms(
    out: Path, counts: Mapping[str, int], image: Callable[[int], np.ndarray],
    told: Callable[[str, int], dict[str, Any]] = line, **about: Any,
) -> Dataset:  # fmt: skip
    """Write pictures that depend on their index, with their records, last ones first in the list."""
    for name, count in counts.items():
        (out / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            (out / name / f"{index:06}.png").write_bytes(pictures.png(image(index), told(name, index)))
        write_lines(out / name, [told(name, index) for index in reversed(range(count))])
    write_about(out, {"source": "by hand", "resolution": len(image(0)), "classes": dict(counts), **about})
    return Dataset(out)
