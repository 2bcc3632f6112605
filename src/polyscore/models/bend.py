"""Standardised coordinates that are bent: skewed data made nearly Gaussian by one monotone map a coordinate.

All conditions share the map, so that it commutes with composing where W = 1: with z = f(y) and p_a(y) = r_a(z) f'(y),

    prod_a p_a(y)^{w_a} = f'(y)^W prod_a r_a(z)^{w_a},

which is the composition of the r_a seen in y. At any other W a factor f'(y)^{W - 1} is left, in z: samplers with
weights put it there at the end (`polyscore.samplers.collect`), others warn.

f is Yeo and Johnson's power (2000) of x = (y - shift) / scale, brought to mean 0 and deviation 1: with |x| = a, and e
the power where x > 0, 2 less the power where x < 0, it is sign(x) ((1 + a)^e - 1) / e. A power of 1 is straight, 0 a
logarithm of large x, 2 one of large -x. Beyond eight deviations f goes on straight: its slope is bounded, so that bent
compositions can be normalised where straight ones can, whatever W, and no stray becomes infinite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyscore.errors import CompositionError, in_a_row, listed, shorten
from polyscore.models.units import Units

_REACH = 8.0  # deviations beyond which a bend goes on straight
_LEAST = 1e-12  # an exponent that is as good as 0


class Bend(NamedTuple):
    """z = (power of x - centre) / width, for each coordinate; all are like one point, in float64."""

    power: Tensor
    centre: Tensor
    width: Tensor

    def bent(self, x: Tensor) -> Tensor:
        """Return z of x, both float64."""
        inner = self._inside(x)
        return (
            powered(inner, self.power) - self.centre + log_slope(inner, self.power).exp() * (x - inner)
        ) / self.width

    def straight(self, z: Tensor) -> Tensor:
        """Return x of z, the inverse of `bent`."""
        inner = z.clamp(-_REACH, _REACH)
        x = _inverse(self.centre + self.width * inner, self.power)
        return x + self.width * (z - inner) * (-log_slope(x, self.power)).exp()

    def log_slope(self, x: Tensor) -> Tensor:
        """Return log dz/dx of each coordinate, like x."""
        return log_slope(self._inside(x), self.power) - self.width.log()

    def turning(self, x: Tensor) -> Tensor:
        """Return d/dx log dz/dx of each coordinate, like x; 0 where the bend goes on straight."""
        return torch.where(x == self._inside(x), (self.power - 1) / (1 + x.abs()), torch.zeros_like(x))

    def _inside(self, x: Tensor) -> Tensor:
        ends = (_inverse(self.centre + side * self.width, self.power) for side in (-_REACH, _REACH))
        return x.clamp(*ends)


class Bent(Units):
    """Units with a bend: members live in z = bend((y - shift) / scale) of the data y."""

    bend: Bend

    def __new__(cls, shift: Tensor, scale: Tensor, bend: Iterable[Tensor]) -> Bent:
        parts = Bend(*(part.to("cpu", torch.float64) for part in bend))
        good = all(part.shape == shift.shape and bool(part.isfinite().all()) for part in parts)
        if not good or not bool(((parts.power >= 0) & (parts.power <= 2) & (parts.width > 0)).all()):
            raise CompositionError(
                f"a bend must be (power, centre, width), each {tuple(shift.shape)}, powers in [0, 2], widths positive; "
                f"got {shorten([part.tolist() for part in parts])}. Let fit(bend=True) choose it."
            )
        self = super().__new__(cls, shift, scale)
        self.bend = parts
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.bend)

    @property
    def is_bent(self) -> bool:
        return True

    @property
    def bent_columns(self) -> int:
        """How many coordinates are not straight."""
        return int((self.bend.power != 1).sum())

    def standardise(self, y: Tensor) -> Tensor:
        return self._bend(y).bent(super().standardise(y.double())).to(y.dtype)

    def restore(self, x: Tensor) -> Tensor:
        return super().restore(self._bend(x).straight(x.double())).to(x.dtype)

    def per_unit(self, scores: Tensor, x: Tensor) -> Tensor:
        """Return scores in z as scores in y: s dz/dy + d/dy log dz/dy, where x are the points z."""
        bend, scale = self._bend(x), self.scale.to(x.device, torch.float64)
        before = bend.straight(x.double())
        return ((scores.double() * bend.log_slope(before).exp() + bend.turning(before)) / scale).to(scores.dtype)

    def log_volume(self, x: Tensor) -> Tensor:
        """Return log |dy/dz| at the points z, `(...)`."""
        bend = self._bend(x)
        logs = self.scale.to(x.device, torch.float64).log() - bend.log_slope(bend.straight(x.double()))
        return logs.sum(tuple(range(-self.scale.ndim, 0))).to(x.dtype)

    def widths(self) -> Tensor:
        slopes = self.bend.log_slope(self.bend.straight(torch.zeros_like(self.bend.power)))
        return self.scale.double() * (-slopes).exp().to(self.scale.device)

    def same(self, other: Units | None) -> bool:
        return isinstance(other, Bent) and super().same(other) and all(map(torch.equal, self.bend, other.bend))

    def described(self, variables: Sequence[str]) -> str:
        powers = zip(variables, self.bend.power.flatten().tolist(), strict=True)
        said = listed([f"{in_a_row(name)} by {power:.2g}" for name, power in powers if power != 1], 12, str)
        return f"standardised, bent ({said})"

    def __str__(self) -> str:
        return f"{super().__str__()}, power {[float(f'{v:.4g}') for v in self.bend.power.flatten()[:4].tolist()]}"

    def _bend(self, x: Tensor) -> Bend:
        return Bend(*(part.to(x.device) for part in self.bend))


def powered(x: Tensor, power: Tensor) -> Tensor:
    """Return Yeo and Johnson's power of x, elementwise; both broadcast."""
    exponent, side = _exponent(x, power), _side(x)
    return side * torch.expm1(exponent * torch.log1p(side * x)) / exponent


def _inverse(v: Tensor, power: Tensor) -> Tensor:
    exponent, side = _exponent(v, power), _side(v)
    return side * torch.expm1(torch.log1p(exponent * side * v) / exponent)


def log_slope(x: Tensor, power: Tensor) -> Tensor:
    """Return the log of the derivative of `powered`."""
    return (_exponent(x, power) - 1) * torch.log1p(_side(x) * x)


def _side(x: Tensor) -> Tensor:
    """-1 below 0, else 1: unlike `sign` and `abs` it leaves a slope at 0 itself, where a data point is."""
    return torch.where(x < 0, -torch.ones_like(x), torch.ones_like(x))


def _exponent(x: Tensor, power: Tensor) -> Tensor:
    """The exponent on this side of 0, never 0 itself: (1 + a)^e - 1 over e is then log(1 + a) to 12 digits."""
    return torch.where(x < 0, 2 - power, power).clamp_min(_LEAST)
