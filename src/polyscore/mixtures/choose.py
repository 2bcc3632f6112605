"""How many components, and of which shape: every number that a mixture has must earn half of log n (Schwarz 1978).

Components are added until two more in a row earn nothing. Each number of them starts from k-means++ (Arthur &
Vassilvitskii 2007) and from the last mixture with one more where that is least likely; the shapes start from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from polyscore.mixtures.centres import nearest_centres, spread_centres
from polyscore.mixtures.dense import stacked
from polyscore.mixtures.em import Fit, Prior, Products, improved, maximise
from polyscore.mixtures.shapes import SHAPES, Shape, shapes_for
from polyscore.notices import warn
from polyscore.rng import generator, some_rows

_MOST = 24  # components
_STARTS = 2  # by k-means++
_BRIEF, _FEWEST = 12, 5  # rounds of a start; points that a component stands for, at least
_TOLD = 30  # points of a half for each component of the whole, from which on BIC can find as many there
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
    some = some_rows(x, _ENOUGH, seed)
    chosen = _chosen(some, seed, min(most, max(1, len(some) // (2 * _FEWEST))))
    chosen = improved(x, replace(chosen, points=len(x)), Prior.of(x, chosen.count), least=_SETTLED)
    if len(x) < 2 * (x.shape[1] + 1):
        warn(
            f"points should be many for a covariance; {subject} has {len(x)} in {x.shape[1]} dimensions, so its "
            f"mixture is a guess of shape {chosen.shape.name!r}. Take more of them."
        )
    return stacked(some, chosen, seed, dense)


def fit_halves(points: Tensor, whole: Fit, seed: int = 0, most: int = _MOST, dense: int = 0) -> list[Fit]:
    """Return the mixtures that either half of the points gives, by the same rules but for the shape, which is kept.

    Where the form is right they differ by their standard errors; where it is not, by what BIC happened to make of the
    points: so there are none where a half has too few for the components of the whole. Rows that repeat go into one.
    """
    x = some_rows(points.double(), _ENOUGH, seed)
    if len(x) < 2 * _TOLD * (1 if whole.stacked else whole.count):
        return []
    distinct, which = torch.unique(x, dim=0, return_inverse=True)
    first = torch.randperm(len(distinct), generator=generator(seed, "halves"))[which] % 2 == 0
    shapes = None if whole.stacked else (whole.shape,)
    if min(int(first.sum()), int((~first).sum())) < 2 * _FEWEST:  # few rows that repeat often
        return []
    found = []
    for half in (x[first], x[~first]):
        fit = _chosen(half, seed, min(most, max(1, len(half) // (2 * _FEWEST))), shapes)
        found.append(stacked(half, fit, seed, dense if whole.stacked else 0))
    return found


def _chosen(x: Tensor, seed: int, most: int, shapes: Sequence[Shape] | None = None) -> Fit:
    """The best mixture of at most so many components, of any shape or one of these."""
    best = last = _best_shape(x, _single(x), Prior.of(x, 1), shapes)
    worse = 0
    for count in range(2, most + 1):
        prior = Prior.of(x, count)
        started = max((improved(x, start, prior, _BRIEF) for start in _starts(x, count, seed, last, prior)),
                      key=lambda fit: fit.log_likelihood)  # fmt: skip
        last = _best_shape(x, started, prior, shapes)
        if _is_sound(last) and last.bic > best.bic:
            best, worse = last, 0
        else:
            worse += 1
        if worse >= _PATIENCE:
            break
    return best


def _single(x: Tensor) -> Fit:
    return maximise(Products(x), x.new_ones(len(x), 1), SHAPES[0], Prior.of(x, 1))


def _best_shape(x: Tensor, started: Fit, prior: Prior, shapes: Sequence[Shape] | None) -> Fit:
    """The shape that BIC prefers: all begin alike, and those that lead go on to their end."""
    shapes = shapes or shapes_for(x.shape[1], started.count, len(x))
    begun = [improved(x, _shaped(started, shape), prior, 2 * _BRIEF) for shape in shapes]
    leading = sorted(begun, key=_merit, reverse=True)[:_LEADING]
    return max((improved(x, fit, prior) for fit in leading), key=_merit)


def _merit(fit: Fit) -> float:
    """BIC, of which a mixture with components of next to no points has none."""
    return fit.bic if _is_sound(fit) and math.isfinite(fit.bic) else -math.inf


def _shaped(fit: Fit, shape: Shape) -> Fit:
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
