"""The runner: computes the cells that a store is missing, and nothing else.

Models of one setting train together; each cell is stored as soon as it is measured, so a kill loses one cell in flight
(and the models, which train again). The runner stops by itself before a time limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from polyscore.algebra import Family
from polyscore.experiments.cells import ANALYTIC, Cell, Experiment, Protocol
from polyscore.experiments.compute import Model, compute, model_of, train
from polyscore.experiments.store import Store

# Networks trained as one program: more do not train faster, and each holds 13 MB with Adam's moments.
_MOST_NETWORKS = 90


@dataclass(frozen=True)
class Event:
    """Something to show: what is being done, how far it is."""

    what: str
    done: int
    total: int


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Outcome:
    """What a run of the runner achieved."""

    computed: int
    missing: int
    seconds: float


def run(
    experiments: Sequence[Experiment],
    store: Store,
    *,
    device: str | None = None,
    seconds: float | None = None,
    listener: Listener | None = None,
) -> Outcome:
    """Compute the missing cells of `experiments`, cheap particle counts of all before dear ones of any.

    Args:
        seconds: stop in time: no training or cell is begun that would outlast this by the pace seen so far.
        listener: called after every cell and now and then while training.
    """
    started = time.monotonic()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    clock = _Clock(started, seconds)
    tell = listener or (lambda event: None)
    computed = 0
    with store.writing():
        total = sum(len(store.missing(e.cells(), e.protocol)) for e in experiments)
        for batch in batches(experiments, store):
            families = _train(batch, device, clock, tell)
            if families is None:
                break
            for cell in batch.cells:
                pace = f"K = {cell.particles}"
                if clock.too_late(pace):
                    continue
                began = time.monotonic()
                results, about = compute(cell, families[model_of(cell)], batch.protocol, device)
                store.add(cell, batch.protocol, results, about)
                clock.note(pace, time.monotonic() - began)
                computed += 1
                tell(Event(f"{cell.setting}, {cell.models}, N = {cell.train_size}, {pace}", computed, total))
    left = sum(len(store.missing(e.cells(), e.protocol)) for e in experiments)
    return Outcome(computed, left, time.monotonic() - started)


@dataclass(frozen=True)
class Batch:
    """Cells whose models train together."""

    cells: list[Cell]
    protocol: Protocol

    @property
    def models(self) -> list[Model]:
        """The models needed, each once."""
        return list(dict.fromkeys(model_of(cell) for cell in self.cells))


def batches(experiments: Sequence[Experiment], store: Store) -> Iterator[Batch]:
    """Yield batches of missing cells: each of one setting and kind of model, of as many runs as train together."""
    for experiment in experiments:
        missing = store.missing(experiment.cells(), experiment.protocol)
        for kind in (ANALYTIC, experiment.models):
            cells = [cell for cell in missing if cell.models == kind]
            runs = sorted({cell.run for cell in cells})
            per_run = max(1, len({cell.train_size for cell in cells})) * (3 if kind == "separate" else 1)
            at_once = max(1, _MOST_NETWORKS // per_run) if kind != ANALYTIC else max(1, len(runs))
            for first in range(0, len(runs), at_once):
                chosen = set(runs[first : first + at_once])
                yield Batch([cell for cell in cells if cell.run in chosen], experiment.protocol)


def _train(batch: Batch, device: str, clock: _Clock, tell: Listener) -> dict[Model, Family] | None:
    """Train a batch's models, unless the time left is too short."""
    kind = batch.cells[0].models
    label = f"train {kind} x {len(batch.models)}"
    if kind != ANALYTIC and clock.too_late(label):
        return None
    began = time.monotonic()

    def report(step: int, steps: int, loss: float) -> None:
        tell(Event(f"{batch.cells[0].setting}: {label}, loss {loss:.3f}", step, steps))

    families = train(batch.models, batch.protocol, device, report)
    if kind != ANALYTIC:
        clock.note(label, time.monotonic() - began)
    return families


class _Clock:
    """Knows how long things took, and so whether one more fits."""

    def __init__(self, started: float, seconds: float | None) -> None:
        self.started, self.seconds, self.paces = started, seconds, dict[str, float]()

    def note(self, label: str, seconds: float) -> None:
        self.paces[label] = max(seconds, 0.5 * self.paces.get(label, 0.0))

    def too_late(self, label: str) -> bool:
        if self.seconds is None:
            return False
        return time.monotonic() - self.started + 1.2 * self.paces.get(label, 0.0) > self.seconds
