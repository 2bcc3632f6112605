"""Sampling about the place of a composition, where W is not 1 and it lies far from the origin.

Data moved by c move every noised density by alpha c, and the path with them. At W = 1 particles follow; at any other W
the balanced move pulls to the origin by -W u, and <u, S> in its rate makes up for that, with a variance that grows with
|c|^2: a Gaussian at 100 of its deviations is lost. So what is known is moved to the origin first, and samples back.
"""

from __future__ import annotations

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


class Centred(NamedTuple):
    """A composition about the origin of its members' coordinates, and the place `(d,)` from which it was moved."""

    q: Composition
    place: Tensor

    def back(self, run: Run) -> Run:
        """Return the run where the composition is; its evidence is the same."""
        particles, reach = self._back(run.particles), run.reach
        if self.q.family.units is not None:  # of the data, which are not where the composition is
            reach = self.q.family.standardise(particles).flatten(0, 1).abs().median(0).values.max().item()
        return replace(run, samples=self._back(run.samples), particles=particles, reach=reach)

    def _back(self, y: Tensor) -> Tensor:
        units = self.q.family.units
        way = self.place if units is None else units.scale.cpu() * self.place
        return (y.double() + way.to(y.device)).to(y.dtype)


def centred(q: Composition) -> Centred | None:
    """Return a composition of distributions moved to the origin; None where it is near, W is 1, or sizes are unknown.

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
    if not bool(place.isfinite().all()) or away.norm().item() <= _FAR:
        return None
    parts = zip(q.exponents, q.factors, q.moments, strict=True)
    return Centred(recomposed(q, {name: _moved(factor, size, -place) for name, factor, size in parts}), place)


def _moved(factor: Distribution, size: tuple[Tensor, Tensor] | None, by: Tensor) -> Distribution:
    """The same distribution elsewhere; a fitted one still knows how well, and one of your own has its name."""
    if isinstance(factor, Fitted):
        return factor.moved(by)
    if (components := components_of(factor)) is not None:
        return mixture_of(components.moved(by))
    kind = _ElsewhereDensity if isinstance(factor, Density) else _Elsewhere
    return type(type(factor).__name__, (kind,), {})(factor, size, by)


class _Elsewhere(Distribution):
    """A distribution moved by so much: noising moves it by alpha times that."""

    def __init__(self, there: Any, size: tuple[Tensor, Tensor], by: Tensor) -> None:
        self.there, self.by, self.dim, self.earliest = there, by, there.dim, there.earliest
        self.size = size[0] + by, size[1]

    def score(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        return self.there.score(self._at(x, alpha), alpha, sigma)

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.size

    def _at(self, x: Tensor, alpha: Scale) -> Tensor:
        return x - torch.as_tensor(alpha).to(x)[..., None] * self.by.to(x)


class _ElsewhereDensity(_Elsewhere, Density):
    def log_prob(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        return self.there.log_prob(self._at(x, alpha), alpha, sigma)
