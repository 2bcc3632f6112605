"""Whether data suit a schedule, by their size and width in the coordinates of the training.

A sampler starts from pure noise, so alpha(1) times the data must vanish beside it; and it ends at a noise level of some
thousandths, which a network resolves to some hundredths, so no condition may be much narrower than 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.notices import warn
from polyscore.rng import some_rows
from polyscore.training.pools import Pools
from polyscore.training.recipe import Recipe

# Of a condition's bulk. Measured by a small network: variance 1.25 times too large at 0.05, 2.2 at 0.03, 1,300 at 0.001
_NARROWEST = 0.04
_ENOUGH = 100_000  # points that decide how wide a condition is
_ATOM, _FEWEST = 0.05, 50  # share of rows with one number from which a column is no density's; rows that tell


def warn_of_scales(pools: Pools, recipe: Recipe) -> None:
    """Warn of data too large or too narrow for the schedule, and of columns that are no density's."""
    largest, narrowest, constant = 0.0, float("inf"), set[int]()
    where, atoms = (0, 0), list[tuple[int, int]]()
    for m, row in enumerate(pools.sizes.tolist()):
        whole = [pools.points[m, a, :size] for a, size in enumerate(row)]
        constant |= _constant(whole)
        for a, points in enumerate(whole):
            largest = max(largest, points.double().square().mean(0).sqrt().max().item())
            bulk = _bulk(points)
            bulk[list(_constant([points]))] = float("inf")  # a point mass is no matter of scale
            # Far values leave the others equal after rounding: that is a matter of width.
            atoms += [(a, column) for column in _atoms(points) if bulk[column] >= _NARROWEST]
            if bulk.min().item() < narrowest:
                narrowest, where = bulk.min().item(), (a, int(bulk.argmin()))
    _warn_of_size(largest, recipe)
    _warn_of_constants(sorted(constant), pools)
    _warn_of_atoms([place for place in atoms if place[1] not in constant], pools)
    if narrowest < _NARROWEST:
        _warn_of_width(narrowest, pools.conditions[where[0]], _name(pools, where[1]), recipe)


def _bulk(points: Tensor) -> Tensor:
    """Deviation of the middle 98 % of each column, `(n, d) -> (d,)`: what one far point does not move."""
    some = some_rows(points, _ENOUGH).double().sort(0).values
    cut = max(1, len(some) // 100) if len(some) >= 10 else 0
    middle = some[cut : len(some) - cut]
    return middle.std(0, correction=0)


def _atoms(points: Tensor) -> list[int]:
    """Columns of which one number fills more than a twentieth of the rows, beyond chance (three standard errors).

    Among sorted numbers it is met again so far on.
    """
    expected = _ATOM * len(points)
    far = math.ceil(expected + 3 * math.sqrt(expected))
    if len(points) < _FEWEST:
        return []
    ranked = points.sort(0).values
    return (ranked[far:] == ranked[:-far]).any(0).nonzero().flatten().tolist()


def _constant(pools: Sequence[Tensor]) -> set[int]:
    """Columns that hold one number in all pools."""
    same = torch.stack([(pool == pools[0][0]).all(0) for pool in pools]).all(0)
    return set(same.nonzero().flatten().tolist())


def _warn_of_size(size: float, recipe: Recipe) -> None:
    left = size * recipe.schedule.alpha(torch.ones((), dtype=torch.float64)).item()
    if left > 0.5:
        warn(
            f"data should be small against the schedule's noise; theirs is {size:.3g}, of which {left:.2g} is left at "
            f"t = 1. {_remedy(recipe, 'Bring the conditions nearer to each other, or raise beta_max.')}"
        )


def _name(pools: Pools, column: int) -> str:
    return repr(pools.variables[column]) if pools.variables else str(column)


def _warn_of_constants(columns: list[int], pools: Pools) -> None:
    if columns:
        warn(
            f"every column should vary; {len(columns)} of {pools.dim} hold one number in all conditions, column "
            f"{_name(pools, columns[0])} first. Their scale is taken as 1, and samples scatter about that number. "
            "Leave them out."
        )


def _warn_of_atoms(places: list[tuple[int, int]], pools: Pools) -> None:
    if places:
        condition, column = places[0]
        columns = len({column for _, column in places})
        warn(
            f"every column should be continuous; {columns} of {pools.dim} repeat one number in over {_ATOM:.0%} "
            f"of a condition's rows (zeros, counts, clipped values), column {_name(pools, column)} of "
            f"{pools.conditions[condition]!r} first. A density has no such part: samples lie around that number, and "
            "beyond an edge. Round or clip samples, or compose the rows without it."
        )


def _warn_of_width(width: float, condition: str, column: str, recipe: Recipe) -> None:
    warn(
        f"every condition should be about as wide as the noise; most of {condition!r} is {width:.2g} wide in column "
        f"{column}, where a network resolves {_NARROWEST}, so samples come out too wide. "
        + _remedy(recipe, "Look for far values there: drop them, or transform the column (a logarithm, ranks).")
    )


def _remedy(recipe: Recipe, otherwise: str) -> str:
    return otherwise if recipe.standardise else "Pass standardise=True, the default."
