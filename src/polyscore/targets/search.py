"""Where densities that are no mixtures have their mass: cells for a grid that holds all of it, heavy tails too.

The first cells are spaced by sinh around each factor's middle, so that they are as fine as its width there and reach
10^12 widths out. Middle and width are those of its draws, else of its moments, else 0 and 1. Then cells move, round by
round, to where the factors and their product are large: first by flattened densities (temperatures from 8^8 down),
which show a narrow part from far away while a share of the cells stays, then by masses, their roots and their jumps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.factors import log_prob, product
from polyscore.distributions import Density
from polyscore.errors import ArgumentError, require
from polyscore.targets.axes import EdgedAxes, middles

_REACH, _OUTSIDE = 1e12, 1e-11  # widths that the first cells reach out; mass that the last may leave outside
_DRAWS = 4096  # of a density that offers them
_FINEST, _GRADE = 1e-13, 2.5  # width of a cell over its distance from 0, at least; over its neighbour's, at most
_COARSE = {1: 10_000, 2: 400}  # cells along an axis while they move
_TEMPERATURES, _ROUNDS = [8.0**k for k in range(8, 0, -1)], 5
_CHUNK = 1 << 16
REMEDY = (
    "Write its sample(n, seed, dtype) or moments(), which show where to look, or draw a reference by FeynmanKac with "
    "many particles."
)


class Rising(NamedTuple):
    """A measure on an axis: its share below each of some rising positions, from 0 to 1."""

    positions: np.ndarray
    shares: np.ndarray

    def edges(self, count: int) -> Tensor:
        """Return the edges of `count` cells of equal shares, fewer where numbers are not finer."""
        found = np.interp(np.linspace(0, 1, count + 1), self.shares, self.positions)
        apart = np.concatenate([[True], np.diff(found) > _FINEST * np.abs(found[1:])])
        return torch.from_numpy(_graded(found[apart]))

    def within(self, low: float, high: float) -> Rising:
        """Return what lies between two positions."""
        inside = self.positions[(self.positions > low) & (self.positions < high)]
        positions = np.concatenate([[low], inside, [high]])
        shares = np.interp(positions, self.positions, self.shares)
        return Rising(positions, (shares - shares[0]) / max(shares[-1] - shares[0], 1e-300))


def _graded(edges: np.ndarray) -> np.ndarray:
    """Halve cells that are much wider than a neighbour: mass just outside of fine cells would not be seen."""
    for _ in range(100):
        widths = np.diff(edges)
        least = np.minimum(np.append(widths[1:], np.inf), np.insert(widths[:-1], 0, np.inf))
        wide = np.flatnonzero(widths > _GRADE * least)
        if not len(wide):
            break
        edges = np.insert(edges, wide + 1, edges[wide] + 0.5 * widths[wide])
    return edges


def log_values(q: Composition, x: Tensor) -> list[Tensor]:
    """Return the log-density of the product and of every factor at x, `(n,)` each."""
    parts = []
    for chunk in x.split(_CHUNK):
        terms = [log_prob(name, q.density(name), chunk, 1.0, 0.0).detach() for name in q.conditions]
        parts.append([product(terms, list(q.exponents.values())), *terms])
    found = [torch.cat(column) for column in zip(*parts, strict=True)]
    above = [w * term for w, term in zip(q.exponents.values(), found[1:], strict=True) if w > 0]
    numerators = torch.stack(above).sum(0) if above else torch.zeros_like(found[0])
    # Where numerators are next to nothing, a denominator that is 0 in floating point is so by underflow.
    found[0] = torch.where((found[0] == math.inf) & (numerators < numerators.max() - 700), -math.inf, found[0])
    if bool((found[0] == math.inf).any()):
        place = [float(f"{value:.4g}") for value in x[found[0] == math.inf][0].tolist()]
        raise ArgumentError(
            f"a composition must be finite; a denominator of {q!r} is 0 at x = {place}, where its numerators are not. "
            "Choose a base that covers them."
        )
    return found


def find_axes(q: Composition, cells: int) -> EdgedAxes:
    """Return axes whose cells are fine where the factors of `q` or their product have mass."""
    coarse = _COARSE[q.event[0]]
    looks = map(_first_look, map(q.density, q.conditions), q.moments)
    first = [_mean(list(axis)) for axis in zip(*looks, strict=True)]
    measures = first
    for temperature in _TEMPERATURES:
        moved = _where_large(q, _axes(measures, coarse), temperature)
        measures = [_mean([stay, now, *more]) for stay, now, more in zip(first, measures, moved, strict=True)]
    for _ in range(_ROUNDS):
        measures = _cells_for(q, _axes(measures, coarse))
    return _axes(measures, cells)


def _axes(measures: list[Rising], cells: int) -> EdgedAxes:
    return EdgedAxes.halving([measure.edges(cells // 2) for measure in measures])


def _first_look(density: Density, moments: tuple[Tensor, Tensor] | None) -> list[Rising]:
    """Return for each axis cells spaced by sinh around a density's middle, and its draws where it offers any."""
    if density.has_sample:
        columns = [_ranked(column) for column in _draws(density).T.numpy()]
        return [_mean([_spaced(*_middle_and_width(draws)), draws]) for draws in columns]
    middle, cov = moments or (torch.zeros(density.dim), torch.ones(density.dim))
    width = (cov if cov.ndim == 1 else cov.diagonal()).sqrt()
    return [_spaced(m, w) for m, w in zip(middle.tolist(), width.tolist(), strict=True)]


def _ranked(draws: np.ndarray) -> Rising:
    """Return the measure of draws, those that are equal counted once."""
    positions = np.unique(draws)
    return Rising(positions, np.linspace(0, 1, len(positions)))


def _spaced(middle: float, width: float) -> Rising:
    """Return cells spaced by sinh around a middle: about `width` / 50 there, 3 % of the distance far away."""
    ticks = np.sinh(np.linspace(-1, 1, 2001) * math.asinh(_REACH))
    return Rising(middle + width * ticks, np.linspace(0, 1, len(ticks)))


def _middle_and_width(measure: Rising) -> tuple[float, float]:
    """Return the median, and the distance between the quartiles (1 where they are one)."""
    low, middle, high = np.interp([0.25, 0.5, 0.75], measure.shares, measure.positions).tolist()
    return middle, high - low or 1.0


def _draws(density: Density) -> Tensor:
    """Return draws of a density, `(n, d)`, or say what they are instead."""
    subject, rule = f"{type(density).__name__}.sample(n, seed, dtype)", f"return finite points (n, {density.dim})"
    try:
        draws = density.sample(_DRAWS, seed=0, dtype=torch.float64)
    except Exception as error:
        raise ArgumentError(
            f"{subject} must {rule}; got {type(error).__name__}: {str(error)[:500]}. Mend it, or leave sample out."
        ) from error
    good = isinstance(draws, Tensor) and draws.shape == (_DRAWS, density.dim) and bool(draws.isfinite().all())
    require(good, subject, rule, tuple(draws.shape) if isinstance(draws, Tensor) else type(draws).__name__,
            "Return a tensor of draws, or leave sample out.")  # fmt: skip
    return draws.detach().double()


def _where_large(q: Composition, axes: EdgedAxes, temperature: float) -> list[list[Rising]]:
    """Return for each axis in which cells the product and the factors are large, flattened by a temperature."""
    found = [marginals(values / temperature, axes.shape) for values in log_values(q, axes.centres())]
    return [[_cumulated(edges, shares[k]) for shares in found if shares] for k, edges in enumerate(axes.edges)]


def _cells_for(q: Composition, axes: EdgedAxes) -> list[Rising]:
    """Return for each axis where the next cells shall be, by the masses in these."""
    found = [marginals(values + axes.log_volumes(), axes.shape) for values in log_values(q, axes.centres())]
    require(any(found), "a density", "be found", f"{q!r}, 0 wherever was looked", REMEDY)
    return [_cells_along(edges, [shares[k] for shares in found if shares]) for k, edges in enumerate(axes.edges)]


def _cells_along(edges: Tensor, shares: list[Tensor]) -> Rising:
    """Return cells around the middles, where densities and their roots have mass, and where they jump."""
    widths = edges.diff()
    masses = [_cumulated(edges, share) for share in shares]
    roots = [_cumulated(edges, (share * widths).sqrt()) for share in shares]
    jumps = [_cumulated(middles(edges), (share / widths).diff().abs()) for share in shares]
    spaced = [_spaced(*_middle_and_width(mass)) for mass in masses]
    return _mean([*spaced, *masses, *roots, *jumps]).within(*_ends(masses))


def marginals(logs: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """Return for each axis the shares of weights `(cells,)`, given by their logs, or nothing where all are 0."""
    if bool(logs.max() == -math.inf):
        return []
    shares = torch.softmax(logs, 0).reshape(shape)
    return [shares.movedim(axis, 0).reshape(size, -1).sum(1) for axis, size in enumerate(shape)]


def _cumulated(positions: Tensor, masses: Tensor) -> Rising:
    total = masses.cumsum(0).numpy()
    return Rising(positions.numpy(), np.concatenate([[0.0], total]) / max(total[-1], 1e-300))


def _mean(measures: list[Rising]) -> Rising:
    """Return the mean of measures, which rises wherever one does."""
    positions = np.unique(np.concatenate([measure.positions for measure in measures]))
    shares = [np.interp(positions, *measure) for measure in measures]
    return Rising(positions, np.mean(shares, 0))


def _ends(masses: list[Rising]) -> tuple[float, float]:
    """Return the positions outside of which there is no mass, a few cells further out: supports may have edges."""
    cells = [(np.searchsorted(mass.shares, [_OUTSIDE, 1 - _OUTSIDE]), mass.positions) for mass in masses]
    lows = [positions[max(first - 5, 0)] for (first, _), positions in cells]
    highs = [positions[min(last + 4, len(positions) - 1)] for (_, last), positions in cells]
    return float(min(lows)), float(max(highs))
