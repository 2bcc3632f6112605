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
    """Return centres by k-means++, in units of the data's deviations; any points once all are centres."""
    units = x.std(0, correction=0).clamp_min(1e-12).reciprocal()
    first = int(torch.randint(len(x), (1,), generator=source))
    chosen, far = spread(x * units, first, count, source)
    more = [int(torch.multinomial(torch.ones_like(far), 1, generator=source)) for _ in range(count - len(chosen))]
    return x[chosen + more]


def spread(
    x: Tensor, first: int, count: int, source: torch.Generator, weights: Tensor | float = 1.0
) -> tuple[list[int], Tensor]:
    """Return points drawn by their weight and squared distance from those before, and that of all points.

    They are fewer where no weight is left away from them.
    """
    chosen, far = [first], (x - x[first]).square().sum(-1)
    while len(chosen) < count and bool((mass := weights * far).sum() > 0):
        chosen.append(int(torch.multinomial(mass, 1, generator=source)))
        far = torch.minimum(far, (x - x[chosen[-1]]).square().sum(-1))
    return chosen, far
