"""Compositions of fitted mixtures, kept from being improper by chance.

A composition decays along v like rate(v) = sum_a w_a min_k v' P_{a,k} v, a difference of precisions, each known to a
relative sqrt(2 / n). Where the rate is z standard errors, z small or negative, the fit says little more than that it is
positive, which it must be: its mean given that is h(z) = z + phi(z) / Phi(z) errors (a normal cut off at 0). All
variances are moved by as many of their own errors as bring the least rate there, numerators' down and denominators' up.
Single Gaussians whose rate is further below 0 than chance could bring it are left as they are: samplers refuse them.

Mixtures may be improper by more than chance: where data are curved, a numerator has a wide component that the
denominator lacks, and far out their ratio grows. No data speak there. So denominators get what one more point could
give them: a wide Gaussian with the weight of one point, wide enough that the composition decays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.algebra.base import recomposed
from polyscore.algebra.composition import Composition
from polyscore.algebra.validity.forms import fan, values_of
from polyscore.models.fitted import Fitted
from polyscore.notices import warn

_SURE = 2.0  # errors from which the cut is not felt
_MOST = 64.0  # errors by which anything is moved
_CHANCE = 4.0  # errors beyond which a direction is improper by more than chance
_WIDEST = 2.0**20  # times a denominator's covariance


def proper(q: Composition) -> Composition:
    """Return a composition of fitted mixtures that is safely proper: `q` itself where it is, or is not fitted."""
    factors = [factor for factor in q.factors if isinstance(factor, Fitted)]
    if len(factors) < len(q.exponents) or not factors or min(q.exponents.values()) > 0:
        return q
    exponents = list(q.exponents.values())
    single, z = all(factor.components.count == 1 for factor in factors), certainty(factors, exponents, 0.0)
    if z >= _SURE:
        return q if single or q.validity().proper is not False else _with_tails(q, factors)
    if single and z < -chance(len(factors[0].components.means[0])):
        return q  # improper, and not by chance: samplers say so
    moved = _least_move(factors, exponents, expected(z))
    other = _composed(q, [factor.widened(-math.copysign(moved, w))
                          for factor, w in zip(factors, exponents, strict=True)])  # fmt: skip
    if not single and (moved > _CHANCE or other.validity().proper is False):
        return _with_tails(q, factors) if q.validity().proper is not True else q
    warn(
        f"a composition of fits should be proper beyond doubt; that of {q!r} is {z:.2g} standard errors from not being "
        f"so. Variances were moved by {moved:.2g} of theirs to what is most likely of a proper one; take more data"
        + ("." if z > -_SURE else ", which may well say that there is no such density.")
    )
    return other


def _composed(q: Composition, factors: Sequence[Fitted]) -> Composition:
    """The composition of other factors, with the same exponents."""
    return recomposed(q, dict(zip(q.exponents, factors, strict=True)))


def _with_tails(q: Composition, factors: Sequence[Fitted]) -> Composition:
    """The composition whose denominators have one point's worth of a Gaussian that is wide enough, if any is."""
    wide = 1.0
    while not (other := _denominators_with(q, factors, wide)).validity().proper:
        wide *= 2
        if wide > _WIDEST:
            return q  # as improper as it was: samplers say so
    warn(
        f"fits should fall off alike; those of {q!r} do not, and far from all data the composition grows. Its "
        f"denominators were given one point's worth of a Gaussian of {wide:g} times their covariance. Trust no sample "
        "far from the data; compare with Denoise, which hardly feels it."
    )
    return other


def _denominators_with(q: Composition, factors: Sequence[Fitted], wide: float) -> Composition:
    return _composed(q, [factor.with_tail(wide) if w < 0 else factor
                         for factor, w in zip(factors, q.exponents.values(), strict=True)])  # fmt: skip


def expected(z: float) -> float:
    """Return the mean of a standard normal about z, given that it is positive."""
    if z < -8:  # where both are tiny: the asymptotic series of their ratio
        return -1 / z + 2 / z**3
    below = 0.5 * math.erfc(-z / math.sqrt(2))
    return z + math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / below


def chance(dim: int) -> float:
    """Return how many errors below 0 the least rate may be by chance, in so many dimensions.

    The least of all directions is asked: eigenvalues of a covariance of n points spread by 2 sqrt(d / n), that is by
    sqrt(2 d) of an eigenvalue's own error sqrt(2 / n).
    """
    return _CHANCE + math.sqrt(2 * dim)


def certainty(factors: Sequence[Fitted], exponents: Sequence[float], moved: float) -> float:
    """Return the least rate of decay, with all variances moved by so many errors, over its standard error as it was.

    The error stays that of the fits: one that grew with what is moved would never be outrun where a factor of few
    points leads.
    """
    signs = [math.copysign(1.0, w) for w in exponents]
    scales = [(1 + moved * factor.errors) ** sign for factor, sign in zip(factors, signs, strict=True)]
    directions = _directions(factors, exponents, scales)
    rate, variance = torch.zeros(directions.shape[1], dtype=torch.float64), torch.zeros(directions.shape[1])
    for factor, w, scale in zip(factors, exponents, scales, strict=True):
        forms = values_of(factor.components.precisions, directions)
        least, where = forms.min(0)
        rate = rate + w * (scale[:, None] * forms).amin(0)
        variance = variance + (w * factor.errors[where] * least).square()
    return (rate / variance.sqrt()).min().item()


def _directions(factors: Sequence[Fitted], exponents: Sequence[float], scales: Sequence[Tensor]) -> Tensor:
    """Columns `(d, n)` along which rates are looked at: all around, and the axes of the widest components' sum.

    Moving turns these axes where factors stand on unequally many points, and no fan finds them in many dimensions.
    """
    places = [int(factor.components.variances.amax(-1).argmax()) for factor in factors]
    widest = [factor.components.precisions[k] for factor, k in zip(factors, places, strict=True)]
    moved = [scale[k] * form for scale, k, form in zip(scales, places, widest, strict=True)]
    axes = [torch.linalg.eigh(sum(w * form for w, form in zip(exponents, forms, strict=True))).eigenvectors
            for forms in (widest, moved)]  # fmt: skip
    return torch.cat([*axes, fan(len(widest[0]))], 1)


def _least_move(factors: Sequence[Fitted], exponents: Sequence[float], wanted: float) -> float:
    """The fewest errors for which the rate is as certain as wanted, by bisection."""
    low, high = 0.0, 1.0
    while certainty(factors, exponents, high) < wanted and high < _MOST:
        high *= 2
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if certainty(factors, exponents, middle) < wanted else (low, middle)
    return high
