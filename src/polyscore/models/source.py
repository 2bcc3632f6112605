"""What stands behind `Learned` members: one model, asked about all its conditions in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from polyscore.models.asking import Level, ModelError, asking, time_like, to_score
from polyscore.models.calls import Compiled, channels_last, computing
from polyscore.models.group import Group
from polyscore.schedules import DDPM, T_MAX, T_MIN, Schedule

# Rows that a CPU takes through all layers before the next, and numbers of the widest layer: more do not stay in its
# cache, and take fresh pages.
_ROWS_ON_CPU, _NUMBERS_ON_CPU = (1024, 8192), 1 << 19

# Batches of conditions that are held on a device: those of a run, not all states of an embedding that is trained.
_MOST_KEPT = 64


class Source(Group):
    """A model and how its answers become scores; conditions are what it is told as its third argument.

    Args:
        model: `model(x, t)`, or `model(x, t, c)` where members have conditions.
        discrete: pass DDPM's timestep index instead of t.
    """

    def __init__(
        self, model: Callable[..., Tensor], event: tuple[int, ...], schedule: Schedule, prediction: str, discrete: bool
    ) -> None:
        super().__init__(event, schedule)
        self.model, self.prediction = model, prediction
        self.levels: Tensor | None = None  # alpha and sigma of every timestep, `(2, timesteps)`
        if discrete and isinstance(schedule, DDPM):
            alphas = schedule.table()
            self.levels = torch.stack([alphas, (1 - alphas**2).sqrt()])
        self._called: Callable[..., Tensor] = model
        # What has been brought to a device, with what it was: a copy at every call would make the host wait.
        self._there: dict[Any, tuple[Any, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where the model is; asked at every step, so that other attributes are not looked through."""
        return next((p.device for p in _parameters(self.model)), torch.device("cpu"))

    @property
    def most_rows(self) -> int | None:  # type: ignore[override]
        """Rows that one call takes: on a CPU, as many as stay in its cache."""
        if self.device.type != "cpu":
            return None
        least, most = _ROWS_ON_CPU
        return min(most, max(least, _NUMBERS_ON_CPU // self._widest))

    @cached_property
    def _widest(self) -> int:
        """Outputs of the widest layer, as far as parameters tell; to ask all of them takes as long as a small model."""
        return max((len(p) for p in _parameters(self.model) if p.ndim >= 2), default=1)

    def set_compile(self, compile: bool) -> None:
        """Compile the model for the shapes that it is asked with, or go back to it as it is."""
        self.compiled, self._called = compile, Compiled(self.model) if compile else self.model
        if compile and isinstance(self.model, nn.Module):
            channels_last(self.model)

    def at_levels(self, times: Tensor) -> list[AtLevel] | None:
        """Return the source at times that are asked about one by one on a CPU; None where no answer needs levels."""
        if self.levels is not None or self.prediction not in ("eps", "x0", "v") or times.device.type != "cpu":
            return None
        times, rows, own = times.clamp(T_MIN, T_MAX), self.most_rows, _dtype(self.model, times.dtype)
        levels = zip(self.schedule.alpha(times).tolist(), self.schedule.sigma(times).tolist(), strict=True)
        return [AtLevel(self, level, own, rows, self.compiled) for level in levels]

    def scores(self, x: Tensor, t: Tensor, members: Sequence[Any], at: AtLevel | None = None) -> Tensor:
        """Return the scores of some conditions, `(A, *x.shape)`; one call of the model for all of them.

        Args:
            at: what is known of one time beforehand: to find it out took as long as a small layer.
        """
        batch, ones = x.shape[: x.ndim - len(self.event)], [1] * len(self.event)
        t = time_like(t, x).clamp(T_MIN, T_MAX)
        told, shape = [member.condition for member in members], (len(members), *x.shape)
        if self.levels is None:
            t = t.expand(batch) if t.ndim else t
            value = self._value(x, t, told, at.own if at else None).view(shape)
            # One time for all has one noise level, which need not be computed point by point.
            times, level = t.reshape(*batch, *ones) if t.ndim else t, at.level if at else None
            return to_score(self.prediction, value, x, times, self.schedule, level)
        # The score at the noise level that the model was asked about: near the data, levels differ by factors.
        assert isinstance(self.schedule, DDPM)
        index = self.schedule.timestep(t.expand(batch))
        value = self._value(x, index, told).view(shape)
        asked = ((index + 1) / self.schedule.timesteps).to(x).reshape(*batch, *ones)
        levels = self._on(x.device, "levels", self.levels)
        alpha, sigma = (row[index].to(x.dtype).reshape(*batch, *ones) for row in levels)
        return to_score(self.prediction, value, x, asked, self.schedule, (alpha, sigma))

    def _value(self, x: Tensor, moment: Tensor, told: Sequence[Any], own: torch.dtype | None = None) -> Tensor:
        """The model's output, `(A B, *event)`, at one moment or one each; a module is asked in its own precision."""
        own, count = own or _dtype(self.model, x.dtype), len(told)
        points = _times(count, x.reshape(-1, *self.event).to(own))
        when = moment.to(own) if moment.is_floating_point() else moment
        when = _times(count, when.reshape(-1)) if when.ndim else when.expand(len(points)).contiguous()
        parts = [points, when, *self._told(told, len(points) // count, points)]
        with asking(lambda got: f"a model must take {_passed(parts)}, points of event {self.event}; got {got}. "
                                "Check event=, or wrap it: lambda x, t: model(...)."):  # fmt: skip
            value = self._called(*parts)
        return _checked(value, parts).to(x.dtype)

    def _told(self, conditions: Sequence[Any], rows: int, like: Tensor) -> list[Tensor]:
        """The third argument, `(A B, ...)`, where there is one."""
        if conditions[0] is None:
            return []
        stacked = self._on(like.device, tuple(map(_key, conditions)), conditions)
        stacked = stacked.to(like.dtype) if stacked.is_floating_point() else stacked
        return [stacked.repeat_interleave(rows, 0)]

    def _on(self, device: torch.device, name: Any, values: Tensor | Sequence[Any]) -> Tensor:
        """Values on a device, brought there once."""
        if (device, name) not in self._there:
            if len(self._there) >= _MOST_KEPT:
                self._there.clear()
            whole = values if isinstance(values, Tensor) else torch.stack([torch.as_tensor(one) for one in values])
            self._there[device, name] = values, whole.to(device)
        return self._there[device, name][1]


class AtLevel(NamedTuple):
    """A source at one time, as `scores_together` asks a group; what is known beforehand is not found out at each.

    Attributes:
        level: alpha and sigma.
        own: the dtype that the model computes in.
        most_rows, compiled: of the source.
    """

    source: Source
    level: Level
    own: torch.dtype
    most_rows: int | None
    compiled: bool

    def ask(self, x: Tensor, t: Tensor, members: Sequence[Any]) -> Tensor:
        """Return the scores of some conditions, `(A, *x.shape)`."""
        with computing(self.source.precision, x.device):
            return self.source.scores(x, t, members, self)


def _times(count: int, part: Tensor) -> Tensor:
    """A batch `(B, ...)` that often, one after the other: always a copy, which a model may write into."""
    return torch.cat([part] * count)


def _key(condition: Any) -> Any:
    """What a condition is known by: a tensor that is changed in place, or learned, is another one."""
    if not isinstance(condition, Tensor):
        return condition
    version = None if condition.is_inference() else condition._version
    return id(condition), version, condition.requires_grad and torch.is_grad_enabled()


def _passed(parts: Sequence[Tensor]) -> str:
    """What a model is passed, in words."""
    named = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in zip(("x", "t", "c"), parts, strict=False)]
    return f"{', '.join(named[:-1])} and {named[-1]} on {parts[0].device}"


def _checked(value: Any, parts: Sequence[Tensor]) -> Tensor:
    """Return an answer that is like the points, the first of what the model was passed."""
    if not isinstance(value, Tensor):
        raise ModelError(
            f"a model must return a tensor; got {type(value).__name__} for {_passed(parts)}. "
            "Wrap it: lambda x, t: model(x, t).sample, or [0] for a tuple."
        )
    if value.shape != parts[0].shape:
        raise ModelError(
            f"a model must return a tensor like x, {tuple(parts[0].shape)}; got {tuple(value.shape)} for "
            f"{_passed(parts)}. "
            "Wrap it so that extra outputs (a learned variance, say) are cut off."
        )
    if value.device != parts[0].device:
        raise ModelError(
            f"a model must answer where it is asked; got an answer on {value.device} for {_passed(parts)}. "
            "Move all of its parts: model.to(device)."
        )
    if not value.is_floating_point():
        raise ModelError(
            f"a model must return real numbers with a fraction; got {value.dtype} for {_passed(parts)}. "
            "Convert its answer with .float()."
        )
    return value


def _dtype(model: object, default: torch.dtype) -> torch.dtype:
    """The floating dtype of a module's parameters, or `default`."""
    return next((p.dtype for p in _parameters(model) if p.is_floating_point()), default)


def _parameters(model: object) -> Iterator[Tensor]:
    """A module's parameters, without their names, which `parameters()` puts together; the first is asked every step."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return (p for module in modules for p in module._parameters.values() if p is not None)


_shared: WeakValueDictionary[Any, Source] = WeakValueDictionary()


def source_of(model: Any, event: tuple[int, ...], schedule: Schedule, prediction: str, discrete: bool) -> Source:
    """Return what stands behind a model that is told conditions: one for all members that share it."""
    key = (id(model), event, _as_key(schedule), prediction, discrete)
    if (known := _shared.get(key)) is None:  # which keeps its model, so that no other has its id
        _shared[key] = known = Source(model, event, schedule, prediction, discrete)
    return known


def _as_key(schedule: Schedule) -> Schedule | int:
    """A schedule, or its id where one of its fields, such as a list, cannot be hashed; its source keeps it alive."""
    try:
        hash(schedule)
    except TypeError:
        return id(schedule)
    return schedule
