"""Making a dataset: rooms rendered side by side, each written in one step; what is there is not rendered again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from polyscore.errors import ArgumentError, is_count, require
from polyscore.experiments.engines.local import Local
from polyscore.files.atomic import check_directory, held, write_bytes
from polyscore.limits import show_bytes
from polyscore.progress import reporting
from polyscore.rng import as_seed
from polyscore.rooms import pictures
from polyscore.rooms.classes import CLASSES
from polyscore.rooms.dataset import Dataset, read_about, require_empty, write_about, write_lines
from polyscore.rooms.drawing import Look, draw
from polyscore.rooms.tracing import require_installed

MOST = 1_000_000
_SMALLEST = 0.5  # bytes a pixel of a PNG, from below


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
    names, look, seed = list(classes or CLASSES), look or Look(), as_seed(seed)
    _check(names, count, workers)
    out = check_directory(out)
    about = _joined(out, {"source": "rendered", "seed": seed, **asdict(look)}, names)
    _require_space(out, len(names) * count, look.resolution)
    require_installed()
    with held(out / "dataset.json"):
        write_about(out, about)
        _sweep(out, names)
        left = _missing(out, names, count)
        with reporting(progress, "rooms") as report:
            _render(out, left, partial(_task, seed, look), workers or cores(), report, len(names) * count)
        _finish(out, about)
    return Dataset(out)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(names: Collection[str], count: int, workers: int | None) -> None:
    for name in names:
        CLASSES[name]
    require(
        is_count(count) and count <= MOST, "count", f"be a whole number from 1 to {MOST}", count, "Ask for fewer rooms."
    )
    require(workers is None or (is_count(workers) and workers <= 1024), "workers", "be from 1 to 1024", workers)


def _require_space(out: Path, rooms: int, resolution: int) -> None:
    """Refuse what cannot fit on the disk before the work starts."""
    place = next(folder for folder in (out, *out.parents) if folder.exists())
    free, needed = shutil.disk_usage(place).free, int(rooms * resolution**2 * _SMALLEST)
    require(needed <= free, f"{rooms} rooms of {resolution} x {resolution}", "fit on the disk",
            f"at least {show_bytes(needed)} needed, {show_bytes(free)} free", "Ask for fewer.")  # fmt: skip


def _joined(out: Path, about: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """What `dataset.json` shall say, with the classes that are there; or why old and new cannot be in one place."""
    old = read_about(out)
    if old is None:
        require_empty(out, "a new dataset")
    for key, value in about.items():
        if old is not None and old.get(key) != value:
            raise ArgumentError(
                f"a dataset that grows must keep its {key}; got {value!r}, it has {old.get(key)!r}. Choose another "
                "place."
            )
    known = dict.fromkeys([*(old or {}).get("classes", {}), *names], 0)
    order = {name: k for k, name in enumerate(CLASSES)}
    return about | {"classes": dict(sorted(known.items(), key=lambda item: order.get(item[0], len(order))))}


def _file(out: Path, name: str, index: int) -> Path:
    return out / name / f"{index:06}.png"


def _sweep(out: Path, names: Collection[str]) -> None:
    """Take away what a process that was killed had begun to write."""
    for name in names:
        for file in (out / name).glob(".[0-9]*-*.png"):
            file.unlink(missing_ok=True)


def _missing(out: Path, names: Collection[str], count: int) -> list[tuple[str, int]]:
    """Rooms that are not there, those of all classes in turn."""
    pairs = ((name, index) for index in range(count) for name in names)
    return [(name, index) for name, index in pairs if pictures.record(_file(out, name, index)) is None]


def _task(seed: int, look: Look, room: tuple[str, int]) -> tuple[str, int, bytes]:
    drawn = draw(seed, *room, look)
    return *room, pictures.png(drawn.image, drawn.to_dict())


def _render(
    out: Path, left: list[tuple[str, int]], task: Callable[[tuple[str, int]], tuple[str, int, bytes]], workers: int,
    progress: Callable[..., None] | None, total: int,
) -> None:  # fmt: skip
    done = total - len(left)
    for name, index, content in Local(max(1, min(workers, len(left)))).map(task, left):
        write_bytes(_file(out, name, index), content)
        done += 1
        if progress is not None:
            progress(done, total)


def _finish(out: Path, about: dict[str, Any]) -> None:
    """Gather the records of all pictures that are there."""
    counts = {}
    for name in about["classes"]:
        files = sorted((out / name).glob("[0-9]*.png"))
        found = ((file.name, pictures.record(file)) for file in files)
        lines = [line | {"file": file} for file, line in found if line is not None]
        write_lines(out / name, lines)
        counts[name] = len(lines)
    write_about(out, about | {"classes": counts})
