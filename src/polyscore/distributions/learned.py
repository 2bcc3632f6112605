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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.devices import without_autocast
from polyscore.errors import CompositionError, PolyscoreError, is_count, require
from polyscore.nn.mlp import ScoreNetwork
from polyscore.schedules import DDPM, T_MAX, T_MIN, Schedule

PREDICTIONS = ("eps", "x0", "v", "velocity", "score")
PRECISIONS = ("auto", "table", "fp16", "tf32", "float32")

Units = tuple[Tensor, Tensor]


class ModelError(CompositionError):
    """A model that fails or answers in another shape; its own exception, if any, is the cause."""


def standardise(y: Tensor, units: Units | None) -> Tensor:
    """Return points of the data, y = shift + scale x, as standardised x; in float64 between, for offsets far from 0."""
    if units is None:
        return y
    shift, scale = (part.to(y.device, torch.float64) for part in units)
    return ((y.double() - shift) / scale).to(y.dtype)


def per_unit(scores: Tensor, units: Units | None) -> Tensor:
    """Return scores in x as scores in y = shift + scale x: a gradient gains 1 / scale."""
    return scores if units is None else (scores.double() / units[1].to(scores.device)).to(scores.dtype)


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
        self.table: Tensor | None = None  # alpha and sigma of every timestep, `(2, timesteps)`
        if discrete and isinstance(schedule, DDPM):
            alphas = schedule.table()
            self.table, self.earliest = torch.stack([alphas, (1 - alphas**2).sqrt()]), 1 / schedule.timesteps

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the score, like x; `t` broadcasts against x's batch shape."""
        batch = x.shape[: x.ndim - len(self.event)]
        times = _time(t, x).clamp(T_MIN, T_MAX).expand(batch)
        ones = [1] * len(self.event)
        if self.table is None:
            value = self._value(x.reshape(-1, *self.event), times.reshape(-1))
            return to_score(self.prediction, value.view_as(x), x, times.reshape(*batch, *ones), self.schedule)
        # The score at the noise level that the model was asked about: near the data, levels differ by factors.
        assert isinstance(self.schedule, DDPM)
        index = self.schedule.timestep(times)
        value = self._value(x.reshape(-1, *self.event), index.reshape(-1))
        asked = ((index + 1) / self.schedule.timesteps).to(x).reshape(*batch, *ones)
        alpha, sigma = (row[index].to(x.dtype).reshape(*batch, *ones) for row in self.table.to(x.device))
        return to_score(self.prediction, value.view_as(x), x, asked, self.schedule, (alpha, sigma))

    def _value(self, flat: Tensor, moment: Tensor) -> Tensor:
        """The model's output, like `flat`; a module is asked in its own precision."""
        own = _dtype(self.model, flat.dtype)
        points, when = flat.to(own), moment.to(own) if moment.is_floating_point() else moment
        passed = f"x {tuple(points.shape)} {points.dtype} and t {tuple(when.shape)} {when.dtype} on {points.device}"
        try:
            value = self.model(points, when)
        except (PolyscoreError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise ModelError(
                f"a model must take {passed}, points of event {self.event}; got {type(error).__name__}: "
                f"{str(error)[:500]}. Check event=, or wrap it: lambda x, t: model(...)."
            ) from error
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


def _time(t: Tensor | float, x: Tensor) -> Tensor:
    return torch.as_tensor(t, dtype=x.dtype, device=x.device)


def _dtype(model: object, default: torch.dtype) -> torch.dtype:
    """The floating dtype of a module's parameters, or `default`."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((p.dtype for p in parameters if p.is_floating_point()), default)


class Network:
    """The group behind a conditional or separate network: one evaluation serves all its conditions.

    Args:
        precision: "fp16" (tensor cores on a GPU, float32 elsewhere), "table" (the same; where some 260,000 particles or
            more move in the plane, they are interpolated from a table of the network), "auto" (tables on a GPU alone:
            on a CPU a swarm then has the same bytes in whatever company), "tf32" or "float32".
        units: (shift, scale) of the standardised coordinates in which it was trained, or None.
    """

    def __init__(
        self, network: ScoreNetwork, schedule: Schedule, precision: str = "auto", units: Units | None = None
    ) -> None:
        self.network, self.schedule, self.units = network, schedule, units
        self.set_precision(precision)

    def set_precision(self, precision: str) -> None:
        """Choose how samplers evaluate the network."""
        require(precision in PRECISIONS, "precision", f"be one of {', '.join(PRECISIONS)}", repr(precision))
        self.precision = precision

    def scores(self, x: Tensor, t: Tensor | float, members: Sequence[NetworkCondition]) -> Tensor:
        """Return the scores of some conditions at standardised points, `(A, *x.shape)`.

        The network itself computes in float32.
        """
        t = _time(t, x).clamp(T_MIN, T_MAX)
        picked = self.network.pick([member.index for member in members])
        sigma = self.schedule.sigma(t)
        with without_autocast(x.device):
            noise = picked.noise_at(x.float(), t.float()).to(x.dtype)
        return -noise / (sigma[..., None] if t.ndim else sigma)


class NetworkCondition:
    """One condition of a `Network`; a member of a family."""

    def __init__(self, group: Network, index: int, event: tuple[int, ...]) -> None:
        self.group, self.index, self.event = group, index, event
        self.schedule: Schedule = group.schedule
        self.units = group.units

    def score(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return the score, like y, both in the data's units."""
        return per_unit(self.standard_score(standardise(y, self.units), t), self.units)

    def standard_score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the score in the coordinates of the training, like x."""
        return self.group.scores(x, t, [self])[0]

    def __repr__(self) -> str:
        network = self.group.network
        kind = "conditional" if network.shared else "separate"
        return f"a {kind} network of {len(network.hidden) + 1} x {network.width}, {network.activation}"


class Ensemble:
    """Several models of one condition: the mean of their scores, and its spread for whoever needs uncertainty."""

    def __init__(self, members: Sequence[Learned | NetworkCondition | Ensemble]) -> None:
        require(len(members) >= 1, "an ensemble", "hold at least one model", len(members))
        for member in members:
            require(isinstance(member, (Learned, NetworkCondition, Ensemble)), "an ensemble", "hold learned members",
                    type(member).__name__, "Take them from family.members, or wrap a model in ps.Learned.")  # fmt: skip
        schedules = [member.schedule for member in members]
        if any(schedule != schedules[0] for schedule in schedules):
            raise CompositionError(f"an ensemble must share one schedule; got {sorted(map(str, set(schedules)))}.")
        events = sorted({tuple(member.event) for member in members})
        if len(events) > 1:
            raise CompositionError(f"an ensemble must share one shape; got {events}. Take models of the same data.")
        self.units = common_units({f"model {m}": member for m, member in enumerate(members)})
        self.members = list(members)
        self.schedule: Schedule = schedules[0]
        self.event: tuple[int, ...] = members[0].event

    def scores(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return every model's score, `(models, *y.shape)`, in the data's units."""
        return torch.stack([member.score(y, t) for member in self.members])

    def score(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return the mean score, like y."""
        return self.scores(y, t).mean(0)

    def standard_score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the mean score in the coordinates of the training, like x."""
        return torch.stack([standard_score(member, x, t) for member in self.members]).mean(0)

    def spread(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return the standard deviation of the scores over the models, like y; 0 for a single model."""
        return self.scores(y, t).std(0, correction=0)

    def __repr__(self) -> str:
        return f"Ensemble of {len(self.members)}: {self.members[0]!r}"


def standard_score(member: Any, x: Tensor, t: Tensor | float) -> Tensor:
    """Return a score model's score at standardised points; a model that knows of no units lives in these."""
    inside = getattr(member, "standard_score", member.score)
    return inside(x, t)


def common_units(members: Mapping[str, object], given: Units | None = None) -> Units | None:
    """Return the coordinates that all members share: `given`, or those in which they were trained.

    Members that were trained in other coordinates cannot be composed: their scores belong to other variables. `given`
    also speaks for members without coordinates of their own, such as closed forms.
    """
    own = {name: getattr(member, "units", None) for name, member in members.items()}
    first = next((name for name, units in own.items() if units is not None), None)
    if first is None:
        return given
    expected = given or own[first]
    whose = repr(first) if given is None else "the family"
    assert expected is not None
    for name, units in own.items():
        if units is None and given is not None:
            continue
        if units is None or not all(torch.equal(a.double(), b.double()) for a, b in zip(units, expected, strict=True)):
            raise CompositionError(
                f"all members must live in the same coordinates; {whose} has {_units_text(expected)}, {name!r} has "
                f"{_units_text(units)}. Train them in one call of fit, or all with standardise=False."
            )
    return expected


def _units_text(units: Units | None) -> str:
    if units is None:
        return "none (not standardised)"
    shift, scale = ([float(f"{v:.4g}") for v in part.flatten()[:4].tolist()] for part in units)
    return f"shift {shift}, scale {scale}"


def common_networks(columns: Sequence[Sequence[NetworkCondition]]) -> list[Network]:
    """Return the networks on which all members rest, in one order; none where members differ in them."""
    groups = [model.group for model in columns[0]]
    return groups if all([model.group for model in column] == groups for column in columns) else []


def network_conditions(member: object) -> list[NetworkCondition]:
    """Return the networks' conditions behind a member: its own, or those of an ensemble's models.

    None where anything else is among them, an ensemble in an ensemble for instance.
    """
    models = member.members if isinstance(member, Ensemble) else [member]
    conditions = [model for model in models if isinstance(model, NetworkCondition)]
    return conditions if len(conditions) == len(models) else []
