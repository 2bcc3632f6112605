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

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polyscore.errors import CompositionError, require
from polyscore.nn.mlp import ScoreNetwork
from polyscore.schedules import DDPM, T_MAX, T_MIN, Schedule

PREDICTIONS = ("eps", "x0", "v", "velocity", "score")
PRECISIONS = ("auto", "tf32", "float32")


def to_score(prediction: str, value: Tensor, x: Tensor, t: Tensor, schedule: Schedule) -> Tensor:
    """Turn a model's output into a score under `schedule`; `t` broadcasts against x."""
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
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
        self.model, self.event, self.schedule = model, tuple(event), schedule
        self.prediction, self.discrete = prediction, discrete

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the score, like x; `t` broadcasts against x's batch shape."""
        batch = x.shape[: x.ndim - len(self.event)]
        times = t.clamp(T_MIN, T_MAX).expand(batch)
        flat = x.reshape(-1, *self.event)
        moment = self.schedule.timestep(times) if isinstance(self.schedule, DDPM) and self.discrete else times
        value = self.model(flat, moment.reshape(-1))
        if not isinstance(value, Tensor):
            raise CompositionError(
                f"a model must return a tensor; got {type(value).__name__}. "
                "Wrap it: lambda x, t: model(x, t).sample, or [0] for a tuple."
            )
        if value.shape != flat.shape:
            raise CompositionError(
                f"a model must return a tensor like x, {tuple(flat.shape)}; got {tuple(value.shape)}. "
                "Wrap it so that extra outputs (a learned variance, say) are cut off."
            )
        stretched = times.reshape(*batch, *[1] * len(self.event))
        return to_score(self.prediction, value.view_as(x), x, stretched, self.schedule)


class Network:
    """The group behind a conditional or separate network: one evaluation serves all its conditions.

    Args:
        precision: "auto" (fp16 tensor cores on a GPU, float32 elsewhere), "tf32" or "float32".
    """

    def __init__(self, network: ScoreNetwork, schedule: Schedule, precision: str = "auto") -> None:
        self.network, self.schedule = network, schedule
        self.set_precision(precision)

    def set_precision(self, precision: str) -> None:
        """Choose how samplers evaluate the network."""
        require(precision in PRECISIONS, "precision", f"be one of {', '.join(PRECISIONS)}", repr(precision))
        self.precision = precision

    def scores(self, x: Tensor, t: Tensor, members: Sequence[NetworkCondition]) -> Tensor:
        """Return the scores of some conditions, `(A, *x.shape)`; the network itself computes in float32."""
        t = t.clamp(T_MIN, T_MAX)
        picked = self.network.pick([member.index for member in members])
        sigma = self.schedule.sigma(t)
        noise = picked.noise_at(x.float(), t.float()).to(x.dtype)
        return -noise / (sigma[..., None] if t.ndim else sigma)


class NetworkCondition:
    """One condition of a `Network`; a member of a family."""

    def __init__(self, group: Network, index: int, event: tuple[int, ...]) -> None:
        self.group, self.index, self.event = group, index, event
        self.schedule: Schedule = group.schedule

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the score, like x."""
        return self.group.scores(x, t, [self])[0]


class Ensemble:
    """Several models of one condition: the mean of their scores, and its spread for whoever needs uncertainty."""

    def __init__(self, members: Sequence[Learned | NetworkCondition | Ensemble]) -> None:
        require(len(members) >= 1, "an ensemble", "hold at least one model", len(members))
        schedules = [member.schedule for member in members]
        if any(schedule != schedules[0] for schedule in schedules):
            raise CompositionError(f"an ensemble must share one schedule; got {sorted(map(str, set(schedules)))}.")
        events = sorted({tuple(member.event) for member in members})
        if len(events) > 1:
            raise CompositionError(f"an ensemble must share one shape; got {events}.")
        self.members = list(members)
        self.schedule: Schedule = schedules[0]
        self.event: tuple[int, ...] = members[0].event

    def scores(self, x: Tensor, t: Tensor) -> Tensor:
        """Return every model's score, `(models, *x.shape)`."""
        return torch.stack([member.score(x, t) for member in self.members])

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the mean score, like x."""
        return self.scores(x, t).mean(0)

    def spread(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the standard deviation of the scores over the models, like x; 0 for a single model."""
        return self.scores(x, t).std(0, correction=0)


def network_conditions(member: object) -> list[NetworkCondition]:
    """Return the networks' conditions behind a member: its own, or those of an ensemble's models.

    None where anything else is among them, an ensemble in an ensemble for instance.
    """
    models = member.members if isinstance(member, Ensemble) else [member]
    conditions = [model for model in models if isinstance(model, NetworkCondition)]
    return conditions if len(conditions) == len(models) else []
