"""Any model as scores: what a network predicts becomes a score at the door, and nothing inside composes anything else.

One model of several conditions, each in one call with the others:

    p = ps.Family({name: ps.Learned(net, (2,), ps.VP(), condition=c) for c, name in enumerate(["a", "b", "base"])})
    p.to("cuda", precision="bf16", compile=True)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from polyscore.errors import is_count, require, shorten
from polyscore.models.asking import PREDICTIONS, ModelError, asking, time_like, to_score
from polyscore.models.group import scores_together
from polyscore.models.source import Source, source_of
from polyscore.schedules import DDPM, T_MIN, Schedule

__all__ = ["PREDICTIONS", "Learned", "ModelError", "asking", "time_like", "to_score"]


class Learned:
    """A model of one condition: an `nn.Module`, or any function of (x, t).

    Args:
        model: called as `model(x, t)` with x `(B, *event)` and t `(B,)`; returns a tensor like x.
        event: shape of one point.
        schedule: the one it was trained with.
        prediction: what it returns: "eps", "x0", "v", "velocity" or "score".
        discrete: pass DDPM's timestep index instead of t.
        condition: what one model of several conditions is told: a whole number, or a tensor such as an embedding. It
            is then called as `model(x, t, c)` with c `(B,)` or `(B, ...)`, for all members that share it at once. How
            it is evaluated (`Family.to`) belongs to the model, like its device: families that share it share that.
    """

    def __init__(
        self,
        model: Callable[..., Tensor],
        event: tuple[int, ...],
        schedule: Schedule,
        prediction: str = "eps",
        discrete: bool = False,
        condition: int | Tensor | None = None,
    ) -> None:
        require(callable(model), "model", "be callable as model(x, t)", type(model).__name__,
                "Pass a module, or wrap it: lambda x, t: model(...).")  # fmt: skip
        require(prediction in PREDICTIONS, "prediction", f"be one of {', '.join(PREDICTIONS)}", repr(prediction),
                "Choose what the model was trained to return.")  # fmt: skip
        require(
            not discrete or isinstance(schedule, DDPM),
            "a discrete-timestep model",
            "have a DDPM schedule",
            schedule,
            "Pass schedule=ps.DDPM(...), or leave discrete out.",
        )
        require(isinstance(schedule, Schedule), "schedule", "be a Schedule, such as ps.VP()", repr(schedule),
                "Pass the one that the model was trained with.")  # fmt: skip
        require(_is_shape(event), "event", "be the shape of one point, such as (2,)", repr(event),
                "Write event=(2,), or (3, 64, 64) for pictures.")  # fmt: skip
        require(_is_condition(condition), "condition", "be a whole number, a tensor or None", shorten(condition),
                "Pass what the model takes as its third argument, for one point.")  # fmt: skip
        self.model, self.event, self.schedule = model, tuple(event), schedule
        self.prediction, self.condition = prediction, condition
        self.earliest = 1 / schedule.timesteps if discrete and isinstance(schedule, DDPM) else T_MIN
        make = Source if condition is None else source_of
        self.source = make(model, self.event, schedule, prediction, discrete)

    @property
    def group(self) -> Source | None:
        """What is asked about this and other conditions at once, where there may be others."""
        return None if self.condition is None else self.source

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the score, like x; `t` broadcasts against x's batch shape."""
        if self.condition is None:
            return self.source.ask(x, time_like(t, x), [self])[0]
        return scores_together(self.source, x, time_like(t, x), [self])[0]

    def __repr__(self) -> str:
        inside = type(self.model).__name__ if isinstance(self.model, nn.Module) else "a function"
        told = "" if self.condition is None else f", condition={shorten(self.condition)}"
        return f"Learned({inside}, event={self.event}, prediction={self.prediction!r}, schedule={self.schedule}{told})"


def _is_shape(event: object) -> bool:
    return isinstance(event, tuple) and all(is_count(size) for size in event)


def _is_condition(condition: object) -> bool:
    whole = isinstance(condition, int) and not isinstance(condition, bool)
    return condition is None or whole or isinstance(condition, Tensor)
