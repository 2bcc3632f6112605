"""The worker: computes batches of cells into a store, until a time limit.

Models of one family train together; each cell is stored as soon as it is measured, so a kill loses one cell in flight
(and the models, which train again). A cell whose scores overflow, or a model whose loss diverges, is named in a warning
and stays missing; the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from polyscore.algebra import Family
from polyscore.devices import best_device
from polyscore.errors import ScoreError
from polyscore.experiments.cells import ANALYTIC, Cell
from polyscore.experiments.compute import Model, compute, model_of, train
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.protocol import digest
from polyscore.experiments.store import Store
from polyscore.experiments.thumbnails import keep_points
from polyscore.notices import warn
from polyscore.training import DivergenceError

_OF_TRAINING = ("train_steps", "batch", "learning_rate", "width", "depth", "first_seed", "activation", "standardise",
                "ema")  # fmt: skip


@dataclass(frozen=True)
class Event:
    """Something to show: what is being done, how far it is."""

    what: str
    done: int
    total: int


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Batch:
    """Cells of one experiment and kind of model, whose models train together."""

    cells: list[Cell]
    experiment: Experiment

    @property
    def models(self) -> list[Model]:
        """The models needed, each once."""
        return list(dict.fromkeys(model_of(cell) for cell in self.cells))

    @property
    def kind(self) -> str:
        """The kind of all its models."""
        return self.cells[0].models

    @property
    def training(self) -> str:
        """A hash of what decides its models, coordinates apart: batches that share it share their models."""
        e = self.experiment
        fields = {name: getattr(e.protocol, name) for name in _OF_TRAINING}
        return digest([e.source.content, dict(e.networks.get(self.kind, {})), fields])


class Worker:
    """Computes batches into a store, until a time limit.

    Args:
        device: of torch; None is the GPU where there is one.
        total: cells in all, for the listener.

    Attributes:
        families: the models that were trained last: protocols that differ in sampling alone share them.
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
        self.device = device or best_device()
        self.clock = Clock(time.monotonic(), seconds)
        self.tell: Listener = listener or (lambda event: None)
        self.computed = 0
        self.families: dict[tuple[str, Model], Family] = {}

    def compute(self, batch: Batch) -> bool:
        """Train the batch's models and store its cells; False when the time is too short for its training."""
        began = time.monotonic()
        families = self._models(batch)
        if families is None:
            return False
        cells = [cell for cell in batch.cells if model_of(cell) in families]
        share = (time.monotonic() - began) / max(1, len(cells))
        for cell in cells:
            if not self.clock.too_late(_pace(cell)):
                self._cell(cell, families[model_of(cell)], batch.experiment, share)
        return True

    def _models(self, batch: Batch) -> dict[Model, Family] | None:
        """The batch's models: those of the last training where it has them all, else trained now."""
        named = {model: (batch.training, model) for model in batch.models}
        if all(name in self.families for name in named.values()):
            return {model: self.families[name] for model, name in named.items()}
        trained = _train(batch, self.device, self.clock, self.tell)
        if trained and batch.kind != ANALYTIC:
            self.families = {named[model]: family for model, family in trained.items()}
        return trained

    def _cell(self, cell: Cell, family: Family, experiment: Experiment, train_seconds: float) -> None:
        began = time.monotonic()
        protocol = experiment.protocol_of(cell)
        keep = partial(keep_points, self.store, cell, protocol) if self.save_samples and cell.run == 0 else None
        what = f"{cell.family}, {cell.models}, N = {cell.train_size}, {_pace(cell)}"
        try:
            results, about = compute(cell, family, experiment, self.device, keep)
        except ScoreError as error:  # it would fail the same way next time; the others need not wait for it
            warn(f"{what}, run {cell.run} stays without a result: {error}")
            return
        self.store.add(cell, protocol, results, {**about, "train_seconds": round(train_seconds, 3)})
        self.clock.note(_pace(cell), time.monotonic() - began)
        self.computed += 1
        self.tell(Event(what, self.computed, self.total))


def _pace(cell: Cell) -> str:
    return f"{cell.sampler}, K = {cell.particles}" if cell.sampler else f"K = {cell.particles}"


def _train(batch: Batch, device: str, clock: Clock, tell: Listener) -> dict[Model, Family] | None:
    """Train a batch's models, or None: the time left is too short, or turns out to be.

    Models that diverge are left out and the others train again: a family does not depend on who shares its program.
    """
    models, kind, name = batch.models, batch.kind, batch.experiment.family
    while True:
        label = f"train {kind} x {len(models)}"
        if kind != ANALYTIC and clock.too_late(label):
            return None
        began = time.monotonic()
        try:
            families = train(models, batch.experiment, device, _reporter(name, label, clock, tell))
        except _TooLateError:
            warn(f"{name}, {kind}: training {len(models)} models must fit into the time limit and "
                 "was given up. Allow more seconds, or fewer networks together.")  # fmt: skip
            return None
        except DivergenceError as error:
            _tell_of_divergence([models[index] for index in error.datasets])
            models = [model for index, model in enumerate(models) if index not in error.datasets]
            continue
        if kind != ANALYTIC:
            clock.note(label, time.monotonic() - began)
        return families


def _tell_of_divergence(models: list[Model]) -> None:
    for name, kind, size, run in models:
        warn(f"{name}, {kind}, N = {size}, run {run} stays without results: the loss must not diverge, and "
             "did. Lower learning_rate.")  # fmt: skip


def _reporter(family: str, label: str, clock: Clock, tell: Listener) -> Callable[[int, int, float], None]:
    """Return what a training calls now and then: it tells the listener, and gives up what would come too late."""
    began = time.monotonic()

    def report(step: int, steps: int, loss: float) -> None:
        tell(Event(f"{family}: {label}, loss {loss:.3f}", step, steps))
        # The first steps compile and warm up, so a forecast waits for a tenth of them.
        if clock.is_late(began + (time.monotonic() - began) * (steps / step if 10 * step >= steps else 1)):
            raise _TooLateError

    return report


class Clock:
    """Knows how long things took, and so whether one more fits."""

    def __init__(self, started: float, seconds: float | None) -> None:
        self.started, self.seconds, self.paces = started, seconds, dict[str, float]()

    def note(self, label: str, seconds: float) -> None:
        """Remember how long something took."""
        self.paces[label] = max(seconds, 0.5 * self.paces.get(label, 0.0))

    def too_late(self, label: str) -> bool:
        """Whether something begun now would outlast the limit."""
        return self.is_late(time.monotonic() + 1.2 * self.paces.get(label, 0.0))

    def is_late(self, moment: float) -> bool:
        """Whether a moment of the monotonic clock is past the limit."""
        return self.seconds is not None and moment - self.started > self.seconds


class _TooLateError(Exception):
    """A training would outlast the limit."""
