"""How many components, and of which shape: every number that a mixture has must earn half of log n (Schwarz 1978).

Components are added until two more in a row earn nothing. Each number of them starts from k-means++ (Arthur &
Vassilvitskii 2007) and from the last mixture with one more where that is least likely; the shapes start from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from polyscore.mixtures.centres import nearest_centres, spread_centres
from polyscore.mixtures.dense import stacked
from polyscore.mixtures.em import Fit, Prior, maximise, run
from polyscore.mixtures.shapes import SHAPES, Shape, shapes_for
from polyscore.notices import warn
from polyscore.rng import generator

_MOST = 24  # components
_STARTS = 2  # by k-means++
_BRIEF, _FEWEST = 12, 5  # rounds of a start; points that a component stands for, at least
_PATIENCE, _LEADING = 2, 2
_SETTLED = 1e-4  # nats that a last round may still add
_ENOUGH = 20_000  # points that decide the number of components and their shape


def fit_mixture(points: Tensor, seed: int = 0, most: int = _MOST, subject: str = "a condition", dense: int = 0) -> Fit:
    """Return the mixture that BIC prefers, stacked with local Gaussians where held-out points ask for them.

    Args:
        points: `(n, d)`, finite.
        most: components at most; fewer where points are few.
        subject: whose points they are, for warnings.
        dense: local Gaussians at most; none by default.
    """
    x = points.double()
    some = x[:: max(1, len(x) // _ENOUGH)]
    chosen = _chosen(some, seed, min(most, max(1, len(some) // (2 * _FEWEST))))
    chosen = run(x, replace(chosen, points=len(x)), Prior.of(x, chosen.count), least=_SETTLED)
    if len(x) < 2 * (x.shape[1] + 1):
        warn(
            f"points should be many for a covariance; {subject} has {len(x)} in {x.shape[1]} dimensions, so its "
            f"mixture is a guess of shape {chosen.shape.name!r}. Take more of them."
        )
    return stacked(some, chosen, seed, dense)


def _chosen(x: Tensor, seed: int, most: int) -> Fit:
    """The best mixture of at most so many components."""
    best = last = _best_shape(x, _single(x), Prior.of(x, 1))
    worse = 0
    for count in range(2, most + 1):
        prior = Prior.of(x, count)
        started = max((run(x, start, prior, _BRIEF) for start in _starts(x, count, seed, last, prior)),
                      key=lambda fit: fit.log_likelihood)  # fmt: skip
        last = _best_shape(x, started, prior)
        if _is_sound(last) and last.bic > best.bic:
            best, worse = last, 0
        else:
            worse += 1
        if worse >= _PATIENCE:
            break
    return best


def _single(x: Tensor) -> Fit:
    return maximise(x, x.new_ones(len(x), 1), SHAPES[0], Prior.of(x, 1))


def _best_shape(x: Tensor, started: Fit, prior: Prior) -> Fit:
    """The shape that BIC prefers: all begin alike, and those that lead go on to their end."""
    shapes = shapes_for(x.shape[1], started.count)
    begun = [run(x, _shaped(started, shape, prior), prior, 2 * _BRIEF) for shape in shapes]
    leading = sorted(begun, key=_merit, reverse=True)[:_LEADING]
    return max((run(x, fit, prior) for fit in leading), key=_merit)


def _merit(fit: Fit) -> float:
    """BIC, of which a mixture with components of next to no points has none."""
    return fit.bic if _is_sound(fit) and math.isfinite(fit.bic) else -math.inf


def _shaped(fit: Fit, shape: Shape, prior: Prior) -> Fit:
    covariances = shape.restrict(fit.covariances, fit.weights)
    return Fit(fit.weights, fit.means, covariances, shape, fit.points)


def _is_sound(fit: Fit) -> bool:
    """Whether every component stands for enough points; a single one does."""
    return fit.count == 1 or bool(fit.sizes().min() >= _FEWEST)


def _starts(x: Tensor, count: int, seed: int, last: Fit, prior: Prior) -> Iterator[Fit]:
    """Mixtures of `count` components to begin with."""
    for k in range(_STARTS):
        yield nearest_centres(x, spread_centres(x, count, generator(seed, "mixture", count, k)), prior)
    if last.count == count - 1:
        lonely = x[last.log_prob(x).argmin()]
        yield nearest_centres(x, torch.cat([last.means, lonely[None]]), prior)
