"""Families of conditions and the algebra over them: `p["a"] * p["b"] / p["base"]`.

A composition is a map from conditions to exponents w_a. It stands for the density proportional to prod_a P_a^{w_a},
and at noise level t for the path prod_a P_{a,t}^{w_a}, whose score is S = sum_a w_a s_a. With u the noising drift and
eta the diffusion, particles that move by b = -W u + (eta^2 + nu^2) S / 2 carry the log-weight rate

    residual = (1 - W) <u, S> + (eta^2 / 2) (|S|^2 - sum_a w_a |s_a|^2),        W = sum_a w_a.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from polyscore.checkpoints import Checkpoint, write_checkpoint
from polyscore.distributions import Distribution
from polyscore.distributions.learned import (
    Ensemble,
    Learned,
    Units,
    common_networks,
    common_units,
    network_conditions,
)
from polyscore.errors import (
    ArgumentError,
    CompositionError,
    ScoreError,
    UnknownConditionError,
    check_conditions,
    is_finite,
    shorten,
)
from polyscore.expressions import SMALLEST, Exponents, parse_exponents, quoted, unknown_condition
from polyscore.schedules import T_MAX, VP, Schedule
from polyscore.scores import combine, spread
from polyscore.validity import Validity, composition_validity


@runtime_checkable
class ScoreModel(Protocol):
    """Anything that gives a score at (x, t): the learned members of a family."""

    event: tuple[int, ...]

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the score, like x; `t` broadcasts against x's batch shape."""


Member = Distribution | ScoreModel


class Family(Mapping[str, "Composition"]):
    """Conditions that share an event shape and a noise schedule.

    Args:
        members: from condition to a closed-form `Distribution` or a score model.
        schedule: of all members; `VP()` by default, or the one that learned members were trained with.
        units: (shift, scale), each `(d,)`, when the members live in standardised coordinates (x - shift) / scale. A
            change of coordinates common to all conditions commutes with composing them, so scores stay standardised
            and samplers hand out points, and evidence, in the data's own units.
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        schedule: Schedule | None = None,
        units: Units | None = None,
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
        self.event = self._common_event()
        self.units = self._common_units(units)
        self.training: dict[str, Any] = {}  # how learned members came to be; travels with them in files

    def restore(self, x: Tensor) -> Tensor:
        """Return points in the data's own units."""
        return x if self.units is None else x * self.units[1].to(x) + self.units[0].to(x)

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
        return write_checkpoint(path, Checkpoint(networks, indices, self.schedule, self.units, self.training))

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

    def scores(self, x: Tensor, t: Tensor, conditions: list[str]) -> Tensor:
        """Return the scores of several conditions at once, `(A, *x.shape)`.

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
        if isinstance(member, Distribution):
            return member.score(x, self.schedule.alpha(t), self.schedule.sigma(t))
        return member.score(x, t)

    def check_scores(self, x: Tensor, t: Tensor, conditions: list[str]) -> None:
        """Raise `ScoreError` naming the first condition whose score at (x, t) is not finite."""
        for name, score in zip(conditions, self.scores(x, t, conditions), strict=True):
            bad = int((~score.isfinite()).sum())
            if bad:
                raise ScoreError(
                    f"every score must be finite; condition {name!r} gives {bad} non-finite of {score.numel()} entries "
                    f"at t = {t.max().item():.5f}. Check that model's weights, or its behaviour at this noise level."
                )


class Composition:
    """A product of powers of conditions. Immutable; `*`, `/` and `**` build new ones."""

    def __init__(self, family: Family, exponents: Mapping[str, float]) -> None:
        for name in exponents:
            if name not in family:
                raise UnknownConditionError(unknown_condition(name, family.members))
        self._family = family
        # What cancels up to rounding, as 0.1 + 0.2 - 0.3 does, has cancelled: p * b / b is p.
        finite = {name: _finite(value) for name, value in exponents.items()}
        self._exponents = Exponents({name: value for name, value in finite.items() if abs(value) > SMALLEST})

    @property
    def family(self) -> Family:
        """The family that the conditions belong to."""
        return self._family

    @property
    def exponents(self) -> Exponents:
        """The exponents w_a by condition; read only."""
        return self._exponents

    @property
    def total(self) -> float:
        """W, the sum of the exponents."""
        return float(sum(self.exponents.values()))

    @property
    def schedule(self) -> Schedule:
        """The family's schedule."""
        return self.family.schedule

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one point."""
        return self.family.event

    @property
    def conditions(self) -> list[str]:
        """The conditions with a non-zero exponent."""
        return list(self.exponents)

    def __mul__(self, other: Composition) -> Composition:
        return self._merge(other, 1.0)

    def __truediv__(self, other: Composition) -> Composition:
        return self._merge(other, -1.0)

    def __pow__(self, power: float) -> Composition:
        if not is_finite(power):
            raise ArgumentError(f"a power must be a finite number; got {shorten(power)}.")
        return Composition(self.family, {name: value * float(power) for name, value in self.exponents.items()})

    def _merge(self, other: Any, sign: float) -> Composition:
        if not isinstance(other, Composition):
            return NotImplemented
        if other.family is not self.family:
            raise CompositionError(
                "both factors must come from one family; got two families. Put all conditions into one Family."
            )
        merged = dict(self.exponents)
        for name, value in other.exponents.items():
            merged[name] = merged.get(name, 0.0) + sign * value
        return Composition(self.family, merged)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composition) and other.family is self.family and other.exponents == self.exponents

    def __hash__(self) -> int:
        return hash((id(self.family), frozenset(self.exponents.items())))

    def __repr__(self) -> str:
        factors = ((quoted(name), value) for name, value in self.exponents.items())
        return " * ".join(f"{name}^{value:g}" if value != 1 else name for name, value in factors) or "1"

    def scores(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the factors' scores, `(A, *x.shape)`, in the order of `conditions`."""
        self._check_points(x)
        return self.family.scores(x, self._time(t, x), self.conditions)

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return S = sum_a w_a s_a, like x.

        Args:
            x: `(..., *event)`.
            t: time in [0, 1], scalar or broadcastable to x's batch shape.
        """
        return combine(self.scores(x, t), list(self.exponents.values()))

    def residual(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the log-weight rate per unit of reverse time, `(...)`: 0 for a single condition."""
        scores, exponents = self.scores(x, t), list(self.exponents.values())
        t = self._time(t, x)
        axes = tuple(range(-len(self.event), 0))
        rate = 0.5 * self.schedule.diffusion(t) ** 2 * spread(scores, exponents, len(self.event))
        if self.total == 1:
            return rate
        return rate + (1 - self.total) * self.schedule.drift(t) * (x * combine(scores, exponents)).sum(axes)

    def log_density(self, x: Tensor, t: Tensor | float = 0.0) -> Tensor:
        """Return sum_a w_a log P_{a,t}(x), unnormalised, `(...)`; closed-form members only."""
        self._check_points(x)
        t = self._time(t, x)
        alpha, sigma = self.schedule.alpha(t), self.schedule.sigma(t)
        terms = [value * self.distribution(name).log_prob(x, alpha, sigma) for name, value in self.exponents.items()]
        return torch.stack(terms).sum(0)

    def distribution(self, name: str) -> Distribution:
        """Return the closed form behind a condition, or say that it has none."""
        member = self.family.members[name]
        if not isinstance(member, Distribution):
            raise CompositionError(f"condition {name!r} must have a closed form here; got a learned model.")
        return member

    @property
    def is_closed_form(self) -> bool:
        """Whether every factor is a closed-form distribution."""
        return all(isinstance(self.family.members[name], Distribution) for name in self.exponents)

    def validity(self, t: float = 0.0) -> Validity:
        """Return whether the density at noise level `t` can be normalised: yes, no, or cannot tell."""
        if not 0 <= t <= 1:
            raise ArgumentError(f"t must lie in [0, 1]; got {t}.")
        if not self.is_closed_form:
            return Validity(None, None, "learned scores carry no density to integrate")
        time = torch.tensor(t, dtype=torch.float64)
        parts = [self.distribution(name) for name in self.exponents]
        exponents = list(self.exponents.values())
        return composition_validity(parts, exponents, self.schedule.alpha(time), self.schedule.sigma(time))

    def _check_points(self, x: Tensor) -> None:
        """Check that x holds points of this composition, and that there is one."""
        if not self.exponents:
            raise CompositionError("a composition must have a factor; got exponents that all cancel.")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"x must be a tensor of floating-point numbers; got {kind}. Convert it: x.float().")
        if tuple(x.shape[x.ndim - len(self.event) :]) != tuple(self.event):
            raise ArgumentError(f"x must have points of shape {self.event} last; got {tuple(x.shape)}. Reshape it.")

    def _time(self, t: Tensor | float, x: Tensor) -> Tensor:
        """Return `t` as a tensor like x; event axes of length 1 are dropped, an infinite drift at 1 avoided."""
        time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
        if not bool(((time >= 0) & (time <= 1)).all()):
            raise ArgumentError(f"t must lie in [0, 1]; got {time.min().item():g} to {time.max().item():g}.")
        if time.ndim == x.ndim and time.shape[-len(self.event) :].numel() == 1:
            time = time.reshape(time.shape[: -len(self.event)])
        return time.clamp_max(T_MAX) if self.schedule.ends_in_pure_noise else time


def _leaves(member: Any) -> list[Any]:
    """The models behind one member; an ensemble has several."""
    return [leaf for inner in member.members for leaf in _leaves(inner)] if isinstance(member, Ensemble) else [member]


def _groups(member: Any) -> list[Any]:
    """The networks behind one member."""
    return [leaf.group for leaf in _leaves(member) if getattr(leaf, "group", None) is not None]


def parse(text: str, family: Family) -> Composition:
    """Return the composition that `text` describes, such as `(a1 * a2)^0.5 / base`."""
    return Composition(family, parse_exponents(text, list(family)))


def base_composition(family: Family, base: str = "base") -> Composition:
    """Return P_0 prod_a P_a / P_0: exponent 1 for every other condition and 1 - (their number) for `base`."""
    if base not in family:
        raise UnknownConditionError(unknown_condition(base, family.members))
    others = [name for name in family if name != base]
    return Composition(family, {**dict.fromkeys(others, 1.0), base: 1.0 - len(others)})


def _finite(value: float) -> float:
    if not is_finite(value):
        raise ArgumentError(f"an exponent must be a finite number; got {shorten(value)}.")
    return float(value)
