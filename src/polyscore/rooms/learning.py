"""Learning to accept pictures: one logistic regression on features, and what it is worth on pictures it has not seen.

Features are standardised; the penalty |w|^2 / (2 C) is chosen by cross-validation, by the mean log-loss on the parts
left out. Held-out figures come from a second cross-validation around that: every picture is judged by a regression,
penalty included, that was chosen and fitted without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyscore.errors import require
from polyscore.extras import load as need
from polyscore.rng import derive

LEAST = 10  # labels of either kind: two for each part of both cross-validations
PENALTIES = tuple(10.0**k for k in range(-5, 2))  # C
_PARTS = 5
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Judge(NamedTuple):
    """log-odds of acceptance = coefficients . features + intercept; `c` is the penalty that was chosen."""

    coefficients: Floats
    intercept: float
    c: float

    def probability(self, features: NDArray[Any]) -> Floats:
        """Return the probability that each of some pictures (N, d) is accepted, (N,)."""
        odds = features.astype(np.float64) @ self.coefficients + self.intercept
        return np.asarray(np.exp(-np.logaddexp(0, -odds)))


class HeldOut(NamedTuple):
    """What a judge is worth on pictures that it has not seen, at a threshold.

    Attributes:
        accuracy: share of right answers.
        auc: probability that an accepted picture is rated above a rejected one; its standard error is `auc_error`.
        precision: share of those let through that a person accepted; NaN where none was let through.
        recall: share of those a person accepted that are let through.
    """

    accuracy: float
    auc: float
    auc_error: float
    precision: float
    recall: float


def learn(features: NDArray[Any], accepted: Bools, seed: int = 0) -> Judge:
    """Return the regression on all labelled pictures.

    Args:
        features: (N, d).
        accepted: (N,), at least ten of either kind.
        seed: of the parts into which they are cut.
    """
    require_both(accepted)
    return _learned(features.astype(np.float64), accepted, seed)


def require_both(accepted: Bools, what: str = "labels") -> None:
    """Refuse labels of which there are too few of one kind."""
    yes, no = int(accepted.sum()), int((~accepted).sum())
    require(min(yes, no) >= LEAST, what, f"hold at least {LEAST} accepted and {LEAST} rejected pictures",
            f"{yes} accepted and {no} rejected", "Label more: `polyscore rooms label`.")  # fmt: skip


def held_out(features: NDArray[Any], accepted: Bools, threshold: float = 0.5, seed: int = 0) -> HeldOut:
    """Return what `learn` is worth, each picture being judged by what was learned from other parts."""
    require_both(accepted)
    x, rated = features.astype(np.float64), np.empty(len(accepted))
    for train, test in _parts(accepted, seed, "outer"):
        rated[test] = _learned(x[train], accepted[train], seed).probability(x[test])
    return worth(rated, accepted, threshold)


def worth(rated: Floats, accepted: Bools, threshold: float) -> HeldOut:
    """Return the figures of ratings (N,) against what a person said (N,)."""
    passed = rated >= threshold
    both = int((passed & accepted).sum())
    precision = both / int(passed.sum()) if passed.any() else float("nan")
    return HeldOut(float((passed == accepted).mean()), *auc(rated, accepted), precision, both / int(accepted.sum()))


def auc(rated: Floats, accepted: Bools) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error (DeLong et al. 1988), ties counting half."""
    yes, no = rated[accepted], rated[~accepted]
    wins = (yes[:, None] > no) + 0.5 * (yes[:, None] == no)
    by_yes, by_no = wins.mean(1), wins.mean(0)
    return float(wins.mean()), float(np.sqrt(by_yes.var(ddof=1) / len(yes) + by_no.var(ddof=1) / len(no)))


def _parts(accepted: Bools, seed: int, purpose: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows to learn from and rows left out, five times, both kinds shared out evenly."""
    selection = need("sklearn.model_selection", "learning to accept pictures")
    cut = selection.StratifiedKFold(_PARTS, shuffle=True, random_state=derive(seed, "selecting", purpose) % 2**32)
    yield from cut.split(np.zeros((len(accepted), 1)), accepted)


def _learned(x: Floats, accepted: Bools, seed: int) -> Judge:
    return _fitted(x, accepted, _chosen(x, accepted, seed))


def _chosen(x: Floats, accepted: Bools, seed: int) -> float:
    """The penalty with the smallest mean log-loss on parts left out."""
    losses = [
        [_loss(_fitted(x[train], accepted[train], c).probability(x[test]), accepted[test]) for c in PENALTIES]
        for train, test in _parts(accepted, seed, "inner")
    ]
    return PENALTIES[int(np.mean(losses, 0).argmin())]


def _loss(probability: Floats, accepted: Bools) -> float:
    right = np.where(accepted, probability, 1 - probability)
    return float(-np.log(right.clip(1e-12)).mean())


def _fitted(x: Floats, accepted: Bools, c: float) -> Judge:
    """The regression on standardised features, written in those as they are."""
    linear = need("sklearn.linear_model", "learning to accept pictures")
    mean, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 1e-9, scale, 1.0)  # a feature that is the same everywhere says nothing
    z, back = _within((x - mean) / scale)
    found = linear.LogisticRegression(C=c, max_iter=2000, tol=1e-6).fit(z, accepted)
    coefficients = (back @ found.coef_[0]) / scale
    return Judge(coefficients, float(found.intercept_[0] - coefficients @ mean), c)


def _within(z: Floats) -> tuple[Floats, Floats]:
    """Rows in a basis of what they span, and the way back: the penalty sees no difference, but 80 numbers are fewer."""
    if len(z) >= z.shape[1]:
        return z, np.eye(z.shape[1])
    q, r = np.linalg.qr(z.T)
    return r.T, q
