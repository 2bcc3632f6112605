"""Any model as scores: what a network predicts becomes a score at the door, and nothing inside composes anything else.

With x = alpha x_0 + sigma eps, drift and eta the schedule's:

| prediction | eps in terms of it |
|---|---|
| eps | eps |
| x0 | (x - alpha x0) / sigma |
| v = alpha eps - sigma x0 | (sigma x + alpha v) / (alpha^2 + sigma^2) |
| velocity = dx/dt of the flow | (velocity - drift x) 2 sigma / eta^2 |
| score | -sigma score |

and score = -eps / sigma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyscore.errors import CompositionError, PolyscoreError, is_count, require
from polyscore.schedules import DDPM, T_MAX, T_MIN, Schedule

PREDICTIONS = ("eps", "x0", "v", "velocity", "score")


class ModelError(CompositionError):
    """A model that fails or answers in another shape; its own exception, if any, is the cause."""


@contextmanager
def asking(message: Callable[[str], str]) -> Iterator[None]:
    """Turn what a model raises into a `ModelError`; errors of ours and of memory pass.

    Args:
        message: what to say, given the kind and the words of what was raised.
    """
    try:
        yield
    except (PolyscoreError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(message(f"{type(error).__name__}: {str(error)[:500]}")) from error


def to_score(
    prediction: str, value: Tensor, x: Tensor, t: Tensor, schedule: Schedule, level: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Turn a model's output into a score under `schedule`; `t` broadcasts against x.

    Args:
        level: alpha and sigma of a discrete timestep, where they are not quite the schedule's own at `t`.
    """
    alpha, sigma = level or (schedule.alpha(t), schedule.sigma(t))
    if prediction == "score":
        return value
    if prediction == "x0":
        return (alpha * value - x) / sigma**2
    if prediction == "v":
        return -(x + alpha / sigma * value) / (alpha**2 + sigma**2)
    if prediction == "velocity":
        return (schedule.drift(t) * x - value) * 2 / schedule.diffusion(t) ** 2
    return -value / sigma


class Learned:
    """A model of one condition: an `nn.Module`, or any function of (x, t).

    Args:
        model: called as `model(x, t)` with x `(B, *event)` and t `(B,)`; returns a tensor like x.
        event: shape of one point.
        schedule: the one it was trained with.
        prediction: what it returns: "eps", "x0", "v", "velocity" or "score".
        discrete: pass DDPM's timestep index instead of t.
    """

    def __init__(
        self,
        model: Callable[[Tensor, Tensor], Tensor],
        event: tuple[int, ...],
        schedule: Schedule,
        prediction: str = "eps",
        discrete: bool = False,
    ) -> None:
        require(callable(model), "model", "be callable as model(x, t)", type(model).__name__)
        require(prediction in PREDICTIONS, "prediction", f"be one of {', '.join(PREDICTIONS)}", repr(prediction))
        require(
            not discrete or isinstance(schedule, DDPM), "a discrete-timestep model", "have a DDPM schedule", schedule
        )
        require(isinstance(schedule, Schedule), "schedule", "be a Schedule, such as ps.VP()", repr(schedule))
        require(_is_shape(event), "event", "be the shape of one point, such as (2,)", repr(event))
        self.model, self.event, self.schedule = model, tuple(event), schedule
        self.prediction = prediction
        self.earliest = T_MIN  # the least time at which samplers ask
        self.levels: Tensor | None = None  # alpha and sigma of every timestep, `(2, timesteps)`
        if discrete and isinstance(schedule, DDPM):
            alphas = schedule.table()
            self.levels, self.earliest = torch.stack([alphas, (1 - alphas**2).sqrt()]), 1 / schedule.timesteps

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the score, like x; `t` broadcasts against x's batch shape."""
        batch = x.shape[: x.ndim - len(self.event)]
        times = time_like(t, x).clamp(T_MIN, T_MAX).expand(batch)
        ones = [1] * len(self.event)
        if self.levels is None:
            value = self._value(x.reshape(-1, *self.event), times.reshape(-1))
            return to_score(self.prediction, value.view_as(x), x, times.reshape(*batch, *ones), self.schedule)
        # The score at the noise level that the model was asked about: near the data, levels differ by factors.
        assert isinstance(self.schedule, DDPM)
        index = self.schedule.timestep(times)
        value = self._value(x.reshape(-1, *self.event), index.reshape(-1))
        asked = ((index + 1) / self.schedule.timesteps).to(x).reshape(*batch, *ones)
        alpha, sigma = (row[index].to(x.dtype).reshape(*batch, *ones) for row in self.levels.to(x.device))
        return to_score(self.prediction, value.view_as(x), x, asked, self.schedule, (alpha, sigma))

    def _value(self, flat: Tensor, moment: Tensor) -> Tensor:
        """The model's output, like `flat`; a module is asked in its own precision."""
        own = _dtype(self.model, flat.dtype)
        points, when = flat.to(own), moment.to(own) if moment.is_floating_point() else moment
        passed = f"x {tuple(points.shape)} {points.dtype} and t {tuple(when.shape)} {when.dtype} on {points.device}"
        with asking(lambda got: f"a model must take {passed}, points of event {self.event}; got {got}. "
                                "Check event=, or wrap it: lambda x, t: model(...)."):  # fmt: skip
            value = self.model(points, when)
        if not isinstance(value, Tensor):
            raise ModelError(
                f"a model must return a tensor; got {type(value).__name__} for {passed}. "
                "Wrap it: lambda x, t: model(x, t).sample, or [0] for a tuple."
            )
        if value.shape != flat.shape:
            raise ModelError(
                f"a model must return a tensor like x, {tuple(flat.shape)}; got {tuple(value.shape)} for {passed}. "
                "Wrap it so that extra outputs (a learned variance, say) are cut off."
            )
        return value.to(flat.dtype)

    def __repr__(self) -> str:
        inside = type(self.model).__name__ if isinstance(self.model, nn.Module) else "a function"
        return f"Learned({inside}, event={self.event}, prediction={self.prediction!r}, schedule={self.schedule})"


def _is_shape(event: object) -> bool:
    return isinstance(event, tuple) and all(is_count(size) for size in event)


def time_like(t: Tensor | float, x: Tensor) -> Tensor:
    """Return times in the dtype and on the device of x."""
    return torch.as_tensor(t, dtype=x.dtype, device=x.device)


def _dtype(model: object, default: torch.dtype) -> torch.dtype:
    """The floating dtype of a module's parameters, or `default`."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), default)
