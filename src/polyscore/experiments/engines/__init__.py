"""Engines: who computes. One small interface, `map(task, items)`, yields results as they are done, in any order.

`Local` is this process or a pool of processes; `OnRay` a Ray cluster; `OnSlurm` SLURM arrays through submitit. All of
them start a task again when its worker dies; a task must therefore pick up what it left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from polyscore.errors import PolyscoreError, require

Item = TypeVar("Item")
Result = TypeVar("Result")
RETRIES = 2
NAMES = ("local", "ray", "submitit")


class EngineError(PolyscoreError):
    """A cluster that does not answer, lacks what was asked for, or loses the same task again and again."""


class Engine(Protocol):
    """Runs a task on many items."""

    workers: int

    def map(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `task(item)` of every item as it is done, in any order."""
        ...


def engine(name: str, **options: Any) -> Engine:
    """Return an engine by name: "local", "ray" or "submitit"; options that are None are left at their default."""
    given = {key: value for key, value in options.items() if value is not None}
    require(name in NAMES, "an engine", f"be one of {', '.join(NAMES)}", repr(name), "Leave it out for local.")
    if name == "ray":
        from polyscore.experiments.engines.on_ray import OnRay

        return OnRay(**given)
    if name == "submitit":
        from polyscore.experiments.engines.on_slurm import OnSlurm

        return OnSlurm(**given)
    from polyscore.experiments.engines.local import Local

    return Local(**given)


def needs(package: str) -> EngineError:
    """Return the error for an engine whose package is not installed."""
    return EngineError(f"this engine must find {package}; it is not installed. pip install 'polyscore[cluster]'")
