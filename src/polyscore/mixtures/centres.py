"""Centres of points, and the mixture of those that are nearest to each: where EM starts."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.mixtures.em import Fit, Prior, Products, maximise
from polyscore.mixtures.shapes import SHAPES


def nearest_centres(x: Tensor, centres: Tensor, prior: Prior) -> Fit:
    """Return the mixture of points that belong to their nearest centre, in units of the data's deviations."""
    units = prior.floor.rsqrt()
    nearest = torch.cdist(x * units, centres * units).argmin(1)
    return maximise(Products(x), torch.nn.functional.one_hot(nearest, len(centres)).double(), SHAPES[0], prior)


def spread_centres(x: Tensor, count: int, source: torch.Generator) -> Tensor:
    """Return centres by k-means++: each drawn by its squared distance from those before."""
    units = x.std(0, correction=0).clamp_min(1e-12).reciprocal()
    scaled = x * units
    chosen = [int(torch.randint(len(x), (1,), generator=source))]
    far = (scaled - scaled[chosen[0]]).square().sum(-1)
    for _ in range(count - 1):
        weights = far if bool(far.sum() > 0) else torch.ones_like(far)
        chosen.append(int(torch.multinomial(weights, 1, generator=source)))
        far = torch.minimum(far, (scaled - scaled[chosen[-1]]).square().sum(-1))
    return x[chosen]
