"""A stage: trains, composes, counts and records what a store is missing, and stops in time.

A model is trained once for all K, into a folder beside the store; a training that is cut goes on there. Each cell is
recorded as soon as it is measured: a kill loses one cell in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import polyscore
from polyscore.algebra import Family
from polyscore.devices import best_device
from polyscore.errors import ScoreError
from polyscore.experiments.cells import Cell
from polyscore.experiments.driver import Outcome
from polyscore.experiments.protocol import digest
from polyscore.experiments.store import Store
from polyscore.experiments.worker import Clock, Event, Listener
from polyscore.images import sheets
from polyscore.images.classifier import Classifier, Lessons, load_classifier, train_classifier
from polyscore.images.composing import compose
from polyscore.images.counting import NONE
from polyscore.images.experiment import ImageExperiment
from polyscore.images.export import load
from polyscore.images.measuring import Embed, Yardstick, embedding
from polyscore.images.real import Real
from polyscore.images.recipe import Recipe
from polyscore.images.training import train
from polyscore.notices import warn
from polyscore.rng import derive
from polyscore.rooms import Dataset


@dataclass(frozen=True)
class Learnt:
    """A trained model as cells need it: the family, held-out losses by condition, seconds of training this time."""

    family: Family
    losses: Mapping[str, float]
    seconds: float


@dataclass
class Stage:
    """Where and how experiments are computed.

    Attributes:
        dataset: of rooms, at the experiments' resolution or a multiple of it.
        models: folder for trained models and classifiers.
        seconds: nothing is begun that would outlast this, by the pace seen so far.
        after: called after each experiment, such as to pack what there is.
        learn: trains one model, or reads it; `embed` gives the features. Both can be replaced.
    """

    store: Store
    dataset: Dataset
    models: Path
    device: str | None = None
    seconds: float | None = None
    listener: Listener | None = None
    after: Callable[[], object] | None = None
    learn: Callable[[ImageExperiment, Stage, float | None], Learnt | None] | None = None
    embed: Embed | None = None

    def __post_init__(self) -> None:
        self.device = self.device or best_device()
        self.clock = Clock(time.monotonic(), self.seconds)
        self.yardsticks: dict[tuple[int, Lessons], Yardstick] = {}
        self.computed = 0

    def run(self, experiments: Sequence[ImageExperiment]) -> Outcome:
        """Compute the missing cells of experiments, in their order."""
        with self.store.writing():
            for experiment in experiments:
                missing = self.store.missing(experiment.cells(), experiment.key)
                if missing and not self._one(experiment, missing):
                    break
                if missing and self.after:
                    self.after()
        left = sum(len(self.store.missing(e.cells(), e.key)) for e in experiments)
        return Outcome(self.computed, left, time.monotonic() - self.clock.started)

    def _one(self, experiment: ImageExperiment, missing: Sequence[Cell]) -> bool:
        """Compute cells of one model; False where the time is too short for its training."""
        yardstick = self._yardstick(experiment)
        learnt = self._learnt(experiment)
        if learnt is None:
            return False
        learnt.family.to(self.device, precision=self._precision(experiment), compile=self._on_gpu or None)
        for cell in missing:
            if not self.clock.too_late(_pace(cell, experiment)):
                self._cell(cell, experiment, learnt, yardstick)
        return True

    def _precision(self, experiment: ImageExperiment) -> str:
        return ("fp16" if self._on_gpu else "float32") if experiment.precision == "auto" else experiment.precision

    @property
    def _on_gpu(self) -> bool:
        return str(self.device).startswith("cuda")

    def _learnt(self, experiment: ImageExperiment) -> Learnt | None:
        """The model of an experiment, or None: the time left is too short for its training, or turned out to be."""
        label, began = f"train {experiment.models} {experiment.resolution}", time.monotonic()
        if self.clock.too_late(label):
            return None
        left = None if self.seconds is None else self.seconds - (began - self.clock.started)
        learnt = (self.learn or learnt_by_training)(experiment, self, left)
        if learnt is None:
            warn(f"{experiment.name}: the training must fit into the time limit and was cut. The same command goes on.")
        else:
            self.clock.note(label, time.monotonic() - began)
        return learnt

    def report(self, experiment: ImageExperiment) -> Callable[..., None]:
        """Return what a training calls now and then."""

        def told(step: int, steps: int, loss: float | None = None) -> None:
            self._tell(f"{experiment.name}: training" + ("" if loss is None else f", loss {loss:.4f}"), step, steps)

        return told

    def _cell(self, cell: Cell, experiment: ImageExperiment, learnt: Learnt, yardstick: Yardstick) -> None:
        began, name = time.monotonic(), f"{experiment.name}, {cell.target}, K = {cell.particles}"
        exponents, seed = experiment.targets[cell.target], derive(cell.run, cell.family, cell.models, cell.target)
        try:
            made = compose(learnt.family, exponents, experiment.swarms, particles=cell.particles,
                           steps=experiment.steps, seed=derive(seed, cell.particles), device=self.device)  # fmt: skip
        except ScoreError as error:  # it would fail the same way next time; the others need not wait for it
            warn(f"{name} stays without a result: {error}")
            return
        sampled = time.monotonic() - began
        masses = experiment.masses(cell.target)
        found, verdicts = yardstick.measure(made.images, masses, seed)
        losses = {f"loss {name}": loss for name, loss in learnt.losses.items()}
        results = found | losses | {"ancestors": float(made.ancestors.mean()), "ess": made.ess, "outside": made.outside}
        rounded = {key: float(f"{value:.6g}") for key, value in results.items()}
        words = [(*masses, NONE)[place] for place in verdicts[: sheets.SHOWN]]
        sheets.keep(self.store, cell, experiment.key(cell), made.images, words)
        about = self._about(yardstick.classifier, time.monotonic() - began, sampled, learnt.seconds)
        self.store.add(cell, experiment.protocol_of(cell), rounded, about)
        self.clock.note(_pace(cell, experiment), time.monotonic() - began)
        self.computed += 1
        self._tell(name, self.computed, 0)

    def _about(self, classifier: Classifier, seconds: float, sampled: float, trained: float) -> dict[str, Any]:
        device = torch.cuda.get_device_name() if self._on_gpu else "cpu"
        return {"version": polyscore.__version__, "torch": torch.__version__.split("+")[0], "device": device,
                "seconds": round(seconds, 3), "sampling_seconds": round(sampled, 3),
                "train_seconds": round(trained, 3), "classifier": classifier.digest()}  # fmt: skip

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.listener:
            self.listener(Event(what, done, total))

    def _yardstick(self, experiment: ImageExperiment) -> Yardstick:
        """The classifier of a resolution, trained once, and the real rooms, whose features are found once, too."""
        place = (experiment.resolution, experiment.lessons)
        if place not in self.yardsticks:
            real = Real(self.dataset, experiment.resolution)
            classifier, embed = self._classifier(real, experiment.lessons), self.embed or embedding(self.device)
            self.yardsticks[place] = Yardstick(real, classifier, embed, device=str(self.device))
        return replace(self.yardsticks[place], reference=experiment.reference)

    def _classifier(self, real: Real, lessons: Lessons) -> Classifier:
        known = digest([real.digest, vars(lessons)])
        path = self.models / f"classifier-{real.resolution}-{known}.safetensors"
        if path.exists():
            return load_classifier(path).to(str(self.device))
        images, labels = real.part(held_out=False)
        found = train_classifier(
            images, labels, real.classes, held_out=real.part(held_out=True), lessons=lessons, device=self.device,
            progress=lambda step, steps, loss: self._tell(f"classifier, loss {loss:.3f}", step, steps),
        )  # fmt: skip
        found.save(path)
        return found


def learnt_by_training(experiment: ImageExperiment, stage: Stage, seconds: float | None) -> Learnt | None:
    """Train the model of an experiment, or read it where that is done; None where it does not fit into the seconds."""
    began, folder = time.monotonic(), stage.models / experiment.folder
    trained = train(
        stage.dataset, experiment.mixtures, folder, recipe=Recipe.from_dict(experiment.recipe),
        seed=derive(experiment.run, "images", experiment.setting), device=stage.device,
        minutes=None if seconds is None else max(0.0, seconds) / 60, progress=stage.report(experiment),
    )  # fmt: skip
    if not trained.complete:
        return None
    return Learnt(load(folder, stage.device), trained.held_out, time.monotonic() - began)


def _pace(cell: Cell, experiment: ImageExperiment) -> str:
    return f"K = {cell.particles}, {len(experiment.targets[cell.target])} conditions, {experiment.resolution}"
