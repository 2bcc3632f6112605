"""A product of powers of conditions.

A composition is a map from conditions to exponents w_a. It stands for the density proportional to prod_a P_a^{w_a},
and at noise level t for the path prod_a P_{a,t}^{w_a}, whose score is S = sum_a w_a s_a. With u the noising drift and
eta the diffusion, particles that move by b = -W u + (eta^2 + nu^2) S / 2 carry the log-weight rate

    residual = (1 - W) <u, S> + (eta^2 / 2) (|S|^2 - sum_a w_a |s_a|^2),        W = sum_a w_a.

Members may live in standardised coordinates, x = (y - shift) / scale of the data y. Outside, everything is in the
data's units: at noise level t a point means y = shift + scale x_t, so a score is that in x over scale, a log-density
that in x less log prod scale, and the residual, a rate, the same number. Samplers compute in x (`standard_scores`).
Bent coordinates (`polyscore.models.bend`) are the same with a slope that differs from point to point.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyscore.algebra import factors
from polyscore.algebra.expressions import SMALLEST, Exponents, quoted, unknown_condition
from polyscore.algebra.scores import combine, excess
from polyscore.algebra.validity import Validity, mixture_validity, path_validity, unknown_validity
from polyscore.devices import on_cpu_by_default, without_autocast
from polyscore.distributions import Density, Distribution
from polyscore.distributions.components import Components, components_of
from polyscore.distributions.distribution import Scale
from polyscore.errors import ArgumentError, CompositionError, UnknownConditionError, is_finite, shorten
from polyscore.schedules import T_MAX, Schedule

if TYPE_CHECKING:
    from polyscore.algebra.family import Family

_MOST_FACTORS = 24  # in a repr


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
    def is_tilted(self) -> bool:
        """Whether it is another one in bent coordinates, by |dy/dx|^(1 - W): where there are such, and W is not 1."""
        return self.family.is_bent and abs(self.total - 1) > 1e-9

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
            raise ArgumentError(f"a power must be a finite number; got {shorten(power)}. Write q ** 0.5.")
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
        with on_cpu_by_default():
            x = self._standard_points(x)
            return self.family.per_unit(self._standard_scores(x, self._time(t, x)), x)

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return S = sum_a w_a s_a, like x.

        Args:
            x: `(..., *event)`, in the data's units: shift + scale x_t where members are standardised.
            t: time in [0, 1], scalar or broadcastable to x's batch shape.
        """
        return combine(self.scores(x, t), list(self.exponents.values()))

    def residual(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the log-weight rate per unit of reverse time, `(...)`: 0 for a single condition."""
        with on_cpu_by_default():
            x = self._standard_points(x)
            t = self._time(t, x)
            scores, exponents = self._standard_scores(x, t), list(self.exponents.values())
            rate = 0.5 * self.schedule.diffusion(t) ** 2 * excess(scores, exponents, len(self.event))
            if self.total == 1:
                return rate
            along = (x * combine(scores, exponents)).sum(tuple(range(-len(self.event), 0)))
            return rate + (1 - self.total) * self.schedule.drift(t) * along

    def log_density(self, x: Tensor, t: Tensor | float = 0.0) -> Tensor:
        """Return sum_a w_a log P_{a,t}(x), unnormalised, `(...)`; where all have a density."""
        x = self._standard_points(x)
        t = self._time(t, x)
        alpha, sigma = self.schedule.alpha(t), self.schedule.sigma(t)
        with without_autocast(x.device), on_cpu_by_default():
            return self.standard_log_density(x, alpha, sigma) - self.total * self.family.log_volume(x)

    def standard_log_density(self, x: Tensor, alpha: Scale, sigma: Scale) -> Tensor:
        """Return sum_a w_a log P_a of the members themselves, noised by (alpha, sigma), in their own coordinates."""
        terms = [factors.log_prob(name, self.density(name), x, alpha, sigma) for name in self.exponents]
        return factors.product(terms, list(self.exponents.values()))

    def _standard_scores(self, x: Tensor, t: Tensor) -> Tensor:
        if not self.exponents:
            raise CompositionError("a composition must have a factor; got exponents that all cancel. Change one.")
        with without_autocast(x.device):
            return self.family.standard_scores(x, t, self.conditions)

    def _standard_points(self, x: Tensor) -> Tensor:
        self._check_points(x)
        return self.family.standardise(x)

    # What is known of the factors: whoever wants to know asks here.

    @property
    def factors(self) -> list[Any]:
        """The family's members behind the conditions, in their order."""
        return [self.family.members[name] for name in self.exponents]

    @property
    def is_closed_form(self) -> bool:
        """Whether every factor's noised score is known, not learned."""
        return all(isinstance(factor, Distribution) for factor in self.factors)

    @property
    def has_density(self) -> bool:
        """Whether every factor's noised density is known too."""
        return all(isinstance(factor, Density) for factor in self.factors)

    @cached_property
    def mixtures(self) -> list[Components] | None:
        """The Gaussian components of every factor, or None where one is no Gaussian mixture."""
        found = [components for factor in self.factors if (components := components_of(factor)) is not None]
        return found if len(found) == len(self.exponents) else None

    @property
    def moments(self) -> list[tuple[Tensor, Tensor] | None]:
        """Mean and covariance of every factor, in its own coordinates; None for one that does not say."""
        return [factors.moments(name, self.family.members[name]) for name in self.exponents]

    @property
    def is_sized(self) -> bool:
        """Whether mean and covariance of every factor are known."""
        return self.mixtures is not None or all(pair is not None for pair in self.moments)

    @property
    def is_gaussian(self) -> bool:
        """Whether every factor is a Gaussian, a mixture of one too."""
        return self.mixtures is not None and all(components.count == 1 for components in self.mixtures)

    def distribution(self, name: str) -> Distribution:
        """Return the distribution behind a condition, or say that it has none."""
        member = self.family.members[name]
        if not isinstance(member, Distribution):
            raise CompositionError(
                f"condition {name!r} must have a closed form here; got a learned model. Fit with kind='mixture'."
            )
        return member

    def density(self, name: str) -> Density:
        """Return the density behind a condition, or say that it has none."""
        member = self.distribution(name)
        if not isinstance(member, Density):
            raise CompositionError(
                f"condition {name!r} must have a density here; got {type(member).__name__}, which has a score alone. "
                "Write its log_prob(x, alpha, sigma), and let it be a ps.Density."
            )
        return member

    def require_mixtures(self, subject: str) -> list[Components]:
        """Return `mixtures`, or say which factor is none."""
        if self.mixtures is not None:
            return self.mixtures
        for name in self.exponents:
            if components_of(self.density(name)) is None:
                raise CompositionError(
                    f"{subject} must be of Gaussians or mixtures of them; got condition {name!r}, a "
                    f"{type(self.density(name)).__name__}. Leave method=None, or use FeynmanKac."
                )
        return []

    def validity(self, t: float = 0.0) -> Validity:
        """Return whether the density at noise level `t` can be normalised: yes, no, or cannot tell."""
        if not 0 <= t <= 1:
            raise ArgumentError(f"t must lie in [0, 1]; got {t}. 0 is the data, 1 the noise.")
        if not self.exponents:
            return Validity(False, None, "it is constant: all its exponents cancel")
        if not self.is_closed_form:
            return Validity(None, None, "learned scores carry no density to integrate", learned=True)
        with on_cpu_by_default():
            time, mixtures = torch.tensor(t, dtype=torch.float64), self.mixtures
            alpha, sigma = self.schedule.alpha(time), self.schedule.sigma(time)
            exponents = list(self.exponents.values())
            if mixtures is not None:
                return mixture_validity(mixtures, exponents, alpha, sigma)
            mixed = [components_of(factor) is not None for factor in self.factors]
            return unknown_validity(self.conditions, exponents, mixed, noised=bool(sigma > 0))

    def path_validity(self) -> tuple[float, Validity]:
        """Return the time at which the path of mixtures decays slowest for its scale, and its validity there."""
        return path_validity(self.require_mixtures("the path"), list(self.exponents.values()), self.schedule)

    def _check_points(self, x: Tensor) -> None:
        """Check that x holds points of this composition, and that there is one."""
        if not self.exponents:
            raise CompositionError("a composition must have a factor; got exponents that all cancel. Change one.")
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(
                f"x must be a tensor of floating-point numbers; got {kind}. Convert it: torch.as_tensor(x).float()."
            )
        if tuple(x.shape[x.ndim - len(self.event) :]) != tuple(self.event):
            raise ArgumentError(f"x must have points of shape {self.event} last; got {tuple(x.shape)}. Reshape it.")

    def _time(self, t: Tensor | float, x: Tensor) -> Tensor:
        """Return `t` as a tensor like x; event axes of length 1 are dropped, an infinite drift at 1 avoided."""
        try:
            time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"t must be a number or a tensor of them; got {shorten(t)}. 0.5, say.") from error
        if not bool(((time >= 0) & (time <= 1)).all()):
            raise ArgumentError(
                f"t must lie in [0, 1]; got {time.min().item():g} to {time.max().item():g}. 0 is the data, 1 the noise."
            )
        if time.ndim == x.ndim and time.shape[-len(self.event) :].numel() == 1:
            time = time.reshape(time.shape[: -len(self.event)])
        return time.clamp_max(T_MAX) if self.schedule.ends_in_pure_noise else time


def _finite(value: float) -> float:
    if not is_finite(value):
        raise ArgumentError(f"an exponent must be a finite number; got {shorten(value)}. Write 0.5, say.")
    return float(value)
