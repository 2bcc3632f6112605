"""Sampling about the place of a composition, where W is not 1 and it lies far from the origin.

Data moved by c move every noised density by alpha c, and the path with them. At W = 1 particles follow; at any other W
the balanced move pulls to the origin by -W u, and <u, S> in its rate makes up for that, with a variance that grows with
|c|^2: a Gaussian at 100 of its deviations is lost. So mixtures are moved to the origin first, and samples back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.base import recomposed
from polyscore.distributions import mixture_of
from polyscore.distributions.components import Components
from polyscore.samplers.run import Run
from polyscore.samplers.starts import product_at

_FAR = 2.0  # deviations of the composition from the origin, up to which it is left where it is


class Centred(NamedTuple):
    """A composition about the origin, and the place `(d,)` from which it was moved."""

    q: Composition
    place: Tensor

    def back(self, run: Run) -> Run:
        """Return the run where the composition is; its evidence is the same."""
        return replace(run, samples=self._back(run.samples), particles=self._back(run.particles))

    def _back(self, x: Tensor) -> Tensor:
        return (x.double() + self.place.to(x.device)).to(x.dtype)


def centred(q: Composition) -> Centred | None:
    """Return a composition of mixtures moved to the origin; None where it is near, W is 1, or sizes are unknown.

    Coordinates that were standardised have their origin among the data already.
    """
    if q.total == 1 or q.total <= 0 or q.family.units is not None or q.mixtures is None:
        return None
    found = product_at(q, torch.zeros((), dtype=torch.float64))
    if found is None:
        return None
    place, root, _ = found
    away = place / root if root.ndim == 1 else torch.linalg.solve(root.mT, place)
    if not bool(place.isfinite().all()) or away.norm().item() <= _FAR:
        return None
    return Centred(recomposed(q, dict(zip(q.conditions, _moved(q.mixtures, place), strict=True))), place)


def _moved(mixtures: list[Components], place: Tensor) -> list[object]:
    """The same mixtures about a place."""
    return [mixture_of(Components(part.means - place, part.variances, part.bases, part.weights)) for part in mixtures]
