"""What decides the result of a training, in one place; the defaults are the paper's, on standardised data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from polyscore.errors import is_count, is_number, require
from polyscore.nn.mlp import ACTIVATIONS
from polyscore.schedules import VP, Schedule, from_dict

MODELS = ("conditional", "separate")


@dataclass(frozen=True)
class Recipe:
    """A training recipe.

    Attributes:
        model: "conditional" (one network told the condition) or "separate" (one network a condition).
        steps: optimiser steps.
        batch: points per step and network; a conditional network takes batch // A of each of its A conditions.
        learning_rate: of Adam, constant.
        width, depth, activation: of the network.
        schedule: noise schedule.
        standardise: train on (x - mean) / std of all conditions together, the default; what comes out is in the
            data's own units all the same.
        ema: decay of an exponential average of the weights, which then is the result; None keeps the last weights.
            Short trainings average over all their steps: the random start has no share.
    """

    model: str = "conditional"
    steps: int = 20_000
    batch: int = 512
    learning_rate: float = 2e-4
    width: int = 512
    depth: int = 4
    activation: str = "silu"
    schedule: Schedule = field(default_factory=VP)
    standardise: bool = True
    ema: float | None = None

    def __post_init__(self) -> None:
        require(self.model in MODELS, "model", f"be one of {', '.join(MODELS)}", repr(self.model))
        known = isinstance(self.activation, str) and self.activation in ACTIVATIONS
        require(known, "activation", f"be one of {', '.join(ACTIVATIONS)}", repr(self.activation)[:100])
        for name in ("steps", "batch", "width", "depth"):
            value: int = getattr(self, name)
            require(is_count(value), name, "be a whole number of at least 1", repr(value))
            object.__setattr__(self, name, int(value))
        require(isinstance(self.schedule, Schedule), "schedule", "be a Schedule, such as ps.VP()", repr(self.schedule))
        rate, ema = self.learning_rate, self.ema
        require(is_number(rate) and 0 < rate < 1e300, "learning_rate", "be positive, and below 10^300", rate)
        require(
            ema is None or (is_number(ema) and 0 < ema < 1), "ema", "be a decay in (0, 1), or None", repr(ema)[:100]
        )
        require(isinstance(self.standardise, (bool, np.bool_)), "standardise", "be True or False",
                repr(self.standardise)[:100])  # fmt: skip
        # NumPy's numbers are welcome, but files hold Python's.
        object.__setattr__(self, "learning_rate", float(self.learning_rate))
        object.__setattr__(self, "standardise", bool(self.standardise))
        object.__setattr__(self, "ema", None if self.ema is None else float(self.ema))

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-ready description."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**plain, "schedule": self.schedule.to_dict()}

    @classmethod
    def from_dict(cls, description: dict[str, object]) -> Recipe:
        """Return the recipe that `to_dict` described."""
        fields = dict(description)
        return cls(**{**fields, "schedule": from_dict(fields["schedule"])})  # type: ignore[arg-type]
