"""An experiment on images: a model of some mixtures, a composition of them, counted for several K.

Its cells are those of any experiment, under keys that hash all that changes a result; a store, its locks, its merging
and its checks serve them as they are. What is not shared is the worker of experiments/: that one fits many small
networks to points at once and compares points, where here one long training, resumable and kept on disk, serves all K
of a setting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from polyscore.errors import require, shorten
from polyscore.experiments.cells import COMPOSITION, Cell, is_name, target_name
from polyscore.experiments.protocol import Protocol, digest
from polyscore.images.classifier import Lessons
from polyscore.images.mixtures import Mixtures
from polyscore.images.recipe import MODELS
from polyscore.schema import Checked, Domain, choice, count, each, flag, instance
from polyscore.schema import setting as checked

PRECISIONS = ("auto", "fp16", "bf16", "tf32", "float32")
SAMPLER, METRICS = "ancestral", ("tv", "frechet", "kernel")
VERSION = 2  # raise it when a change of the code changes results: old records are then no longer found
_name = Domain("be of letters, digits, _ . and -, at most 100 characters long", is_name)
_suffix = Domain("be empty or a name", lambda value: value == "" or is_name(value))


@dataclass(frozen=True)
class ImageExperiment(Checked):
    """What to train, compose and count.

    Attributes:
        setting: its name, a coordinate of the cells.
        mixtures: conditions as mixtures of classes.
        exponents: of the conditions in the composition.
        models: "conditional" or "separate".
        variant: what sets this training apart from others of its setting and kind, part of the cells' `models`.
        resolution: pixels a side.
        recipe: of the training, JSON-ready and whole, so that no default decides a stored result.
        rooms: a hash of the data.
        train_size: rooms of each class.
        particles: K, a cell each.
        conditions_alone: also sample every condition by itself.
        swarms, steps: images of a cell, and sampling steps.
        reference: real rooms that images are compared with.
        precision: of sampling; "auto" is fp16 on a GPU, float32 on a CPU.
        lessons: how the classifier is trained.
        run: its seed decides weights, batches and noise.
    """

    setting: str = field(metadata={"domain": _name})
    mixtures: Mixtures = field(metadata={"domain": instance(Mixtures, "be Mixtures")})
    exponents: Mapping[str, float]
    resolution: int = field(metadata={"domain": count(8, 2048)})
    recipe: Mapping[str, Any]
    rooms: str
    train_size: int = field(metadata={"domain": count(2)})
    models: str = checked("conditional", choice(MODELS))
    variant: str = checked("", _suffix)
    particles: tuple[int, ...] = checked((1, 4, 16), each(count(1, 100_000), 1))
    conditions_alone: bool = checked(True, flag())
    swarms: int = checked(256, count(2, 10**6))
    steps: int = checked(100, count(1, 10_000))
    reference: int = checked(1024, count(16, 10**6))
    precision: str = checked("auto", choice(PRECISIONS))
    lessons: Lessons = field(default_factory=Lessons, metadata={"domain": instance(Lessons, "be Lessons")})
    run: int = checked(0, count(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.exponents if name not in self.mixtures.conditions]
        require(not unknown, "exponents", "name conditions of the mixtures", shorten(unknown),
                "Name conditions that the mixtures define.")  # fmt: skip
        require(is_name(self.kind), "models and variant", "be a short name together", self.kind,
                "Use letters, digits and dashes, few of them.")  # fmt: skip
        for target in self.targets:
            self.masses(target)

    @property
    def kind(self) -> str:
        """Models and variant, as cells name them."""
        return f"{self.models}-{self.variant}" if self.variant else self.models

    @property
    def name(self) -> str:
        """Setting, kind and resolution."""
        return f"{self.setting}-{self.kind}-{self.resolution}"

    @cached_property
    def targets(self) -> dict[str, dict[str, float]]:
        """What is sampled, by the name that cells have for it: exponents."""
        alone = self.mixtures.conditions if self.conditions_alone else ()
        return {COMPOSITION: dict(self.exponents)} | {target_name(name): {name: 1.0} for name in alone}

    def masses(self, target: str = COMPOSITION) -> dict[str, float]:
        """Return the exact class masses of a target."""
        return self.mixtures.masses(self.targets[target])

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, what costs least first."""
        alone = [(1, target) for target in self.targets if target != COMPOSITION]
        composed = itertools.product(sorted(self.particles), [COMPOSITION])
        for particles, target in sorted([*composed, *alone], key=lambda place: place[0]):
            yield Cell(self.setting, self.kind, self.train_size, self.run, particles, target, SAMPLER, METRICS)

    @property
    def training(self) -> dict[str, Any]:
        """All that decides the trained model, JSON-ready."""
        return {"mixtures": self.mixtures.to_dict(), "models": self.models, "recipe": dict(self.recipe),
                "resolution": self.resolution, "rooms": self.rooms, "run": self.run}  # fmt: skip

    def protocol_of(self, cell: Cell) -> Protocol:
        """Return the protocol of a cell: its swarms and steps, and everything else as content."""
        content = self.training | {
            "version": VERSION, "setting": self.setting, "variant": self.variant, "reference": self.reference,
            "lessons": vars(self.lessons),
            "exponents": self.targets[cell.target],
        }  # fmt: skip
        return Protocol(swarms=self.swarms, steps=self.steps, precision=self.precision, content={"images": content})

    def key(self, cell: Cell) -> str:
        """Return the key of a cell in a store."""
        return cell.key(self.protocol_of(cell))

    @property
    def folder(self) -> str:
        """The name of the folder that holds the trained model."""
        return f"{self.name}-{digest(self.training)}"
