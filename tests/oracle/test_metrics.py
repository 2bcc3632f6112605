"""Metrics against other people's code: sliced W2 = POT, MMD^2 = a plain NumPy double loop."""

import math

import numpy as np
import ot
import pytest
import torch

import polyscore as ps
from cases import F64
from polyscore.errors import ArgumentError
from polyscore.metrics import sliced
from polyscore.metrics.sliced import random_directions


def clouds(n, m, dim, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)), 0.5 + rng.normal(size=(m, dim)) * np.linspace(0.5, 2, dim)


@pytest.mark.parametrize("n, m", [(200, 200), (1, 1), (150, 90), (90, 150), (7, 100), (1, 40), (128, 64)])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_sliced_wasserstein_is_pots(n, m, dim):
    x, y = clouds(n, m, dim)
    directions = random_directions(dim, 60, seed=3).numpy()
    expected = ot.sliced.sliced_wasserstein_distance(x, y, projections=directions, p=2)
    assert ps.sliced_wasserstein(x, y, projections=60, seed=3) == pytest.approx(expected, rel=1e-9)


def test_sliced_wasserstein_in_one_dimension_is_the_assignment():
    x, y = clouds(40, 40, 1)
    plan = ot.emd2([], [], ot.dist(x, y, metric="sqeuclidean"))
    assert ps.sliced_wasserstein(x, y, projections=5) == pytest.approx(math.sqrt(plan), rel=1e-9)


def test_sliced_wasserstein_of_a_shift():
    """A shift c moves every projection by <c, v>: SW2^2 = mean <c, v>^2, whose expectation is |c|^2 / d."""
    x, _ = clouds(300, 1, 3)
    shift = np.array([1.0, -2.0, 0.5])
    directions = random_directions(3, 500, seed=1).numpy()
    expected = math.sqrt(np.mean((shift @ directions) ** 2))
    assert ps.sliced_wasserstein(x, x + shift, projections=500, seed=1) == pytest.approx(expected, rel=1e-9)
    assert ps.sliced_wasserstein(x, x[::-1].copy(), projections=50) == 0


def test_sliced_wasserstein_is_symmetric_seeded_and_float32_ready():
    x, y = clouds(300, 200, 2)
    assert ps.sliced_wasserstein(x, y) == pytest.approx(ps.sliced_wasserstein(y, x), rel=1e-12)
    assert ps.sliced_wasserstein(x, y, seed=1) != ps.sliced_wasserstein(x, y, seed=2)
    narrow = ps.sliced_wasserstein(torch.tensor(x).float(), torch.tensor(y).float())
    assert narrow == pytest.approx(ps.sliced_wasserstein(x, y), rel=1e-5)
    state = torch.random.get_rng_state()
    ps.sliced_wasserstein(x, y, projections=3)
    assert torch.equal(state, torch.random.get_rng_state())


def test_chunking_does_not_change_sliced_wasserstein(monkeypatch):
    x, y = clouds(60, 45, 3)
    whole = ps.sliced_wasserstein(x, y, projections=101)
    monkeypatch.setattr(sliced, "_CHUNK_NUMBERS", 400)
    assert ps.sliced_wasserstein(x, y, projections=101) == pytest.approx(whole, rel=1e-12)


def test_directions_are_on_the_sphere_and_uniform():
    """Unit norm; mean and second moment of 20,000 directions within 5.5 standard errors: under 1e-6."""
    v = random_directions(4, 20_000, seed=0)
    torch.testing.assert_close(v.norm(dim=0), torch.ones(20_000, dtype=F64))
    assert v.mean(1).abs().max().item() < 5.5 * 0.5 / math.sqrt(20_000)
    second = v @ v.T / 20_000
    assert (second - torch.eye(4, dtype=F64) / 4).abs().max().item() < 5.5 * 0.25 / math.sqrt(20_000)


def test_images_are_flattened():
    x, y = clouds(30, 20, 12)
    assert ps.sliced_wasserstein(x.reshape(30, 3, 2, 2), y.reshape(20, 3, 2, 2)) == ps.sliced_wasserstein(x, y)
    assert ps.mmd2(x.reshape(30, 3, 2, 2), y.reshape(20, 3, 2, 2)) == ps.mmd2(x, y)


def plain_mmd2(x, y, gamma=None):
    if gamma is None:
        cross = sorted(math.dist(a, b) for a in x.tolist() for b in y.tolist())
        half = len(cross) // 2
        median = cross[half] if len(cross) % 2 else 0.5 * (cross[half - 1] + cross[half])
        gamma = 1 / (2 * median**2)

    def kernel(a, b):
        return math.exp(-gamma * sum((i - j) ** 2 for i, j in zip(a, b, strict=True)))

    n, m = len(x), len(y)
    within_x = sum(kernel(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    within_y = sum(kernel(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return within_x + within_y - 2 * sum(kernel(a, b) for a in x for b in y) / (n * m)


@pytest.mark.parametrize("n, m, dim", [(30, 30, 2), (21, 13, 3), (2, 2, 1), (9, 40, 5)])
@pytest.mark.parametrize("gamma", [None, 0.37])
def test_mmd2_is_the_plain_double_loop(n, m, dim, gamma):
    x, y = clouds(n, m, dim)
    assert ps.mmd2(x, y, gamma) == pytest.approx(plain_mmd2(x, y, gamma), rel=1e-9, abs=1e-12)


def test_mmd2_in_float32_and_in_chunks(monkeypatch):
    from polyscore.metrics import mmd

    x, y = clouds(200, 150, 2)
    whole = ps.mmd2(x, y)
    assert ps.mmd2(x.astype(np.float32), y.astype(np.float32)) == pytest.approx(whole, abs=1e-6)
    monkeypatch.setattr(mmd, "_CHUNK_NUMBERS", 4000)
    assert ps.mmd2(x, y) == pytest.approx(whole, rel=1e-10)
    # beyond 8 chunks the median is the lower one, by bisection: among 30,000 distances the two middle ones are near
    monkeypatch.setattr(mmd, "_CHUNK_NUMBERS", 1000)
    assert ps.mmd2(x, y) == pytest.approx(whole, rel=1e-4)


def test_mmd2_is_unbiased_for_equal_distributions():
    """Mean over 400 pairs of samples of one law within 5 standard errors of 0: 6e-7; a V-statistic would be far off."""
    values = [ps.mmd2(*np.random.default_rng(s).normal(size=(2, 20, 2)), gamma=0.5) for s in range(400)]
    assert abs(np.mean(values)) < 5 * np.std(values) / 20
    assert min(values) < 0


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: ps.sliced_wasserstein(np.ones((3, 2)), np.ones((3, 3))), "same dimension"),
        (lambda: ps.sliced_wasserstein(np.ones(3), np.ones(3)), "hold points in rows"),
        (lambda: ps.sliced_wasserstein(np.ones((0, 2)), np.ones((3, 2))), "at least 1"),
        (lambda: ps.sliced_wasserstein(np.ones((3, 2)), np.full((3, 2), np.nan)), "be finite"),
        (lambda: ps.sliced_wasserstein(np.ones((3, 2)), np.ones((3, 2)), projections=0), "at least 1"),
        (lambda: ps.mmd2(np.ones((1, 2)), np.ones((3, 2))), "at least 2"),
        (lambda: ps.mmd2(np.ones((3, 2)), np.ones((3, 2))), "median cross distance must be positive"),
        (lambda: ps.mmd2(np.ones((3, 2)), np.ones((3, 2)), gamma=-1), "gamma must be positive"),
    ],
)
def test_metrics_refuse(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
