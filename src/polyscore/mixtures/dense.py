"""Shapes that no small mixture has: many local Gaussians stacked on the mixture that BIC chose.

A smoothed empirical measure with local covariances (as in closed-form diffusion models, Scarvelis et al. 2023):
centres by k-means, a covariance each, a few rounds of EM. It draws edges, spirals and boards, and knows nothing beyond
the data, where the small mixture does. So both are stacked (Wolpert 1992), p = (1 - s) small + s dense, s by points
that the dense one was not fitted to, and only where these are more likely under p beyond doubt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.mixtures.centres import nearest_centres, spread_centres
from polyscore.mixtures.em import Fit, Prior, improved
from polyscore.mixtures.shapes import SHAPES
from polyscore.rng import generator

COUNTS = (32, 64, 128, 256)  # local Gaussians that are tried
_EACH = 20  # points that one stands for on average, at least; and three times its own numbers a coordinate
_EVERY = 5  # each fifth point is held out
_KMEANS, _ROUNDS = 3, 8
_ERRORS, _LEAST = 4.0, 0.004  # standard errors, and nats a point, that stacking must earn


def stacked(x: Tensor, small: Fit, seed: int, most: int) -> Fit:
    """Return `small` stacked with at most so many local Gaussians of points `(n, d)`; itself where that is no worse."""
    out = _held_out(x)
    known, held = small.log_prob(x[out]), x[out]
    tried = [count for count in COUNTS if count <= most and _enough(len(x), count, x.shape[1])] if out.any() else []
    earned = {count: _earned(_dense(x[~out], count, seed).log_prob(held), known) for count in tried}
    best = max(earned, key=lambda count: earned[count][0], default=0)
    if not best or not earned[best][0]:
        return small
    return _union(small, _dense(x, best, seed), earned[best][1])


def _held_out(x: Tensor) -> Tensor:
    """Which points `(n,)` are held out: every fifth, and of rows that repeat all or none."""
    distinct, which = torch.unique(x, dim=0, return_inverse=True)
    places = torch.arange(len(x)) if len(distinct) == len(x) else which
    return places % _EVERY == _EVERY - 1


def _enough(points: int, count: int, dim: int) -> bool:
    return points >= count * max(_EACH, 3 * (dim + 1))


def _dense(x: Tensor, count: int, seed: int) -> Fit:
    """`count` local Gaussians."""
    prior = Prior.of(x, count)
    fit = nearest_centres(x, spread_centres(x, count, generator(seed, "dense", count)), prior)
    for _ in range(_KMEANS):
        fit = nearest_centres(x, fit.means, prior)
    return improved(x, fit, prior, _ROUNDS)


def _earned(dense: Tensor, small: Tensor) -> tuple[float, float]:
    """Nats a held-out point that stacking earns, and the share of the dense one; both 0 where that is in doubt."""
    share = torch.tensor(0.5, dtype=dense.dtype)
    for _ in range(100):  # EM in one number
        share = torch.sigmoid(torch.logit(share) + dense - small).mean().clamp(1e-9, 1 - 1e-9)
    gains = torch.logaddexp(share.log() + dense, (1 - share).log() + small) - small
    gain, error = gains.mean().item(), (gains.std() / len(gains) ** 0.5).item()
    return (gain, share.item()) if gain > max(_ERRORS * error, _LEAST) else (0.0, 0.0)


def _union(small: Fit, dense: Fit, share: float) -> Fit:
    """Both as one mixture."""
    weights = torch.cat([(1 - share) * small.weights, share * dense.weights])
    means, covariances = torch.cat([small.means, dense.means]), torch.cat([small.covariances, dense.covariances])
    return Fit(weights, means, covariances, SHAPES[0], small.points, stacked=True)
