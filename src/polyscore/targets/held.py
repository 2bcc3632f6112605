"""Whether a grid holds the densities for which its cells were placed; what it does not hold is refused.

Every factor's density integrates to 1, so that a part which was not found, or whose features are finer than the cells,
shows as mass that is missing or too much. The product's own mass must not change with the cells' width, nor lie at the
grid's far ends.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import ArgumentError, require
from polyscore.notices import warn
from polyscore.targets.axes import EdgedAxes, middles
from polyscore.targets.search import REMEDY, find_axes, log_values, marginals

_DOUBTFUL, _WRONG = 3e-4, 1e-2  # of a mass
_COARSE = 0.05  # nats between cells and those twice as wide
_FAR, _AT_ENDS = 1e9, 1e-4  # grid over a factor's width that counts as endless, and the mass its ends may hold


def held_axes(q: Composition, cells: int) -> tuple[EdgedAxes, Tensor]:
    """Return axes that hold `q` and its factors, and the log-density of `q` in their cells, `(cells,)`."""
    axes = find_axes(q, cells)
    centres = axes.centres()
    require(len(centres), "a density", "have its mass somewhere, to be held by a grid",
            f"{q!r}, which grows without end",
            f"Normalise its log_prob: -inf outside of its support. {REMEDY}")  # fmt: skip
    values, *factors = log_values(q, centres)
    volumes = axes.log_volumes()
    for name, factor in zip(q.conditions, factors, strict=True):
        _check_factor(name, torch.logsumexp(factor + volumes, 0).exp().item())
    if bool(values.max() == -math.inf):
        raise ArgumentError(
            f"a composition must have mass; {q!r} is 0 wherever its factors are not. Choose factors that overlap."
        )
    shares = [marginals(logs + volumes, axes.shape) for logs in (values, *factors)]
    _check_ends(q, axes, shares[0], shares[1:])
    _check_poles(q, torch.softmax(values + volumes, 0), values)
    _check_cells(q, axes, torch.logsumexp(values + volumes, 0).item())
    return axes, values


def _check_factor(name: str, mass: float) -> None:
    if not abs(mass - 1) < _WRONG:
        raise ArgumentError(
            f"a grid must hold the density of every factor, whose mass is 1; that of condition {name!r} has {mass:.4g} "
            f"where it was found. It is not normalised, or has parts that are far away, narrow or many. {REMEDY}"
        )
    if abs(mass - 1) > _DOUBTFUL:
        warn(
            f"a density should have a mass of 1; that of condition {name!r} has {mass:.6g} on the grid; evidence is "
            "as wrong. Its features may be finer than the cells, as poles and thin ridges are."
        )


def _check_ends(q: Composition, axes: EdgedAxes, of_product: list[Tensor], of_factors: list[list[Tensor]]) -> None:
    """Check that the product's mass stays away from the ends of a grid that is endless for its narrowest factor."""
    for edges, product, *factors in zip(axes.edges, of_product, *of_factors, strict=True):
        width, middle = min(_quartiles(edges, factor) for factor in factors)
        reach = max(edges[-1].item() - middle, middle - edges[0].item())
        held = product[(middles(edges) - middle).abs() > 0.1 * reach].sum().item()
        if reach > _FAR * width and held > _AT_ENDS:
            raise ArgumentError(
                f"a grid must hold the density; {100 * held:.3g} % of that of {q!r} lies beyond {0.1 * reach:.2g}, so "
                "that it may have no end. Raise its exponents, or choose factors with lighter tails."
            )


def _quartiles(edges: Tensor, shares: Tensor) -> tuple[float, float]:
    """Return the width between the quartiles of cells' masses, and their median."""
    wanted = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64) * shares.sum()
    first, second, third = torch.searchsorted(shares.cumsum(0), wanted).clamp_max(len(shares) - 1).tolist()
    return (edges[third + 1] - edges[first]).item(), (0.5 * (edges[second] + edges[second + 1])).item()


def _check_poles(q: Composition, masses: Tensor, values: Tensor) -> None:
    """Check that no mass sits in the highest cells: at a pole it does, however fine they are."""
    held = masses[values.topk(min(2, len(values))).indices].sum().item()
    if held > _WRONG:
        raise ArgumentError(
            f"a grid must resolve the density; {100 * held:.3g} % of that of {q!r} lies in its two highest cells, as "
            f"at a pole, whose mass may have no end. {REMEDY}"
        )
    if held > 10 * _DOUBTFUL:
        warn(
            f"a grid should resolve the density; {100 * held:.3g} % of that of {q!r} lies in its two highest cells, as "
            "at a pole, and evidence may be wrong by more than that. Compare with FeynmanKac of many particles."
        )


def _check_cells(q: Composition, axes: EdgedAxes, log_mass: float) -> None:
    """Check that cells twice as wide, whose error is several times as large, give nearly the same mass."""
    wider = axes.wider()
    gap = abs(torch.logsumexp(log_values(q, wider.centres())[0] + wider.log_volumes(), 0).item() - log_mass)
    if not gap < _COARSE:
        raise ArgumentError(
            f"a grid must resolve the density; log Z of {q!r} changes by {gap:.2g} with the cells' width. {REMEDY}"
        )
    if gap > 0.1 * _COARSE:
        warn(
            f"a grid should resolve the density; log Z of {q!r} changes by {gap:.2g} with the cells' width, so "
            "it is wrong. Its features may be finer than the cells, as thin ridges are: compare with FeynmanKac."
        )
