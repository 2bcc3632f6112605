"""Families of conditions and the algebra over them: `p["a"] * p["b"] / p["base"]`.

A composition is a map from conditions to exponents w_a. It stands for the density proportional to prod_a P_a^{w_a},
and at noise level t for the path prod_a P_{a,t}^{w_a}, whose score is S = sum_a w_a s_a. With u the noising drift and
eta the diffusion, particles that move by b = -W u + (eta^2 + nu^2) S / 2 carry the log-weight rate

    residual = (1 - W) <u, S> + (eta^2 / 2) (|S|^2 - sum_a w_a |s_a|^2),        W = sum_a w_a.

Members may live in standardised coordinates, x = (y - shift) / scale of the data y. Outside, everything is in the
data's units: at noise level t a point means y = shift + scale x_t, so a score is that in x over scale, a log-density
that in x less log prod scale, and the residual, a rate, the same number. Samplers compute in x (`standard_scores`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from polyscore.checkpoints import Checkpoint, with_suffix, write_checkpoint
from polyscore.devices import without_autocast
from polyscore.distributions import Distribution
from polyscore.distributions.learned import (
    Ensemble,
    Learned,
    ModelError,
    Units,
    common_networks,
    common_units,
    network_conditions,
    per_unit,
    standard_score,
    standardise,
)
from polyscore.errors import (
    ArgumentError,
    CompositionError,
    PolyscoreError,
    ScoreError,
    UnknownConditionError,
    check_conditions,
    is_finite,
    require,
    shorten,
)
from polyscore.expressions import SMALLEST, Exponents, parse_exponents, quoted, unknown_condition
from polyscore.notices import warn
from polyscore.outputs import check_model
from polyscore.schedules import T_MAX, VP, Schedule, check_consistent
from polyscore.scores import combine, spread
from polyscore.validity import Validity, composition_validity


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

BASES = ("control", "ctrl", "base")  # what people call the condition that the others are compared with
_MOST_SHOWN, _MOST_FACTORS = 12, 24  # conditions and factors in a repr


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
            shown = [f"  {_listed(names)}: {kinds.pop()}"]
        elif len(shown) > _MOST_SHOWN:
            shown = [*shown[: _MOST_SHOWN - 1], f"  ... and {len(names) - _MOST_SHOWN + 1} more"]
        head = f"Family of {len(names)} condition{'s' * (len(names) > 1)}, event {self.event}, {self.schedule}"
        if self.names:
            head += f"\n  variables: {_listed(self.names)}"
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
        if isinstance(member, Distribution):
            return member.score(x, self.schedule.alpha(t), self.schedule.sigma(t))
        try:
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
        factors = [(quoted(name), value) for name, value in self._exponents.items()]
        shown = [f"{name}^{value:g}" if value != 1 else name for name, value in factors[:_MOST_FACTORS]]
        more = [f"... ({len(factors)} factors)"] if len(factors) > _MOST_FACTORS else []
        return " * ".join(shown + more) or "1"

    def scores(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the factors' scores, `(A, *x.shape)`, in the order of `conditions`, in the data's units."""
        x = self._standard_points(x)
        return per_unit(self._standard_scores(x, self._time(t, x)), self.family.units)

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return S = sum_a w_a s_a, like x.

        Args:
            x: `(..., *event)`, in the data's units: shift + scale x_t where members are standardised.
            t: time in [0, 1], scalar or broadcastable to x's batch shape.
        """
        return combine(self.scores(x, t), list(self.exponents.values()))

    def residual(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the log-weight rate per unit of reverse time, `(...)`: 0 for a single condition."""
        x = self._standard_points(x)
        t = self._time(t, x)
        scores, exponents = self._standard_scores(x, t), list(self.exponents.values())
        axes = tuple(range(-len(self.event), 0))
        rate = 0.5 * self.schedule.diffusion(t) ** 2 * spread(scores, exponents, len(self.event))
        if self.total == 1:
            return rate
        return rate + (1 - self.total) * self.schedule.drift(t) * (x * combine(scores, exponents)).sum(axes)

    def log_density(self, x: Tensor, t: Tensor | float = 0.0) -> Tensor:
        """Return sum_a w_a log P_{a,t}(x), unnormalised, `(...)`; closed-form members only."""
        x = self._standard_points(x)
        t = self._time(t, x)
        alpha, sigma = self.schedule.alpha(t), self.schedule.sigma(t)
        with without_autocast(x.device):
            terms = [w * self.distribution(name).log_prob(x, alpha, sigma) for name, w in self.exponents.items()]
        return torch.stack(terms).sum(0) - self.total * self.family.log_scale

    def _standard_scores(self, x: Tensor, t: Tensor) -> Tensor:
        if not self.exponents:
            raise CompositionError("a composition must have a factor; got exponents that all cancel.")
        with without_autocast(x.device):
            return self.family.standard_scores(x, t, self.conditions)

    def _standard_points(self, x: Tensor) -> Tensor:
        self._check_points(x)
        return self.family.standardise(x)

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
            raise ArgumentError(
                f"x must be a tensor of floating-point numbers; got {kind}. Convert it: torch.as_tensor(x).float()."
            )
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


def base_composition(family: Family, base: str | None = None) -> Composition:
    """Return P_0 prod_a P_a / P_0: exponent 1 for every other condition and 1 - (their number) for the base.

    Args:
        base: the condition P_0; by default the one that is called control, ctrl or base. The composition's text says
            which it is.
    """
    base = _base_of(family) if base is None else base
    if base not in family:
        raise UnknownConditionError(unknown_condition(base, family.members))
    others = [name for name in family if name != base]
    return Composition(family, {**dict.fromkeys(others, 1.0), base: 1.0 - len(others)})


def _base_of(family: Family) -> str:
    """The one condition that is called like a base, in whatever case."""
    found = [name for name in family if name.strip().lower() in BASES]
    if len(found) != 1:
        among = f"{len(found)} of them: {_listed(found)}" if found else f"the conditions {_listed(list(family))}"
        raise UnknownConditionError(
            f"a family must have one condition called {', '.join(BASES[:-1])} or {BASES[-1]} to know its base; got "
            f"{among}. Name it: base_composition(family, base={(found or list(family))[0]!r})."
        )
    return found[0]


def _listed(names: Sequence[str], most: int = _MOST_SHOWN) -> str:
    """Names for a message: the first few, and how many more there are."""
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _finite(value: float) -> float:
    if not is_finite(value):
        raise ArgumentError(f"an exponent must be a finite number; got {shorten(value)}.")
    return float(value)
