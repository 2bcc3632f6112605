"""Distances of features against closed forms, another way to write them, and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyscore.errors import PolyscoreError
from polyscore.features import frechet, kernel_distance


def with_moments(n: int, mean: np.ndarray, root: np.ndarray, seed: int) -> np.ndarray:
    """Rows whose sample mean and covariance are exactly `mean` and root' root."""
    z = np.random.default_rng(seed).normal(size=(n, len(mean)))
    z -= z.mean(0)
    z = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / (n - 1))).T
    return mean + z @ root


@pytest.mark.parametrize(("n", "m"), [(40, 25), (6, 300)])
def test_frechet_of_gaussians_is_the_closed_form(n: int, m: int) -> None:
    r = np.random.default_rng(0)
    means, roots = r.normal(size=(2, 5)), r.normal(size=(2, 5, 5))
    a, b = with_moments(n, means[0], roots[0], 1), with_moments(m, means[1], roots[1], 2)
    covariances = [root.T @ root for root in roots]
    # The eigenvalues of a product of two positive matrices are positive, though it is not symmetric.
    common = np.sqrt(np.linalg.eigvals(covariances[0] @ covariances[1]).real.clip(0)).sum()
    expected = ((means[0] - means[1]) ** 2).sum() + np.trace(sum(covariances)) - 2 * common
    assert frechet(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet(b, a) == pytest.approx(expected, rel=1e-9)


def test_frechet_of_commuting_gaussians_and_of_few_rows() -> None:
    """Diagonal covariances: sum of (s - t)^2. Fewer rows than features: those that are not there are zero."""
    s, t, shift = np.array([1.0, 2.0, 0.5]), np.array([3.0, 0.1, 0.5]), np.array([1.0, 0.0, -2.0])
    a, b = with_moments(9, np.zeros(3), np.diag(s), 3), with_moments(12, shift, np.diag(t), 4)
    assert frechet(a, b) == pytest.approx(((s - t) ** 2).sum() + 5, rel=1e-9)
    wide = np.zeros((12, 50))
    wide[:9, 7:10], narrow = a[:9], np.concatenate([np.zeros((12, 7)), b, np.zeros((12, 40))], 1)
    assert frechet(wide[:9], narrow) == pytest.approx(frechet(a, b), rel=1e-9)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet(torch.tensor(a), b.astype(np.float64).tolist()) == frechet(a, b)


def test_extrapolation_takes_the_bias_away() -> None:
    """40 sets of 60 rows in 12 dimensions from one law, distance 0: plain 1.32, extrapolated within four of its errors.

    The mean of 40 independent estimates lies further than that from its own expectation once in 16,000 times; its
    expectation is 0 up to c / n^2, for which 0.15 is left.
    """
    sets = np.random.default_rng(5).normal(size=(40, 2, 60, 12))
    plain = np.array([frechet(*pair) for pair in sets])
    better = np.array([frechet(*pair, extrapolated=True) for pair in sets])
    assert plain.mean() > 1
    assert abs(better.mean()) < 4 * better.std() / 40**0.5 + 0.15
    assert frechet(*sets[0], extrapolated=True, seed=1) != better[0] == frechet(*sets[0], extrapolated=True)


def test_kernel_distance_is_a_double_loop() -> None:
    r = np.random.default_rng(6)
    a, b = r.normal(size=(7, 4)), 0.5 + 2 * r.normal(size=(5, 4))

    def k(x: np.ndarray, y: np.ndarray) -> float:
        return (float(x @ y) / 4 + 1) ** 3

    xx = np.mean([k(a[i], a[j]) for i in range(7) for j in range(7) if i != j])
    yy = np.mean([k(b[i], b[j]) for i in range(5) for j in range(5) if i != j])
    xy = np.mean([k(x, y) for x in a for y in b])
    assert kernel_distance(a, b) == pytest.approx(xx + yy - 2 * xy, rel=1e-10)


@pytest.mark.filterwarnings("error")
def test_arrays_that_torch_does_not_share_are_taken() -> None:
    a, b = np.random.default_rng(7).normal(size=(2, 20, 4))
    fixed = a.copy()
    fixed.flags.writeable = False
    assert kernel_distance(fixed, b[::-1]) == pytest.approx(kernel_distance(a, b), rel=1e-10)


def test_kernel_distance_is_centred_on_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 pairs of sets of one law; their mean is beyond four of its errors from 0 once in 16,000 times."""
    monkeypatch.setattr("polyscore.features.distances._BLOCK", 7)
    found = np.array([kernel_distance(*pair) for pair in np.random.default_rng(7).normal(size=(300, 2, 20, 6))])
    assert abs(found.mean()) < 4 * found.std() / 300**0.5 and (found < 0).any()


@pytest.mark.parametrize("distance", [frechet, kernel_distance])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((1, 3)), np.zeros((4, 3)), r"a must hold features in rows, \(n, d\), at least 2; got shape \(1, 3\)"),
        (np.zeros((4, 3)), np.zeros((4, 3, 2)), "b must hold features in rows"),
        (np.zeros((4, 3)), np.zeros((4, 2)), r"as many features; got \(3, 2\)"),
        (np.zeros((4, 3)), np.full((4, 3), np.nan), "b must be finite; got 12 entries"),
        (np.zeros((4, 3)), ["couch"], "b must be an array of numbers"),
    ],
)
def test_bad_features_are_refused(distance: object, a: np.ndarray, b: np.ndarray, message: str) -> None:
    with pytest.raises(PolyscoreError, match=message):
        distance(a, b)  # type: ignore[operator]


def test_extrapolation_needs_halves() -> None:
    with pytest.raises(PolyscoreError, match="at least 4"):
        frechet(np.zeros((3, 2)), np.zeros((9, 2)), extrapolated=True)
