"""The runner: computes the cells that a store is missing, and nothing else.

Models of one setting train together; each cell is stored as soon as it is measured, so a kill loses one cell in flight
(and the models, which train again). The runner stops by itself before a time limit. A cell whose scores overflow, or a
model whose loss diverges, is named in a warning and stays missing; the others go on.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from polyscore.algebra import Family
from polyscore.errors import DegeneracyWarning, ScoreError
from polyscore.experiments.cells import ANALYTIC, Cell, Experiment, Protocol
from polyscore.experiments.compute import Model, compute, model_of, train
from polyscore.experiments.samples import save
from polyscore.experiments.store import Store
from polyscore.training import DivergenceError

# Networks trained as one program: more do not train faster, and each holds 13 MB with Adam's moments.
MOST_NETWORKS = 90


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
    save_samples: bool = False,
    listener: Listener | None = None,
) -> Outcome:
    """Compute the missing cells of `experiments` in this process, one batch after the other.

    Args:
        seconds: stop in time: no training or cell is begun that would outlast this by the pace seen so far, and a
            training that turns out so is abandoned.
        save_samples: keep a few points of every cell of run 0, for pictures.
        listener: called after every cell and now and then while training.
    """
    with store.writing():
        before, total = len(store.records), missing_cells(experiments, store)
        worker = Worker(store, device, seconds, save_samples, listener, total)
        for batch in batches(experiments, store):
            # A training that does not fit leaves time for what does.
            if not worker.compute(batch) and worker.clock.is_late(time.monotonic()):
                break
    left = missing_cells(experiments, store)
    return Outcome(len(store.records) - before, left, time.monotonic() - worker.clock.started)


def missing_cells(experiments: Sequence[Experiment], store: Store) -> int:
    """Return how many cells of the experiments have no record; a cell that two share counts once."""
    return len({cell.key(e.protocol) for e in experiments for cell in store.missing(e.cells(), e.protocol)})


class Worker:
    """Computes batches into a store, until a time limit.

    Args:
        device: of torch; None is the GPU where there is one.
        total: cells in all, for the listener.

    Attributes:
        families: the models of the last batch.
    """

    def __init__(
        self,
        store: Store,
        device: str | None = None,
        seconds: float | None = None,
        save_samples: bool = False,
        listener: Listener | None = None,
        total: int = 0,
    ) -> None:
        self.store, self.save_samples, self.total = store, save_samples, total
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.clock = _Clock(time.monotonic(), seconds)
        self.tell: Listener = listener or (lambda event: None)
        self.computed = 0
        self.families: dict[Model, Family] = {}

    def compute(self, batch: Batch) -> bool:
        """Train the batch's models and store its cells; False when the time is too short for its training."""
        began = time.monotonic()
        families = _train(batch, self.device, self.clock, self.tell)
        if families is None:
            return False
        self.families = families
        cells = [cell for cell in batch.cells if model_of(cell) in families]
        share = (time.monotonic() - began) / max(1, len(cells))
        for cell in cells:
            if not self.clock.too_late(_pace(cell)):
                self._cell(cell, families[model_of(cell)], batch.protocol, share)
        return True

    def _cell(self, cell: Cell, family: Family, protocol: Protocol, train_seconds: float) -> None:
        began = time.monotonic()
        keep = partial(save, self.store, cell, protocol) if self.save_samples and cell.run == 0 else None
        what = f"{cell.setting}, {cell.models}, N = {cell.train_size}, {_pace(cell)}"
        try:
            results, about = compute(cell, family, protocol, self.device, keep)
        except ScoreError as error:  # it would fail the same way next time; the others need not wait for it
            _warn(f"{what}, run {cell.run} stays without a result: {error}")
            return
        self.store.add(cell, protocol, results, {**about, "train_seconds": round(train_seconds, 3)})
        self.clock.note(_pace(cell), time.monotonic() - began)
        self.computed += 1
        self.tell(Event(what, self.computed, self.total))


def _pace(cell: Cell) -> str:
    return f"K = {cell.particles}"


@dataclass(frozen=True)
class Batch:
    """Cells whose models train together."""

    cells: list[Cell]
    protocol: Protocol

    @property
    def models(self) -> list[Model]:
        """The models needed, each once."""
        return list(dict.fromkeys(model_of(cell) for cell in self.cells))


def batches(experiments: Sequence[Experiment], store: Store, networks: int = MOST_NETWORKS) -> Iterator[Batch]:
    """Yield batches of missing cells: each of one setting and kind of model, of as many runs as train together.

    Args:
        networks: trained together at most, unless one run alone needs more; fewer give more, smaller batches.
    """
    taken: set[str] = set()
    for experiment in experiments:
        missing = store.missing(experiment.cells(), experiment.protocol)
        # Conditional and separate experiments of a setting share their analytic cells.
        missing = [cell for cell in missing if cell.key(experiment.protocol) not in taken]
        taken.update(cell.key(experiment.protocol) for cell in missing)
        for kind in dict.fromkeys((ANALYTIC, experiment.models)):
            cells = [cell for cell in missing if cell.models == kind]
            yield from _split(cells, experiment.protocol, networks)


def _split(cells: list[Cell], protocol: Protocol, networks: int) -> Iterator[Batch]:
    """Cut cells of one kind by runs."""
    runs = sorted({cell.run for cell in cells})
    per_run = max(1, len({cell.train_size for cell in cells})) * (3 if cells and cells[0].models == "separate" else 1)
    at_once = max(1, networks // per_run)
    for first in range(0, len(runs), at_once):
        chosen = set(runs[first : first + at_once])
        yield Batch([cell for cell in cells if cell.run in chosen], protocol)


def _train(batch: Batch, device: str, clock: _Clock, tell: Listener) -> dict[Model, Family] | None:
    """Train a batch's models, or None: the time left is too short, or turns out to be.

    Models that diverge are left out and the others train again: a family does not depend on who shares its program.
    """
    models, kind = batch.models, batch.cells[0].models
    while True:
        label = f"train {kind} x {len(models)}"
        if kind != ANALYTIC and clock.too_late(label):
            return None
        began = time.monotonic()
        try:
            families = train(models, batch.protocol, device, _reporter(batch.cells[0].setting, label, clock, tell))
        except _TooLateError:
            _warn(f"{batch.cells[0].setting}, {kind}: training {len(models)} models must fit into the time limit and "
                  "was given up. Allow more seconds, or fewer networks together.")  # fmt: skip
            return None
        except DivergenceError as error:
            for name, _, size, run in (models[index] for index in error.datasets):
                _warn(f"{name}, {kind}, N = {size}, run {run} stays without results: the loss must not diverge, and "
                      "did. Lower learning_rate.")  # fmt: skip
            models = [model for index, model in enumerate(models) if index not in error.datasets]
            continue
        if kind != ANALYTIC:
            clock.note(label, time.monotonic() - began)
        return families


def _warn(message: str) -> None:
    warnings.warn(message, DegeneracyWarning, stacklevel=5)


def _reporter(setting: str, label: str, clock: _Clock, tell: Listener) -> Callable[[int, int, float], None]:
    """Return what a training calls now and then: it tells the listener, and gives up what would come too late."""
    began = time.monotonic()

    def report(step: int, steps: int, loss: float) -> None:
        tell(Event(f"{setting}: {label}, loss {loss:.3f}", step, steps))
        # The first steps compile and warm up, so a forecast waits for a tenth of them.
        if clock.is_late(began + (time.monotonic() - began) * (steps / step if 10 * step >= steps else 1)):
            raise _TooLateError

    return report


class _Clock:
    """Knows how long things took, and so whether one more fits."""

    def __init__(self, started: float, seconds: float | None) -> None:
        self.started, self.seconds, self.paces = started, seconds, dict[str, float]()

    def note(self, label: str, seconds: float) -> None:
        self.paces[label] = max(seconds, 0.5 * self.paces.get(label, 0.0))

    def too_late(self, label: str) -> bool:
        return self.is_late(time.monotonic() + 1.2 * self.paces.get(label, 0.0))

    def is_late(self, moment: float) -> bool:
        """Whether a moment of the monotonic clock is past the limit."""
        return self.seconds is not None and moment - self.started > self.seconds


class _TooLateError(Exception):
    """A training would outlast the limit."""
