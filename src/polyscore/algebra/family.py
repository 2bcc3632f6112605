"""Families: conditions that share an event shape and a noise schedule, and their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    PolyscoreError,
    ScoreError,
    UnknownConditionError,
    check_conditions,
    listed,
    require,
    shorten,
)
from polyscore.files.outputs import check_model
from polyscore.models.checkpoints import Checkpoint, with_suffix, write_checkpoint
from polyscore.models.ensemble import Ensemble
from polyscore.models.learned import Learned, ModelError
from polyscore.models.network import common_networks, network_conditions
from polyscore.models.units import Units, common_units, per_unit, standard_score, standardise
from polyscore.notices import warn
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


class Family(Mapping[str, "Composition"]):
    """Conditions that share an event shape and a noise schedule.

    Args:
        members: from condition to a closed-form `Distribution` or a score model.
        schedule: of all members; `VP()` by default, or the one that learned members were trained with.
        units: (shift, scale), each `(d,)`, when the members live in standardised coordinates (y - shift) / scale of
            the data y. A change of coordinates common to all conditions commutes with composing them, so samplers
            compute there, and everything handed in or out is in the data's own units.
        variables: names of the coordinates, in order, for files and pictures; x1, x2, ... by default.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        schedule: Schedule | None = None,
        units: Units | None = None,
        variables: Sequence[str] | None = None,
    ) -> None:
        if not members:
            raise CompositionError("a family must hold at least one condition; got none.")
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
        self.units = self._common_units(units)
        self.names = () if variables is None else self._checked_names(variables)  # as given
        self.training: dict[str, Any] = {}  # how learned members came to be; travels with them in files

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the coordinates of a flat point."""
        return self.names or tuple(f"x{k + 1}" for k in range(math.prod(self.event)))

    def restore(self, x: Tensor) -> Tensor:
        """Return standardised points in the data's own units."""
        if self.units is None:
            return x
        shift, scale = (part.to(x.device, torch.float64) for part in self.units)
        return (shift + scale * x.double()).to(x.dtype)

    def standardise(self, y: Tensor) -> Tensor:
        """Return points of the data in the coordinates in which members live; the inverse of `restore`."""
        return standardise(y, self.units)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Check that points in the data's units can be told apart in `dtype`, before any are computed."""
        if self.units is None:
            return
        shift, scale = (part.double().abs() for part in self.units)
        limits = torch.finfo(dtype)
        reach, remedy = (shift + 100 * scale).max().item(), f"Pass dtype=torch.float64; {dtype} is too short."
        require(reach < limits.max and scale.min().item() > limits.tiny, "the data's units", f"fit {dtype}",
                f"values up to {reach:.3g}, scales from {scale.min().item():.3g}", remedy)  # fmt: skip
        lost = (limits.eps * shift / scale).max().item()
        if lost > 1e-2:
            warn(
                f"points should be told apart in {dtype}; the data lie so far from 0 that they are rounded to "
                f"{lost:.2g} of their own deviation. {remedy}"
            )

    @property
    def log_scale(self) -> float:
        """log of the volume of one standardised unit, 0 where members are not standardised."""
        return 0.0 if self.units is None else self.units[1].double().log().sum().item()

    @property
    def groups(self) -> list[Any]:
        """The networks behind learned members, each once."""
        found = {id(group): group for member in self.members.values() for group in _groups(member)}
        return list(found.values())

    def to(self, device: torch.device | str | None = None, precision: str | None = None) -> Family:
        """Move learned members to a device, or set their precision as in `load`; returns the family."""
        for group in self.groups:
            if device is not None:
                group.network.to(device)
            if precision is not None:
                group.set_precision(precision)
        if device is not None:
            for module in self._modules:
                module.to(device)
        return self

    def save(self, path: str | Path) -> Path:
        """Write learned members as `fit` returns them, ensembles too; `load` reads them again."""
        models = {name: network_conditions(member) for name, member in self.members.items()}
        networks = [group.network for group in common_networks(list(models.values()))]
        aligned = all(len({model.index for model in column}) == 1 for column in models.values())
        if not aligned or len({network.shape for network in networks}) != 1:
            raise CompositionError(
                "a family must have one network behind all its members to be saved, or the models of one ensemble, "
                f"alike in shape; got {len(self.groups)} networks for {len(self)} members. Save each part by itself."
            )
        indices = {name: column[0].index for name, column in models.items()}
        check_model(with_suffix(path))
        training = {**self.training, "variables": list(self.names)} if self.names else self.training
        return write_checkpoint(path, Checkpoint(networks, indices, self.schedule, self.units, training))

    @property
    def device(self) -> torch.device:
        """Where learned members are; the CPU for closed forms."""
        places = [group.network.device for group in self.groups]
        places += [parameter.device for module in self._modules for parameter in module.parameters()]
        return places[0] if places else torch.device("cpu")

    @property
    def _modules(self) -> list[torch.nn.Module]:
        """The modules inside `Learned` members."""
        every = [model for member in self.members.values() for model in _leaves(member)]
        found = [model.model for model in every if isinstance(model, Learned)]
        return [module for module in found if isinstance(module, torch.nn.Module)]

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

    def _common_units(self, units: Units | None) -> Units | None:
        if units is not None:
            good = len(units) == 2 and all(isinstance(u, Tensor) and tuple(u.shape) == self.event for u in units)
            if not good or not bool((units[1] > 0).all()):
                raise CompositionError(
                    f"units must be (shift, scale), two tensors of shape {self.event}, scales positive; got {units!r}. "
                    "Take the mean and standard deviation of the data, as torch tensors."
                )
        return common_units(self.members, units)

    def _checked_names(self, variables: Sequence[str]) -> tuple[str, ...]:
        names, count = tuple(variables), math.prod(self.event)
        good = not isinstance(variables, str) and all(isinstance(n, str) and n and n.isprintable() for n in names)
        if not good or len(set(names)) != len(names) or len(names) != count:
            raise CompositionError(
                f"variables must be {count} different names, one a coordinate; got {shorten(names)}. Name each."
            )
        return names

    def _common_event(self) -> tuple[int, ...]:
        events = {name: tuple(member.event) for name, member in self.members.items()}
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
        if self.names:
            head += f"\n  variables: {listed(self.names, _MOST_SHOWN, str)}"
        if self.units is not None:
            head += "\n  standardised; points, scores and densities are in the data's units"
        return "\n".join([head, *shown])

    def scores(self, y: Tensor, t: Tensor, conditions: list[str]) -> Tensor:
        """Return the scores of several conditions at once, `(A, *y.shape)`, in the data's units."""
        return per_unit(self.standard_scores(self.standardise(y), t, conditions), self.units)

    def standard_scores(self, x: Tensor, t: Tensor, conditions: list[str]) -> Tensor:
        """Return the scores of several conditions in the coordinates in which members live, `(A, *x.shape)`.

        Members that share a network are evaluated together: it offers `scores(x, t, members)`.
        """
        out: dict[str, Tensor] = {}
        for name in conditions:
            if name in out:
                continue
            group = getattr(self.members[name], "group", None)
            if group is None:
                out[name] = self._score(name, x, t)
                continue
            together = [other for other in conditions if getattr(self.members[other], "group", None) is group]
            out.update(zip(together, group.scores(x, t, [self.members[other] for other in together]), strict=True))
        return torch.stack([out[name] for name in conditions])

    def _score(self, name: str, x: Tensor, t: Tensor) -> Tensor:
        member = self.members[name]
        try:
            if isinstance(member, Distribution):
                score = member.score(x, self.schedule.alpha(t), self.schedule.sigma(t))
            else:
                score = standard_score(member, x, t)
        except ModelError as error:
            raise ModelError(f"condition {name!r}: {error}") from (error.__cause__ or error)
        except (PolyscoreError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise ModelError(
                f"condition {name!r} must have a score at x {tuple(x.shape)} {x.dtype}, t {tuple(t.shape)}, event "
                f"{self.event}; got {type(error).__name__}: {str(error)[:500]}. Mend {type(member).__name__}.score."
            ) from error
        if not isinstance(score, Tensor) or score.shape != x.shape:
            got = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
            raise ModelError(f"the score of condition {name!r} must be like x, {tuple(x.shape)}; got {got}.")
        return score

    def check_scores(self, x: Tensor, t: Tensor, conditions: list[str]) -> None:
        """Raise `ScoreError` naming the first condition whose score at standardised (x, t) is not finite."""
        for name, score in zip(conditions, self.standard_scores(x, t, conditions), strict=True):
            bad = int((~score.isfinite()).sum())
            if bad:
                raise ScoreError(
                    f"every score must be finite; condition {name!r} gives {bad} non-finite of {score.numel()} entries "
                    f"at t = {t.max().item():.5f}. Check that model's weights, or its behaviour at this noise level."
                )


def _leaves(member: Any) -> list[Any]:
    """The models behind one member; an ensemble has several."""
    return [leaf for inner in member.members for leaf in _leaves(inner)] if isinstance(member, Ensemble) else [member]


def _groups(member: Any) -> list[Any]:
    """The networks behind one member."""
    return [leaf.group for leaf in _leaves(member) if getattr(leaf, "group", None) is not None]
