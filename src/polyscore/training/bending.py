"""Which columns to bend, and how: powers that make every condition more Gaussian, where the data are decided about it.

Box and Cox (1964) with groups: of a column y, with one Gaussian a condition, the log-likelihood of a bend z(y) is

    sum over conditions of [ -n_a log deviation_a(z) + sum of log dz/dy ],

maximised over the power, where the bend lies and how wide it is. That alone would bend two modes of different size into
one another, so mixtures are asked too: by BIC with the slopes in it they must be better off in the column by itself,
and then in all columns together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from polyscore.mixtures import fit_mixture
from polyscore.models.bend import Bent, log_slope, powered
from polyscore.models.units import Units
from polyscore.rng import some_rows

_FEWEST, _ENOUGH = 50, 2000  # points a condition: below, nothing is bent; that decide
_NUMBERS = 3  # that a bend has: power, place, width
_DECIDED = 2.0  # times what BIC asks of them
_WIDTHS = (0.05, 2.0)  # of a bend, in deviations of the column's bulk
_ZOOMS = 6  # of the search, each to half the size: powers come to 1/64
_DISTINCT = 0.5  # share of different values below which a column is no continuous one

Merit = Callable[[Sequence[Tensor]], float]


def bent_units(pools: Sequence[Tensor], straight: Units, asked: bool | str) -> Units:
    """Return the units of conditions `(n, d)` with a bend where that is called for, or those without.

    Args:
        asked: "auto", or True for bends that Gaussians alone are decided about.
    """
    if not asked or min(map(len, pools)) < _FEWEST:
        return straight
    some = [some_rows(pool, _ENOUGH) for pool in pools]
    merits = [_gaussians] if asked is True else [_gaussians, _mixtures]
    columns = [_bent_column([pool[:, [j]] for pool in some], Units(*(part[[j]] for part in straight)), merits)
               for j in range(some[0].shape[1])]  # fmt: skip
    shift, scale, *bend = (torch.cat(parts) for parts in zip(*((*one, *one.bend) for one in columns), strict=True))
    whole = Bent(shift, scale, bend)
    if not whole.bent_columns or (asked is not True and not _is_better(some, whole, straight, _mixtures)):
        return straight
    return whole


def _bent_column(column: Sequence[Tensor], straight: Units, merits: Sequence[Merit]) -> Bent:
    """The units of one column, bent where all merits are decided about it."""
    bent = _most_gaussian(column)
    if bent is not None and all(_is_better(column, bent, straight, merit) for merit in merits):
        return bent
    return Bent(*straight, torch.tensor([[1.0], [0.0], [1.0]]))


def _is_better(pools: Sequence[Tensor], bent: Bent, straight: Units, merit: Merit) -> bool:
    """Whether the data are decidedly more likely in bent coordinates than in straight ones."""
    gain = _likelihood(pools, bent, merit) - _likelihood(pools, straight, merit)
    return gain > _DECIDED * 0.5 * _NUMBERS * bent.bent_columns * math.log(sum(map(len, pools)))


def _likelihood(pools: Sequence[Tensor], units: Units, merit: Merit) -> float:
    """The log-likelihood of the data themselves: that in these units, less the log-volume that each point has there."""
    inside = [units.standardise(pool) for pool in pools]
    return merit(inside) - sum((torch.zeros(len(z)) + units.log_volume(z)).sum().item() for z in inside)


def _gaussians(pools: Sequence[Tensor]) -> float:
    """The largest log-likelihood of one column by a Gaussian a condition, up to a constant."""
    return -sum(len(pool) * pool.std(correction=0).log().item() for pool in pools)


def _mixtures(pools: Sequence[Tensor]) -> float:
    """BIC of a mixture a condition, of as many components as they like: what is learned later may be held shorter."""
    return sum(fit_mixture(pool).bic for pool in pools)


def _most_gaussian(column: Sequence[Tensor]) -> Bent | None:
    """The bend of one column, `(n, 1)` a condition, that makes its Gaussians most likely, by a grid that zooms in."""
    whole = torch.cat(list(column))[:, 0].sort().values
    if len(whole.unique()) < _DISTINCT * len(whole) or min(pool.std().item() for pool in column) == 0:
        return None
    bulk = (whole[3 * len(whole) // 4] - whole[len(whole) // 4]) / 1.35
    best, step = torch.full((3,), 0.5, dtype=torch.float64), 0.25
    for _ in range(_ZOOMS):
        around = torch.tensor(list(product(range(-2, 3), repeat=3)), dtype=torch.float64)
        cube = (best + step * around).clamp(0, 1)
        best, step = cube[_gaussian_likelihoods(column, *_bends(cube, whole, bulk)).argmax()], step / 2
    shift, scale, power = _bends(best[None], whole, bulk)
    v = powered((whole[:, None] - shift) / scale, power)
    return Bent(shift, scale, (power, v.mean(0), v.std(0)))


def _bends(cube: Tensor, whole: Tensor, bulk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shifts, scales and powers `(B,)` of points of the unit cube: places by rank, widths by their logarithm."""
    low, high = map(math.log, _WIDTHS)
    place = whole[(cube[:, 1] * (len(whole) - 1)).round().long()]
    return place, bulk * (low + (high - low) * cube[:, 2]).exp(), 2 * cube[:, 0]


def _gaussian_likelihoods(column: Sequence[Tensor], shift: Tensor, scale: Tensor, power: Tensor) -> Tensor:
    """Those of B bends at once, `(B,)`, up to a constant."""
    total = torch.zeros_like(shift)
    for pool in column:
        x = (pool - shift) / scale
        total += (log_slope(x, power) - scale.log()).sum(0) - len(pool) * powered(x, power).std(0, correction=0).log()
    return total
