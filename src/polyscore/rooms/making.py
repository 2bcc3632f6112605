"""Making a dataset: rooms rendered side by side, each written in one step; what is there is not rendered again."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from polyscore.errors import is_count, require, shorten
from polyscore.experiments.engines.local import Local
from polyscore.files.atomic import write_bytes
from polyscore.progress import reporting
from polyscore.rng import as_seed
from polyscore.rooms import pictures
from polyscore.rooms.classes import CLASSES
from polyscore.rooms.dataset import Dataset
from polyscore.rooms.drawing import Look, draw
from polyscore.rooms.growing import begun, check_count, file_of, grown, is_there, names_of
from polyscore.rooms.tracing import require_installed


def render(
    out: Path | str,
    count: int,
    *,
    classes: Collection[str] | None = None,
    seed: int = 0,
    look: Look | None = None,
    workers: int | None = None,
    progress: Any = None,
) -> Dataset:
    """Render `count` rooms of each class into a folder, or those of them that are missing there.

    Args:
        out: a new or empty folder, or a dataset of the same seed and look, which grows.
        count: rooms of each class, at most a million.
        classes: names in `CLASSES`; all of them by default.
        seed: a room is a function of (seed, class, index) and the look.
        workers: processes; as many as there are cores by default.
        progress: called with (rooms done, rooms in all); None and True mean a bar where one can be seen.
    """
    names, look, seed = names_of(classes, CLASSES), Look() if look is None else look, as_seed(seed)
    _check(names, count, look, workers)
    out, about = begun(out, {"source": "rendered", "seed": seed, **asdict(look)}, names, count)
    require_installed()
    with grown(out, about, names), reporting(progress, "rooms") as report:
        left = _missing(out, names, count, look.resolution)
        _render(out, left, partial(_task, seed, look), workers or cores(), report, len(names) * count)
    return Dataset(out)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(names: Collection[str], count: int, look: Look, workers: int | None) -> None:
    check_count(names, count)
    require(isinstance(look, Look), "look", "be a Look", shorten(look), "Write look=Look(64).")
    require(workers is None or (is_count(workers) and workers <= 1024), "workers", "be from 1 to 1024", workers,
            "Leave it out for one a core.")  # fmt: skip


def _missing(out: Path, names: Collection[str], count: int, side: int) -> list[tuple[str, int]]:
    """Rooms that are not there, those of all classes in turn."""
    pairs = ((name, index) for index in range(count) for name in names)
    return [(name, index) for name, index in pairs if not is_there(out, name, index, side)]


def _task(seed: int, look: Look, room: tuple[str, int]) -> tuple[str, int, bytes]:
    drawn = draw(seed, *room, look)
    return *room, pictures.png(drawn.image, drawn.to_dict())


def _render(
    out: Path, left: list[tuple[str, int]], task: Callable[[tuple[str, int]], tuple[str, int, bytes]], workers: int,
    progress: Callable[..., None] | None, total: int,
) -> None:  # fmt: skip
    done = total - len(left)
    for name, index, content in Local(max(1, min(workers, len(left)))).map(task, left):
        write_bytes(file_of(out, name, index), content)
        done += 1
        if progress is not None:
            progress(done, total)
