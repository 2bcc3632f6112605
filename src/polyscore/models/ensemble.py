"""Several models of one condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyscore.errors import CompositionError, require
from polyscore.models.learned import Learned
from polyscore.models.units import common_units, standard_score
from polyscore.schedules import Schedule

if TYPE_CHECKING:
    from polyscore.models.group import Condition


class Ensemble:
    """Several models of one condition: the mean of their scores, and its spread for whoever needs uncertainty."""

    def __init__(self, models: Sequence[Learned | Condition | Ensemble]) -> None:
        require(len(models) >= 1, "an ensemble", "hold at least one model", len(models), "Pass a list of models.")
        for model in models:
            learned = isinstance(model, (Learned, Ensemble)) or hasattr(model, "group")
            require(learned, "an ensemble", "hold learned members", type(model).__name__,
                    "Take them from family.members, or wrap a model in ps.Learned.")  # fmt: skip
        schedules = [model.schedule for model in models]
        if any(schedule != schedules[0] for schedule in schedules):
            raise CompositionError(
                f"an ensemble must share one schedule; got {sorted(map(str, set(schedules)))}. Train its models alike."
            )
        events = sorted({tuple(model.event) for model in models})
        if len(events) > 1:
            raise CompositionError(f"an ensemble must share one shape; got {events}. Take models of the same data.")
        self.units = common_units({f"model {m}": model for m, model in enumerate(models)})
        self.models = list(models)
        self.schedule: Schedule = schedules[0]
        self.event: tuple[int, ...] = models[0].event

    def scores(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return every model's score, `(models, *y.shape)`, in the data's units."""
        return torch.stack([model.score(y, t) for model in self.models])

    def score(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return the mean score, like y."""
        return self.scores(y, t).mean(0)

    def standard_score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the mean score in the coordinates of the training, like x."""
        return torch.stack([standard_score(model, x, t) for model in self.models]).mean(0)

    def spread(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return the standard deviation of the scores over the models, like y; 0 for a single model."""
        return self.scores(y, t).std(0, correction=0)

    def __repr__(self) -> str:
        return f"Ensemble of {len(self.models)}: {self.models[0]!r}"
