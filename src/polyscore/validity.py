"""Theorem 1: when a weighted composition can be normalised.

For Gaussians, exactly when Lambda = sum_a w_a cov_a^-1 is positive definite. A mixture decays along a unit direction v
like its widest component there: rate_a(v) = min_k v' cov_{a,k}^-1 v. The composition is integrable if
sum_a w_a rate_a(v) > 0 in every direction, and is not if it is negative in one (a cone around it then diverges).
Between the two, where the least rate is zero or cannot be bounded, the honest answer is "cannot tell".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.distributions.components import components_of, weights_of
from polyscore.distributions.distribution import Distribution
from polyscore.errors import ImproperError

_ZERO = 1e-10
_MOST_CHOICES = 4096


@dataclass(frozen=True)
class Validity:
    """An answer to "can it be normalised?": `proper` is True, False or None (cannot tell)."""

    proper: bool | None
    direction: tuple[float, ...] | None
    reason: str

    def __bool__(self) -> bool:
        return self.proper is True

    def require(self, subject: str) -> None:
        """Raise `ImproperError` when the answer is no."""
        if self.proper is False:
            raise ImproperError(
                f"a composition must be normalisable; got {subject}, and {self.reason}. "
                "Lower the negative exponents, raise the positive ones, or choose a wider base."
            )


def composition_validity(
    parts: Sequence[Distribution], exponents: Sequence[float], alpha: Tensor, sigma: Tensor
) -> Validity:
    """Return the validity of prod_a parts_a^{w_a} after noising by (alpha, sigma)."""
    if not parts:
        return Validity(False, None, "it is constant: all its exponents cancel")
    precisions = [_distinct(components_of(part).precision_at(alpha, sigma)[weights_of(part) > 0]) for part in parts]
    # Definiteness does not depend on the units of the coordinates, but rounding does: give every axis the scale 1.
    axes = _axis_scales(precisions, exponents)
    direction, own_rate = _worst_direction(precisions, exponents)
    precisions = [axes[:, None] * precision * axes for precision in precisions]
    scaled, rate = _worst_direction(precisions, exponents)
    if own_rate >= 0:
        direction = _unit(axes * torch.tensor(scaled, dtype=torch.float64))
    if rate < -_ZERO:
        return Validity(False, direction, f"its density grows along {_show(direction)}")
    if _bounded_below(precisions, exponents, _ZERO):
        return Validity(True, None, "it decays in every direction")
    if rate <= _ZERO and all(len(precision) == 1 for precision in precisions) and _gaussians(parts):
        return Validity(False, direction, f"its density does not decay along {_show(direction)}")
    return Validity(
        None, direction, f"its tails could not be bounded; the slowest decay found is along {_show(direction)}"
    )


def _axis_scales(precisions: Sequence[Tensor], exponents: Sequence[float]) -> Tensor:
    """Return s with sum_a |w_a| max_k (s P_k s) of unit diagonal."""
    pairs = zip(precisions, exponents, strict=True)
    diagonals = [abs(w) * precision.diagonal(dim1=-2, dim2=-1).amax(0) for precision, w in pairs]
    return torch.stack(diagonals).sum(0).rsqrt()


def _unit(direction: Tensor) -> tuple[float, ...]:
    return tuple((direction / direction.norm()).tolist())


def _gaussians(parts: Sequence[Distribution]) -> bool:
    return all(components_of(part).count == 1 for part in parts)


def _distinct(precisions: Tensor) -> Tensor:
    """Return the different precisions of a mixture, `(M', d, d)`: components of equal shape have equal tails."""
    kept: list[Tensor] = []
    for precision in precisions:
        if not any(torch.allclose(precision, other, rtol=1e-12, atol=0) for other in kept):
            kept.append(precision)
    return torch.stack(kept)


def _rates(precisions: Sequence[Tensor], exponents: Sequence[float], directions: Tensor) -> Tensor:
    """Return sum_a w_a min_k v' P_k v for unit columns v, `(d, n) -> (n,)`."""
    total = torch.zeros(directions.shape[1], dtype=directions.dtype)
    for precision, exponent in zip(precisions, exponents, strict=True):
        quadratic = torch.einsum("dn,kde,en->kn", directions, precision, directions)
        total += exponent * quadratic.amin(0)
    return total


def _choices(precisions: Sequence[Tensor]) -> Iterator[tuple[int, ...]]:
    return itertools.islice(itertools.product(*(range(len(p)) for p in precisions)), _MOST_CHOICES)


def _pencil(precisions: Sequence[Tensor], exponents: Sequence[float], choice: Sequence[int]) -> Tensor:
    """Lambda for one choice of component per condition."""
    return sum((w * p[k] for w, p, k in zip(exponents, precisions, choice, strict=True)), torch.zeros(()))


def _worst_direction(precisions: Sequence[Tensor], exponents: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Search for the slowest decay: eigenvectors of every Lambda, a fan in the plane, random directions beyond."""
    dim = precisions[0].shape[-1]
    candidates = [
        torch.linalg.eigh(_pencil(precisions, exponents, choice)).eigenvectors for choice in _choices(precisions)
    ]
    if any(len(precision) > 1 for precision in precisions):
        candidates.append(_fan(dim))
    directions = torch.cat(candidates, dim=1)
    rates = _rates(precisions, exponents, directions)
    worst = int(rates.argmin())
    return tuple(directions[:, worst].tolist()), rates[worst].item()


def _fan(dim: int) -> Tensor:
    if dim == 2:
        angles = torch.arange(3600, dtype=torch.float64) * (math.pi / 3600)
        return torch.stack([angles.cos(), angles.sin()])
    normals = torch.randn(dim, 4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return normals / normals.norm(dim=0)


def _bounded_below(precisions: Sequence[Tensor], exponents: Sequence[float], margin: float) -> bool:
    """Prove integrability: for every choice of positive-exponent components some choice of the others decays.

    -|w| min_k v'P_k v is at least -|w| v'P_k v for each single k, so one good k suffices.
    """
    positive = [i for i, w in enumerate(exponents) if w > 0]
    negative = [i for i, w in enumerate(exponents) if w <= 0]
    counts = [math.prod(len(precisions[i]) for i in group) for group in (positive, negative)]
    if math.prod(counts) > _MOST_CHOICES:
        return False
    for chosen in itertools.product(*(range(len(precisions[i])) for i in positive)):
        fixed = dict(zip(positive, chosen, strict=True))
        others = itertools.product(*(range(len(precisions[i])) for i in negative))
        complete = (fixed | dict(zip(negative, other, strict=True)) for other in others)
        if not any(_definite(precisions, exponents, choice, margin) for choice in complete):
            return False
    return True


def _definite(precisions: Sequence[Tensor], exponents: Sequence[float], choice: dict[int, int], margin: float) -> bool:
    pencil = _pencil(precisions, exponents, [choice[i] for i in range(len(precisions))])
    return bool(torch.linalg.eigvalsh(pencil)[0] > margin)


def _show(direction: Sequence[float]) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in direction) + ")"
