"""Counts of classes in generated images: shares with intervals, corrected for the classifier, against exact masses.

Verdicts n_j, the last of them "none of these", are multinomial with probabilities q = p C, where p are the true shares
and C_ij = P(verdict j | truth i). Images of one swarm are dependent: one a swarm is counted.

    raw share        n_j / n, with Wilson's interval
    corrected share  the maximum-likelihood p on the simplex, by EM: p_i <- sum_j (n_j / n) p_i C_ij / q_j; its interval
                     holds 95 % of those of verdicts and C drawn from their posteriors
    distance         total variation between corrected shares and masses, with a bootstrap interval of verdicts and C,
                     beside what a perfect sampler's would be at this n
    p-value          of the G-test, by drawing from the target: masses of 0.0002 have no chi-squared limit at n = 256

C is known from held-out images only, often a hundred a class: what a perfect sampler would show is drawn with rows of C
from their posterior, Dirichlet(counts + prior). With C as if exact, a test at 5 % would reject a perfect sampler in 27
to 46 of 100 cases (1 % called none, 100 held-out images a class, n = 256). The test takes Jeffreys' prior, with which
it rejects in 1 to 5 of them; the distance Perks', which adds least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from polyscore.errors import require, shorten
from polyscore.rng import derive

NONE = "none"
LEVEL = 0.95
DRAWS = 2000  # from the target, for the G-test
_DISTANCES = 500  # of the bootstrap and of the floor
PERKS, JEFFREYS = 0.5, 0.5  # images that a prior adds to all verdicts of a class together, and to each of them
_ROUNDS = 500  # of EM
Floats = NDArray[np.float64]


def wilson(count: float, total: int) -> tuple[float, float]:
    """Return Wilson's interval of a share: the p that a normal test at 5 % does not reject."""
    require(total >= 1 and 0 <= count <= total, "a count", "be from 0 to the total", f"{count} of {total}",
            "Count again.")  # fmt: skip
    z2 = NormalDist().inv_cdf(0.5 + LEVEL / 2) ** 2
    middle = (count + z2 / 2) / (total + z2)
    half = math.sqrt(z2 * (count * (total - count) / total + z2 / 4)) / (total + z2)
    # At the ends the interval reaches them, which rounding must not hide.
    return 0.0 if count == 0 else middle - half, 1.0 if count == total else middle + half


def rates(confusion: NDArray[np.int64]) -> Floats:
    """Return P(verdict | truth) of counts (classes, verdicts), with a row for images that are none of the classes.

    Half an image is spread over each row (Perks' prior), so that no verdict is impossible.
    """
    counts = np.asarray(confusion, dtype=np.float64)
    require(counts.ndim == 2 and counts.shape[1] == counts.shape[0] + 1 and (counts >= 0).all(), "confusion",
            "count verdicts (classes, classes + 1)", shorten(counts.shape),
            "Pass one row a class, with a last column for none.")  # fmt: skip
    require((counts.sum(1) > 0).all(), "confusion", "have seen every class", shorten(counts.sum(1).tolist()),
            "Hold out rooms of each class.")  # fmt: skip
    smooth = counts + PERKS / counts.shape[1]
    return np.vstack([smooth / smooth.sum(1, keepdims=True), np.eye(counts.shape[1])[-1]])


def corrected(counts: Sequence[float] | Floats, table: Floats) -> Floats:
    """Return the most likely true shares, on the simplex, of verdicts `(..., J)` under P(verdict | truth) `(I, J)`.

    Tables `(n, I, J)` go with verdicts `(n, J)`, one each.
    """
    seen = np.asarray(counts, dtype=np.float64)
    seen = seen / seen.sum(-1, keepdims=True)
    p = np.full((*seen.shape[:-1], table.shape[-2]), 1 / table.shape[-2])
    for _ in range(_ROUNDS):
        p = p * _through(seen / np.maximum(_through(p, table), 1e-300), table.swapaxes(-1, -2))
    kept = np.where(p < 1e-12, 0.0, p)  # EM approaches an end without reaching it
    return kept / kept.sum(-1, keepdims=True)


def _through(rows: Floats, table: Floats) -> Floats:
    """Rows times one table, or each times its own."""
    return rows @ table if table.ndim == 2 else np.einsum("ni,nij->nj", rows, table)


def total_variation(p: Floats, q: Floats) -> Floats:
    """Return half the L1 distance of distributions `(..., I)`."""
    return np.asarray(0.5 * np.abs(np.asarray(p) - np.asarray(q)).sum(-1))


def g_statistic(counts: Floats, expected: Floats) -> Floats:
    """Return 2 sum n log(n / (N q)) of counts `(..., J)` against probabilities `(J,)`."""
    total = counts.sum(-1, keepdims=True)
    ratio = np.where(counts > 0, counts / np.maximum(total * expected, 1e-300), 1.0)
    return np.asarray(2 * (counts * np.log(ratio)).sum(-1))


@dataclass(frozen=True)
class Tally:
    """Verdicts on images of one sampler.

    Attributes:
        classes: the classes that are told apart.
        counts: images a class, and at the end those that are none of them.
        confusion: verdicts on held-out real images, (classes, classes + 1).
        masses: exact mass of each class in the target.
        seed: of the draws behind intervals and p-value.
    """

    classes: tuple[str, ...]
    counts: tuple[int, ...]
    confusion: tuple[tuple[int, ...], ...]
    masses: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        require(len(self.counts) == len(self.classes) + 1 and sum(self.counts) >= 1, "counts",
                "have one entry a class and one for none", shorten(self.counts),
                "Pass the classifier's own counts.")  # fmt: skip
        missing = [name for name in self.classes if name not in self.masses]
        require(not missing, "masses", "name every class", shorten(missing),
                "Add them, with mass 0 where there is none.")  # fmt: skip

    @property
    def total(self) -> int:
        """Images in all."""
        return sum(self.counts)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, and none."""
        return (*self.classes, NONE)

    @cached_property
    def target(self) -> Floats:
        """Exact masses in the order of `names`."""
        return np.array([*(self.masses[name] for name in self.classes), 0.0])

    @cached_property
    def table(self) -> Floats:
        """P(verdict | truth)."""
        return rates(np.array(self.confusion))

    @property
    def raw(self) -> dict[str, float]:
        """Shares of verdicts."""
        return {name: count / self.total for name, count in zip(self.names, self.counts, strict=True)}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Wilson's interval of each raw share."""
        return {name: wilson(count, self.total) for name, count in zip(self.names, self.counts, strict=True)}

    @cached_property
    def shares(self) -> dict[str, float]:
        """Corrected shares."""
        return dict(zip(self.names, corrected(self.counts, self.table).tolist(), strict=True))

    @cached_property
    def share_intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals of the corrected shares: verdicts and rates both from what was seen, with Jeffreys' prior."""
        low, high = np.quantile(self._possible, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        reach = zip(self.names, low.tolist(), high.tolist(), self.shares.values(), strict=True)
        return {name: (min(a, share), max(b, share)) for name, a, b, share in reach}

    @cached_property
    def _possible(self) -> Floats:
        """Shares that verdicts and held-out images allow, `(n, I)`: posterior draws."""
        draw = self._source("shares")
        tables = self._tables(draw)
        return corrected(draw.dirichlet(np.array(self.counts) + JEFFREYS, _DISTANCES), tables)

    @cached_property
    def tv(self) -> float:
        """Total variation between corrected shares and target; degenerate images count as wrong."""
        return float(total_variation(np.array(list(self.shares.values())), self.target))

    @cached_property
    def tv_interval(self) -> tuple[float, float]:
        """Bootstrap interval of `tv`, verdicts and rates both redrawn, moved by what that adds, and cut at 0 and 1.

        It begins at 0 where a perfect sampler is as far off in more than 2.5 of 100 cases: there distances cannot fall
        to either side of the true one, which the bootstrap counts on. It begins no later than 2.5 of 100 posterior
        draws of the shares, and ends no nearer than 97.5: of verdicts that never came the bootstrap draws none.
        """
        # Redrawing adds noise to a distance, which is never negative: the basic interval takes it off again.
        draw, ends = self._source("bootstrap"), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
        drawn = draw.multinomial(self.total, np.array(self.counts) / self.total, _DISTANCES).astype(np.float64)
        low, high = np.quantile(total_variation(corrected(drawn, self._tables(draw)), self.target), ends)
        perfect = np.quantile(self._distances(self._perfect("zero", JEFFREYS)), ends[1])
        nearest, farthest = map(float, np.quantile(total_variation(self._possible, self.target), ends))
        least = 0.0 if self.tv <= perfect else max(0.0, min(2 * self.tv - float(high), nearest))
        return least, min(1.0, max(self.tv, 2 * self.tv - float(low), farthest))

    @cached_property
    def tv_floor(self) -> float:
        """The mean distance of as many draws from the target itself, seen by the same classifier."""
        return float(self._distances(self._perfect("floor", PERKS / len(self.counts))).mean())

    def _distances(self, verdicts: Floats) -> Floats:
        return total_variation(corrected(verdicts[:_DISTANCES], self.table), self.target)

    def _perfect(self, purpose: str, prior: float) -> Floats:
        """Verdicts on draws from the target, each by rates that the held-out images allow, `(DRAWS, J)`."""
        draw = self._source(purpose)
        verdicts = np.einsum("i,ikj->kj", self.target[:-1], self._allowed(draw, prior, DRAWS))
        return draw.multinomial(self.total, verdicts / verdicts.sum(-1, keepdims=True)).astype(np.float64)

    def _allowed(self, draw: np.random.Generator, prior: float, count: int) -> Floats:
        """Rates that the held-out images allow, `(classes, count, J)`."""
        return np.stack([draw.dirichlet(row, count) for row in np.array(self.confusion) + prior])

    def _tables(self, draw: np.random.Generator) -> Floats:
        """Whole tables that the held-out images allow, by Jeffreys' prior, `(_DISTANCES, J, J)`."""
        tables = np.tile(self.table, (_DISTANCES, 1, 1))  # what is none of the classes is called so in all of them
        tables[:, :-1] = np.swapaxes(self._allowed(draw, JEFFREYS, _DISTANCES), 0, 1)
        return tables

    def _source(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(derive(self.seed, "tally", purpose))

    @cached_property
    def p_value(self) -> float:
        """The chance of verdicts at least as unlike the target's, were the images drawn from it."""
        seen = np.array(self.confusion) + JEFFREYS
        expected = self.target[:-1] @ (seen / seen.sum(1, keepdims=True))
        found = g_statistic(np.array(self.counts, dtype=np.float64), expected)
        again = g_statistic(self._perfect("test", JEFFREYS), expected)
        return float((1 + (again >= found - 1e-9).sum()) / (1 + len(again)))

    def results(self) -> dict[str, float]:
        """Return everything as numbers by name, as a record holds them."""
        low, high = self.tv_interval
        named = zip(self.names, self.counts, strict=True)
        return {
            **{f"count {name}": float(count) for name, count in named},
            **{f"share {name}": share for name, share in self.shares.items()},
            **{f"low {name}": low for name, (low, _) in self.share_intervals.items()},
            **{f"high {name}": high for name, (_, high) in self.share_intervals.items()},
            **{f"mass {name}": mass for name, mass in zip(self.names, self.target.tolist(), strict=True)},
            "tv": self.tv, "tv_low": low, "tv_high": high, "tv_floor": self.tv_floor, "p": self.p_value,
        }  # fmt: skip
