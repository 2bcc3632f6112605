"""Several conditions behind one model, as a class-conditional network has them: one call serves all.

class Classes(Group):
    def scores(self, x, t, members): ...        # one call of the model for all members

group = Classes((3, 64, 64), ps.VP())
p = ps.Family({"cat": group.condition(3), "dog": group.condition(7)})
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.errors import is_count, require
from polyscore.models.asking import time_like
from polyscore.models.calls import check_precision, compile_in_place, computing, described, padded
from polyscore.models.units import Units
from polyscore.schedules import Schedule


class Group(ABC):
    """A model of several conditions. What it adds to a plain score: all conditions of a batch in one call.

    Args:
        event: shape of one point.
        schedule: the one that the model was trained with.
        units: (shift, scale) of the standardised coordinates in which it was trained, or None.

    Attributes:
        most_rows: rows (points times conditions) that one call of the model can take; None where there is no bound.
        precision, compiled: how it is evaluated, as `Family.to` sets it.
    """

    most_rows: int | None = None
    precision: str = "auto"
    compiled: bool = False

    def __init__(
        self, event: tuple[int, ...], schedule: Schedule, units: Units | tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.event, self.schedule, self.units = tuple(event), schedule, Units.of(units, tuple(event))

    @abstractmethod
    def scores(self, x: Tensor, t: Tensor, members: Sequence[Any]) -> Tensor:
        """Return the scores of some conditions, `(A, *x.shape)`, where members are A of this group's `Condition`s.

        x is `(..., *event)`, standardised where there are units; t is `()` or broadcasts against x's batch shape.
        """

    def condition(self, index: Any) -> Condition:
        """Return a member of a family: the condition that the model knows by `index`."""
        return Condition(self, index)

    @property
    def device(self) -> torch.device:
        """Where the model is: the first of the modules among its attributes that has parameters."""
        found = (parameter.device for module in self._modules for parameter in module.parameters())
        return next(found, torch.device("cpu"))

    def to(self, device: torch.device | str) -> None:
        """Move the model: all modules among its attributes."""
        for module in self._modules:
            module.to(device)

    def set_precision(self, precision: str) -> None:
        """Choose how it is evaluated, as `Family.to(precision=)` asks."""
        self.precision = check_precision(precision)

    def set_compile(self, compile: bool) -> None:
        """Compile the modules among its attributes, in place, or go back to them as they are."""
        self.compiled = compile
        for module in self._modules:
            compile_in_place(module, compile)

    def ask(self, x: Tensor, t: Tensor, members: Sequence[Any]) -> Tensor:
        """Return `scores` like x, computed in the precision that was chosen."""
        with computing(self.precision, x.device):
            scores = self.scores(x, t, members)
        return scores.to(x.dtype) if isinstance(scores, Tensor) else scores

    def arithmetic(self, device: torch.device) -> str:
        """Return what a run there says of it."""
        return described(self.precision, self.compiled, device)

    @property
    def _modules(self) -> list[nn.Module]:
        return [value for value in vars(self).values() if isinstance(value, nn.Module)]


class Condition:
    """One condition of a `Group`; a member of a family.

    Args:
        index: what the group's model knows it by: a class, an embedding, anything.
    """

    def __init__(self, group: Group, index: Any) -> None:
        self.group, self.index = group, index
        self.event, self.schedule, self.units = group.event, group.schedule, group.units

    def score(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return the score, like y, both in the data's units."""
        if self.units is None:
            return self.standard_score(y, t)
        x = self.units.standardise(y)
        return self.units.per_unit(self.standard_score(x, t), x)

    def standard_score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the score in the coordinates of the training, like x."""
        return scores_together(self.group, x, time_like(t, x), [self])[0]

    def __repr__(self) -> str:
        return f"condition {self.index!r} of {type(self.group).__name__}"


def scores_together(group: Any, x: Tensor, t: Tensor, members: Sequence[Any]) -> Tensor:
    """Return a group's scores, `(A, *x.shape)`, in calls of at most `most_rows` rows each."""
    most, ask = getattr(group, "most_rows", None), group.ask if hasattr(group, "ask") else group.scores
    event = tuple(members[0].event)
    batch = x.shape[: x.ndim - len(event)]
    if most is None or len(members) * batch.numel() <= most:
        return ask(x, t, members)
    require(is_count(most), "most_rows", "be a whole number of at least 1, or None", repr(most),
            "Set it to None for no bound.")  # fmt: skip
    if len(members) > most:
        half = len(members) // 2
        return torch.cat([scores_together(group, x, t, part) for part in (members[:half], members[half:])])
    points = x.reshape(-1, *event)
    pieces = -(-len(points) // (most // len(members)))
    count = -(-len(points) // pieces)  # even pieces: the last one is not for a few points
    rows = t.expand(batch).reshape(-1) if t.ndim else t
    if getattr(group, "compiled", False):  # every piece has the shape for which the model is compiled
        whole = -(-len(points) // count) * count
        points, rows = padded(points, whole), padded(rows, whole) if t.ndim else t
    times = rows.split(count) if t.ndim else [t] * -(-len(points) // count)
    parts = [ask(part, at, members) for part, at in zip(points.split(count), times, strict=True)]
    return torch.cat(parts, 1)[:, : batch.numel()].reshape(len(members), *x.shape)
