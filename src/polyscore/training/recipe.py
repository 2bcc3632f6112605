"""What decides the result of a training, in one place, every field with its domain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyscore.errors import require
from polyscore.nn import NETWORKS, Architecture
from polyscore.nn.mlp import ACTIVATIONS
from polyscore.schedules import VP, Schedule, from_dict
from polyscore.schema import Checked, Domain, choice, count, flag, instance, number, optional, setting

MODELS = ("conditional", "separate")
_SCHEDULE = instance(Schedule, "be a Schedule, such as ps.VP()")
_BEND = Domain('be "auto", True or False', lambda value: isinstance(value, bool) or value == "auto")
_OPTIONS = Domain("be a mapping", lambda value: isinstance(value, Mapping), dict)

# Fields that came after 0.3.0: left out of a description at what it did, so that its checkpoints go on.
_LATER: dict[str, Any] = {"kind": "vanilla", "options": {}, "bend": False}
# What a kind of network does not suggest otherwise.
_SIZES: dict[str, Any] = {"steps": 20_000, "width": 512, "depth": 4, "learning_rate": 2e-4, "bend": False}


@dataclass(frozen=True)
class Recipe(Checked):
    """A training recipe.

    Attributes:
        model: "conditional" (one network told the condition) or "separate" (one network a condition).
        steps: optimiser steps; like the next three, what the kind suggests unless it is given: 20,000 of 4 x 512 at
            2e-4 for "vanilla", 10,000 of 3 x 256 at 5e-4 for "structured". "mixture" trains nothing, and heeds none.
        batch: points per step and network; a conditional network takes batch // A of each of its A conditions.
        learning_rate: of Adam, constant.
        width, depth: of the network.
        activation: of the network.
        schedule: noise schedule.
        standardise: train on (x - mean) / std of all conditions together, the default; what comes out is in the
            data's own units all the same.
        ema: decay of an exponential average of the weights, which then is the result; None keeps the last weights.
            Short trainings average over all their steps: the random start has no share.
        kind: of network, a name in `polyscore.nn.NETWORKS`: "structured" (a mixture, and a network for what it leaves),
            "mixture" (alone), "vanilla" (a network alone).
        options: of that kind.
        bend: skewed columns by a power that all conditions share, which makes them more Gaussian: "auto" where mixtures
            are decidedly better for it, what kinds with a mixture do; True where Gaussians are; False never, what
            others do. What comes out is in the data's own units all the same.
    """

    model: str = setting("conditional", choice(MODELS))
    steps: int = setting(None, count(1, 10**9))
    batch: int = setting(512, count())
    learning_rate: float = setting(None, number(0, 1e300, ends=False))
    width: int = setting(None, count())
    depth: int = setting(None, count())
    activation: str = setting("silu", choice(ACTIVATIONS))
    schedule: Schedule = field(default_factory=VP, metadata={"domain": _SCHEDULE})
    standardise: bool = setting(True, flag())
    ema: float | None = setting(None, optional(number(0, 1, ends=False)))
    kind: str = setting("structured", choice(NETWORKS))
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"domain": _OPTIONS}, hash=False)
    bend: bool | str = setting(None, _BEND)

    def __post_init__(self) -> None:
        known = isinstance(self.kind, str) and self.kind in NETWORKS
        for name, value in {**_SIZES, **(NETWORKS[self.kind].suggested if known else {})}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        require(self.standardise or self.bend is not True, "bend=True", "come with standardise=True", self.standardise,
                "Leave either out.")  # fmt: skip
        own = self._own_options()
        object.__setattr__(self, "options", {name: getattr(own, name) for name in self.options})  # Python's numbers

    def _own_options(self) -> Checked:
        return NETWORKS[self.kind].Options.parse(self.options, f"options of {self.kind!r}")

    @property
    def separate(self) -> bool:
        """Whether every condition has a network of its own."""
        return self.model == "separate"

    def architecture(self, dim: int, conditions: int) -> Architecture:
        """Return that of one network, for points of this dimension and that many conditions in all."""
        return Architecture(
            self.kind, dim, 1 if self.separate else conditions, not self.separate, self.schedule, self.width,
            self.depth, self.activation, self._own_options(),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        kept = {name: value for name, value in plain.items() if name not in _LATER or value != _LATER[name]}
        return {**kept, "schedule": self.schedule.to_dict()}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Recipe:
        """Return the recipe that `to_dict` described."""
        return cls(**{**_LATER, **description, "schedule": from_dict(description["schedule"])})

    @classmethod
    def domains(cls) -> dict[str, Domain]:
        """Return what each field may hold, for others that hold the same."""
        return {f.name: f.metadata["domain"] for f in dataclasses.fields(cls)}
