"""Rooms a second at 64 x 64 and 256 x 256 on this machine, and where the time of one goes.

    python benchmarks/rooms.py [workers]

Other work on the machine slows the first table down; the second counts this process's own seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from polyscore import rooms
from polyscore.rooms import drawing, tracing
from polyscore.rooms.making import cores

ROOMS = {64: 8, 256: 1}  # of each class
STAGES = ((drawing, "compose"), (drawing, "as_mitsuba"), (drawing, "layers"), (drawing, "trace"), (drawing, "denoise"))


def throughput(resolution: int, workers: int) -> float:
    """Rooms a second, without the start of the processes: what a longer run adds to a short one."""
    seconds = []
    for count in (1, 1 + ROOMS[resolution]):
        with tempfile.TemporaryDirectory() as out:
            began = time.monotonic()
            rooms.render(out, count, look=rooms.Look(resolution), workers=workers)
            seconds.append(time.monotonic() - began)
    return len(rooms.CLASSES) * ROOMS[resolution] / (seconds[1] - seconds[0])


def stages(resolution: int, count: int) -> dict[str, float]:
    """Processor seconds that one room spends in each stage."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **options)
            finally:
                spent[name] += time.process_time() - began

        return run

    drawing.draw(1, "couch", 0, rooms.Look(resolution))  # loads what is loaded once
    for module, name in STAGES:
        setattr(module, name, timed(name, getattr(module, name)))
    began = time.process_time()
    for index in range(count):
        drawing.draw(0, [*rooms.CLASSES][index % 6], index, rooms.Look(resolution))
    spent["all"] = time.process_time() - began
    return {name: seconds / count for name, seconds in spent.items()}


def main() -> None:
    tracing.require_installed()
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else cores()
    print(f"{cores()} cores, {workers} workers, load {os.getloadavg()[0]:.1f} before the start")
    for resolution in ROOMS:
        print(f"{resolution:4} x {resolution}: {throughput(resolution, workers):.2f} rooms a second", flush=True)
    for resolution, count in ((64, 12), (256, 3)):
        spent = stages(resolution, count)
        print(f"{resolution:4} x {resolution}: " + ", ".join(f"{name} {1000 * s:.0f} ms" for name, s in spent.items()))
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
