"""Families: conditions that share an event shape and a noise schedule, and their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from polyscore.algebra.composition import Composition
from polyscore.algebra.expressions import unknown_condition
from polyscore.distributions import Distribution
from polyscore.errors import (
    ArgumentError,
    CompositionError,
    ScoreError,
    UnknownConditionError,
    check_conditions,
    in_a_row,
    is_count,
    listed,
    named,
    shorten,
)
from polyscore.models.checkpoints import checkpoint_of, write_checkpoint
from polyscore.models.devices import device_of, groups_of, move
from polyscore.models.group import scores_together
from polyscore.models.learned import ModelError, asking
from polyscore.models.units import Units, common_units, standard_score
from polyscore.schedules import VP, Schedule, check_consistent


@runtime_checkable
class ScoreModel(Protocol):
    """Anything that gives a score at (x, t): the learned members of a family.

    Where the family has units, x is standardised; a model that speaks the data's units itself offers
    `standard_score(x, t)` beside it, as `Ensemble` does.
    """

    event: tuple[int, ...]

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the score, like x; `t` broadcasts against x's batch shape."""


Member = Distribution | ScoreModel

_MOST_SHOWN = 12  # conditions in a repr
_LARGEST_EVENT = 10**8


class Family(Mapping[str, "Composition"]):
    """Conditions that share an event shape and a noise schedule.

    Args:
        members: from condition to a closed-form `Distribution` or a score model.
        schedule: of all members; `VP()` by default, or the one that learned members were trained with.
        units: (shift, scale), each `(d,)`, when the members live in standardised coordinates (y - shift) / scale of
            the data y. A change of coordinates common to all conditions commutes with composing them, so samplers
            compute there, and everything handed in or out is in the data's own units. Or `Bent`, units with a bend.
        variables: names of the coordinates, in order, for files and pictures; x1, x2, ... by default.
        training: how learned members came to be, JSON-ready; it travels with them in files.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        schedule: Schedule | None = None,
        units: Units | tuple[Tensor, Tensor] | None = None,
        variables: Sequence[str] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        if not members:
            raise CompositionError("a family must hold at least one condition; got none. Add a member.")
        check_conditions(members)
        if schedule is not None and not isinstance(schedule, Schedule):
            raise ArgumentError(
                f"schedule must be a schedule, such as ps.VP(); got {shorten(schedule)}. Write ps.VP()."
            )
        for name in members:
            if not isinstance(members[name], (Distribution, ScoreModel)):
                raise CompositionError(
                    f"a member must be a distribution or a score model; {name!r} is {type(members[name]).__name__}. "
                    "Wrap a network or function in ps.Learned."
                )
        self.members = dict(members)
        self.schedule = self._common_schedule(schedule)
        check_consistent(self.schedule)
        self.event = self._common_event()
        self.units = common_units(self.members, Units.of(units, self.event))
        self.variables = self._counted() if variables is None else self._checked_names(variables)
        self.training = dict(training or {})

    def restore(self, x: Tensor) -> Tensor:
        """Return standardised points in the data's own units."""
        return x if self.units is None else self.units.restore(x)

    def standardise(self, y: Tensor) -> Tensor:
        """Return points of the data in the coordinates in which members live; the inverse of `restore`."""
        return y if self.units is None else self.units.standardise(y)

    def per_unit(self, scores: Tensor, x: Tensor) -> Tensor:
        """Return scores at points x, both in the coordinates in which members live, as scores in the data's units."""
        return scores if self.units is None else self.units.per_unit(scores, x)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Check that points in the data's units can be told apart in `dtype`, before any are computed."""
        if self.units is not None:
            self.units.check_dtype(dtype)

    def log_volume(self, x: Tensor) -> Tensor | float:
        """Return log |dy/dx| of the data y at points x where members live: a number, or `(...)` of bent coordinates."""
        return 0.0 if self.units is None else self.units.log_volume(x)

    @property
    def is_bent(self) -> bool:
        """Whether members live in bent coordinates; composing commutes with these where W = 1 alone."""
        return self.units is not None and self.units.is_bent

    @property
    def groups(self) -> list[Any]:
        """The groups behind members that share a model, each once."""
        return groups_of(self.members.values())

    @property
    def device(self) -> torch.device:
        """Where learned members are; the CPU for closed forms."""
        return device_of(self.members.values())

    def to(
        self, device: torch.device | str | None = None, precision: str | None = None, compile: bool | None = None
    ) -> Family:
        """Move learned members to a device, or set how they are evaluated; returns the family.

        Args:
            precision: "auto" or "table" (tables of the plane where they serve), "bf16" or "fp16" (products in half
                precision, answers in float32), "tf32" or "float32".
            compile: compile models for the shapes that they are asked with, and let a CUDA graph hold a step; False
                goes back. The first call of every shape then takes seconds to minutes.
        """
        move(self.members.values(), device, precision, compile)
        return self

    def save(self, path: str | Path) -> Path:
        """Write learned members as `fit` returns them, ensembles too; `load` reads them again."""
        named = {"variables": list(self.variables)} if self.has_names else {}
        return write_checkpoint(path, checkpoint_of(self.members, self.schedule, self.units, self.training | named))

    def _common_schedule(self, schedule: Schedule | None) -> Schedule:
        for name, member in self.members.items():
            own = getattr(member, "schedule", None)
            if own is None:
                continue
            if schedule is not None and own != schedule:
                raise CompositionError(
                    f"all members must share one schedule; {name!r} was trained with {own}, the family has {schedule}. "
                    "Retrain it, or compose models of one schedule."
                )
            schedule = own
        return schedule if schedule is not None else VP()

    @property
    def has_names(self) -> bool:
        """Whether the variables were named, and not just counted."""
        return self.variables != self._counted()

    def _counted(self) -> tuple[str, ...]:
        """Names for the coordinates of a flat point that has none."""
        return tuple(f"x{k + 1}" for k in range(math.prod(self.event)))

    def _checked_names(self, variables: Sequence[str]) -> tuple[str, ...]:
        names, count = tuple(variables) if isinstance(variables, Iterable) else (variables,), math.prod(self.event)
        good = not isinstance(variables, str) and all(isinstance(n, str) and n and n.isprintable() for n in names)
        if not good or len(set(names)) != len(names) or len(names) != count:
            raise CompositionError(
                f"variables must be {count} different names, one a coordinate; got {shorten(names)}. Name each."
            )
        return names

    def _common_event(self) -> tuple[int, ...]:
        events = {name: _event_of(name, member) for name, member in self.members.items()}
        first = next(iter(events))
        for name, event in events.items():
            if event != events[first]:
                raise CompositionError(
                    f"all conditions must have one shape; {first!r} has {events[first]}, {name!r} has {event}. "
                    "Compose models of the same variables."
                )
        return events[first]

    def __getitem__(self, name: str) -> Composition:
        if name not in self.members:
            raise UnknownConditionError(unknown_condition(name, self.members))
        return Composition(self, {name: 1.0})

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, name: object) -> bool:
        return name in self.members

    def __repr__(self) -> str:
        names, shown = list(self.members), [f"  {name}: {member!r}" for name, member in self.members.items()]
        kinds = {line.split(": ", 1)[1] for line in shown}
        if len(kinds) == 1 and len(shown) > 1:  # one network behind them all: once is enough
            shown = [f"  {listed(names, _MOST_SHOWN, str)}: {kinds.pop()}"]
        elif len(shown) > _MOST_SHOWN:
            shown = [*shown[: _MOST_SHOWN - 1], f"  ... and {len(names) - _MOST_SHOWN + 1} more"]
        head = f"Family of {len(names)} condition{'s' * (len(names) > 1)}, event {self.event}, {self.schedule}"
        if self.has_names:
            head += f"\n  variables: {listed(self.variables, _MOST_SHOWN, in_a_row)}"
        if self.units is not None:
            head += f"\n  {self.units.described(self.variables)}; all but the members below is in the data's units"
        return "\n".join([head, *shown])

    def scores(self, y: Tensor, t: Tensor, conditions: list[str]) -> Tensor:
        """Return the scores of several conditions at once, `(A, *y.shape)`, in the data's units."""
        return self.per_unit(self.standard_scores(x := self.standardise(y), t, conditions), x)

    def standard_scores(self, x: Tensor, t: Tensor, conditions: list[str]) -> Tensor:
        """Return the scores of several conditions in the coordinates in which members live, `(A, *x.shape)`.

        Members that share a model are evaluated together: see `polyscore.models.group`.
        """
        if self._behind_one_model(conditions[0], conditions) == conditions:
            return self._scores(conditions, x, t)
        out: dict[str, Tensor] = {}
        for name in conditions:
            if name not in out:
                together = self._behind_one_model(name, conditions)
                out.update(zip(together, self._scores(together, x, t), strict=True))
        return torch.stack([out[name] for name in conditions])

    def _behind_one_model(self, name: str, conditions: list[str]) -> list[str]:
        """The conditions that are evaluated with this one."""
        group = getattr(self.members[name], "group", None)
        shared = [other for other in conditions if getattr(self.members[other], "group", None) is group]
        return [name] if group is None else shared

    def _scores(self, names: list[str], x: Tensor, t: Tensor) -> Tensor:
        """The scores of conditions behind one model, `(A, *x.shape)`."""
        members = [self.members[name] for name in names]
        if isinstance(closed := members[0], Distribution):
            at = self.schedule.alpha(t), self.schedule.sigma(t)
            one = self.answer(names, x, t, lambda: torch.as_tensor(closed.score(x, *at), dtype=x.dtype), x.shape)
            return one[None]
        group = getattr(members[0], "group", None)
        if group is not None:
            return self.answer(names, x, t, lambda: scores_together(group, x, t, members), (len(names), *x.shape))
        return self.answer(names, x, t, lambda: standard_score(members[0], x, t), x.shape)[None]

    def answer(self, names: list[str], x: Tensor, t: Tensor, ask: Callable[[], Any], shape: tuple[int, ...]) -> Tensor:
        """What a model answers, of the shape it should have; or an error that names the conditions."""
        with asking(lambda got: f"{named(names)} must have a score at x {tuple(x.shape)} {x.dtype}, t {tuple(t.shape)}"
                                f", event {self.event}; got {got}. Mend {self._asked(names[0])}."):  # fmt: skip
            try:
                scores = ask()
            except ModelError as error:
                raise ModelError(f"{named(names)}: {error}") from (error.__cause__ or error)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != tuple(shape):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ModelError(f"the score of {named(names)} must be like x, {tuple(shape)}; got {got}. Mend the model.")
        return scores

    def _asked(self, name: str) -> str:
        """The kind of what answers for a condition: the model that it shares, or its own."""
        return type(getattr(self.members[name], "group", self.members[name])).__name__

    def check_scores(self, x: Tensor, t: Tensor, conditions: list[str]) -> None:
        """Raise `ScoreError` naming the first condition whose score at standardised (x, t) is not finite."""
        for name, score in zip(conditions, self.standard_scores(x, t, conditions), strict=True):
            if bad := int((~score.isfinite()).sum()):
                raise ScoreError(
                    f"every score must be finite; condition {name!r} gives {bad} non-finite of {score.numel()} entries "
                    f"at t = {t.max().item():.5f}. Check that model's weights, or its behaviour at this noise level."
                )


def _event_of(name: str, member: Member) -> tuple[int, ...]:
    """Return the shape of a member's points, if it is one: names are counted out of it."""
    try:
        event = tuple(member.event)
    except Exception as error:  # a distribution without `dim`, an event that is a number
        raise CompositionError(
            f"a member must have an event, the shape of one point; {name!r} has none ({type(error).__name__}: "
            f"{str(error)[:200]}). Set dim, or event, of {type(member).__name__}."
        ) from error
    if not event or not all(map(is_count, event)) or math.prod(event) > _LARGEST_EVENT:
        raise CompositionError(
            f"an event must be positive whole numbers, of at most {_LARGEST_EVENT} coordinates in all; {name!r} has "
            f"{shorten(event)}. Mend dim, or event, of {type(member).__name__}."
        )
    return event
