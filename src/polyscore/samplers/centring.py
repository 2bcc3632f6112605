"""Sampling about the place of a composition and in units of its size, where W is not 1 and these are not 0 and 1.

Data moved by c move every noised density by alpha c, and the path with them. At W = 1 particles follow; at any other W
the balanced move pulls to the origin by -W u, and <u, S> in its rate makes up for that, with a variance that grows with
|c|^2: a Gaussian at 100 of its deviations is lost. So what is known is moved to the origin first, and samples back.

Likewise the rate is 0 where sources are as wide as the noise, N(0, I), and at W = 2 the weights of N(0, 10^4 I) are
lost on the way from noise to data. So sources are divided by their size before. With x = place + size y, Z is that of y
times size^(d (1 - W)).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.base import recomposed
from polyscore.distributions import Density, Distribution, mixture_of
from polyscore.distributions.components import components_of
from polyscore.distributions.distribution import Scale
from polyscore.models.fitted import Fitted
from polyscore.samplers.run import Run
from polyscore.samplers.starts import product_at

_FAR = 2.0  # deviations of the composition from the origin, up to which it is left where it is
_UNIT = 2.0  # size over 1, or 1 over it, up to which sources are left as wide as they are


class Centred(NamedTuple):
    """A composition about the origin of its members' coordinates, the place `(d,)` and the size that it had."""

    q: Composition
    place: Tensor
    size: float

    def back(self, run: Run) -> Run:
        """Return the run where the composition is, and as wide."""
        particles, reach = self._back(run.particles), run.reach
        if self.q.family.units is not None:  # of the data, which are not where the composition is
            reach = self.q.family.standardise(particles).flatten(0, 1).abs().median(0).values.max().item()
        volume = (1 - self.q.total) * len(self.place) * math.log(self.size)
        return replace(run, samples=self._back(run.samples), particles=particles, reach=reach,
                       log_evidence=run.log_evidence + volume)  # fmt: skip

    def _back(self, y: Tensor) -> Tensor:
        units = self.q.family.units
        way = self.place if units is None else units.scale.cpu() * self.place
        return (self.size * y.double() + way.to(y.device)).to(y.dtype)


def centred(q: Composition) -> Centred | None:
    """Return a composition of distributions at the origin and about 1 wide; None where it is, W is 1, or sizes unknown.

    Bent coordinates stay: beyond their middle they go on straight, and another middle would be another bend.
    """
    known = q.is_closed_form and q.is_sized and len(q.event) == 1
    if q.total == 1 or q.total <= 0 or q.family.is_bent or not known:
        return None
    found = product_at(q, torch.zeros((), dtype=torch.float64))
    if found is None:
        return None
    place, root, _ = found
    away = place / root if root.ndim == 1 else torch.linalg.solve(root.mT, place)
    far, size = away.norm().item() > _FAR, _size(q)
    if not bool(place.isfinite().all()) or not (far or size != 1):
        return None
    place = place if far else torch.zeros_like(place)
    parts = zip(q.exponents, q.factors, q.moments, strict=True)
    members = {name: _moved(factor, moments, -place, size) for name, factor, moments in parts}
    return Centred(recomposed(q, members), place, size)


def _size(q: Composition) -> float:
    """Return the middle of the logs of the sources' deviations, each by its exponent; 1 where it is near, or in units.

    A mixture is as wide as it is as a whole: its parts come apart late, and weights are gathered before.
    """
    if q.family.units is not None or any(factor.earliest > 0 for factor in q.factors):
        return 1.0
    powers, widths = [abs(w) for w in q.exponents.values()], list[float]()
    for _, cov in filter(None, q.moments):
        values = cov if cov.ndim == 1 else torch.linalg.eigvalsh(cov)
        widths.append(0.5 * values.clamp_min(torch.finfo(values.dtype).tiny).log().mean().item())
    size = math.exp(sum(w * width for w, width in zip(powers, widths, strict=True)) / sum(powers))
    return size if not 1 / _UNIT <= size <= _UNIT else 1.0


def _moved(factor: Distribution, moments: tuple[Tensor, Tensor] | None, by: Tensor, size: float) -> Distribution:
    """The distribution of (x + by) / size; a fitted one still knows how well, and one of your own has its name."""
    if isinstance(factor, Fitted):
        return factor.moved(by, size)
    if (components := components_of(factor)) is not None:
        return mixture_of(components.moved(by, size))
    kind = _ElsewhereDensity if isinstance(factor, Density) else _Elsewhere
    return type(type(factor).__name__, (kind,), {})(factor, moments, by, size)


class _Elsewhere(Distribution):
    """The distribution of y = (x + by) / size: alpha y + sigma z is alpha x + size sigma z, moved and divided."""

    def __init__(self, there: Any, moments: tuple[Tensor, Tensor], by: Tensor, size: float) -> None:
        self.there, self.by, self.size, self.dim, self.earliest = there, by, size, there.dim, there.earliest
        self.own = (moments[0] + by) / size, moments[1] / size**2

    def score(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        return self.size * self.there.score(self._at(x, alpha), alpha, self.size * sigma)

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.own

    def _at(self, x: Tensor, alpha: Scale) -> Tensor:
        return self.size * x - torch.as_tensor(alpha).to(x)[..., None] * self.by.to(x)


class _ElsewhereDensity(_Elsewhere, Density):
    def log_prob(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        own = self.there.log_prob(self._at(x, alpha), alpha, self.size * sigma)
        return own + self.dim * math.log(self.size)
