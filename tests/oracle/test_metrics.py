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
    # beyond 8 chunks the median is found bit by bit, and is the same
    monkeypatch.setattr(mmd, "_CHUNK_NUMBERS", 1000)
    assert ps.mmd2(x, y) == pytest.approx(whole, rel=1e-10)


def exact_median(x, y):
    return float(np.median(np.linalg.norm(x[:, None].astype(float) - y[None].astype(float), axis=-1)))


CLOUDS = {
    "even": clouds(60, 40, 2),
    "odd": clouds(51, 41, 3),
    "far outlier": (np.concatenate([clouds(60, 1, 2)[0], [[1e6, 1e6]]]), clouds(1, 40, 2)[1]),
    "duplicates": (np.repeat(clouds(6, 1, 2)[0], 10, 0), np.repeat(clouds(1, 5, 2)[1], 9, 0)),
    "whole numbers": (np.arange(60.0)[:, None], 3 * np.arange(40.0)[:, None]),
    "tiny": tuple(1e-9 * each for each in clouds(60, 40, 2)),
    "huge offset": tuple(1e8 + each for each in clouds(60, 40, 2)),
    "20 dimensions": clouds(60, 40, 20),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("x, y", CLOUDS.values(), ids=CLOUDS)
def test_the_median_of_many_pairs_is_numpys(x, y, dtype, monkeypatch):
    """Bisection between 0 and the largest distance stopped at 95 for a median of 0.96 beside one outlier."""
    from polyscore.metrics import mmd

    x, y = x.astype(dtype), y.astype(dtype)
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    in_memory = mmd._median_distance(*tensors)
    monkeypatch.setattr(mmd, "_CHUNK_NUMBERS", 100)
    assert mmd._median_distance(*tensors) == in_memory
    assert in_memory == pytest.approx(exact_median(x, y), rel=1e-6 if dtype == np.float32 else 1e-12)


def test_more_columns_than_a_chunk_are_split_too(monkeypatch):
    from polyscore.metrics import mmd

    x, y = clouds(5, 300, 2)
    whole = ps.mmd2(x, y)
    monkeypatch.setattr(mmd, "_CHUNK_NUMBERS", 64)
    assert max(block.numel() for block in mmd._blocks(torch.tensor(x), torch.tensor(y))) <= 64
    assert ps.mmd2(x, y) == pytest.approx(whole, rel=1e-10)


@pytest.mark.parametrize("metric", [ps.sliced_wasserstein, ps.mmd2])
@pytest.mark.parametrize(
    "dtype, tolerance",
    [(torch.float16, 5e-3), (torch.bfloat16, 5e-2), (torch.float32, 1e-5), (torch.int64, 1e-9), (torch.uint8, 1e-6)],
)
def test_metrics_take_numbers_of_every_kind(metric, dtype, tolerance):
    x, y = (torch.tensor(each * 20 + 120) for each in clouds(90, 70, 3))
    whole = dtype in (torch.int64, torch.uint8)
    x, y = (x.round(), y.round()) if whole else (x, y)
    expected = metric(x, y)
    assert metric(x.to(dtype), y.to(dtype)) == pytest.approx(expected, rel=tolerance, abs=tolerance * 1e-2)
    assert metric(x.to(dtype), y) == pytest.approx(expected, rel=tolerance, abs=tolerance * 1e-2)  # mixed kinds
    assert metric(x.to(dtype).tolist(), y.numpy()) == pytest.approx(expected, rel=tolerance, abs=tolerance * 1e-2)


@pytest.mark.parametrize("metric", [ps.sliced_wasserstein, ps.mmd2])
def test_metrics_leave_gradients_and_strides_alone(metric):
    x, y = (torch.tensor(each) for each in clouds(30, 20, 3))
    assert metric(x.clone().requires_grad_(), y) == metric(x, y)
    assert metric(x.T.contiguous().T, y) == pytest.approx(metric(x, y), rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", [ps.sliced_wasserstein, ps.mmd2])
def test_metrics_take_arrays_that_torch_does_not_share(metric):
    x, y = clouds(30, 20, 3)
    fixed = x.copy()
    fixed.flags.writeable = False  # as pandas 3 hands its values out
    assert metric(fixed, y) == metric(x, y)
    assert metric(x[::-1], y) == metric(x[::-1].copy(), y)


@pytest.mark.parametrize("n, m", [(200, 200), (200, 150)])
@pytest.mark.parametrize("offset", [1e4, 1e8])
def test_a_common_shift_changes_no_distance(offset, n, m):
    """What float32 keeps of shifted points has a distance, and projecting them far from the origin must not blur it."""
    x, y = (torch.tensor(offset + each, dtype=torch.float32) for each in clouds(n, m, 3))
    expected = ps.sliced_wasserstein(x.double() - offset, y.double() - offset)
    assert ps.sliced_wasserstein(x, y) == pytest.approx(expected, rel=1e-5)
    if offset == 1e4:
        assert ps.mmd2(x, y) == pytest.approx(ps.mmd2(x.double() - offset, y.double() - offset), abs=1e-6)
    x, y = clouds(n, m, 3)
    assert ps.sliced_wasserstein(x + offset, y + offset) == pytest.approx(ps.sliced_wasserstein(x, y), rel=1e-6)
    assert ps.mmd2(x + offset, y + offset) == pytest.approx(ps.mmd2(x, y), abs=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e16])
def test_scales_near_the_ends_of_float32(scale):
    x, y = clouds(40, 30, 3)
    small = [torch.tensor(scale * each, dtype=torch.float32) for each in (x, y)]
    assert ps.sliced_wasserstein(*small) == pytest.approx(scale * ps.sliced_wasserstein(x, y), rel=1e-5)
    assert ps.mmd2(*small) == pytest.approx(ps.mmd2(x, y), abs=1e-5)


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
        (lambda: ps.mmd2(np.ones((3, 2)), np.ones((3, 2)), gamma=math.inf), "gamma must be positive and finite"),
        (lambda: ps.mmd2(np.ones((3, 2)), np.full((3, 2), np.inf)), "be finite"),
        (lambda: ps.mmd2(np.ones((3, 0)), np.ones((3, 0))), "at least one coordinate"),
        (lambda: ps.mmd2(np.ones((3, 2)) * 1j, np.ones((3, 2))), "be real"),
        (lambda: ps.mmd2([[1.0], [2.0, 3.0]], np.ones((3, 1))), "array of numbers"),
        (lambda: ps.mmd2([["a"], ["b"]], np.ones((3, 1))), "array of numbers"),
        (lambda: ps.mmd2(np.full((3, 2), 1e200), np.ones((3, 2))), "stay below"),
        (lambda: ps.sliced_wasserstein(torch.full((3, 2), 1e22), torch.ones(3, 2)), "stay below 1e\\+18"),
        (lambda: ps.mmd2(torch.zeros(1, 2).expand(10**13, 2), np.ones((3, 2))), "fit into memory"),
        (lambda: ps.sliced_wasserstein(torch.zeros(1, 2).expand(10**13, 2), np.ones((3, 2))), "fit into memory"),
        (lambda: ps.sliced_wasserstein(np.ones((3, 2)), np.ones((3, 2)), projections=10**13), "fit into memory"),
        (lambda: ps.sliced_wasserstein(np.ones((3, 2)), np.ones((3, 2)), projections=2.5), "whole number"),
        (lambda: ps.mmd2(np.zeros((4_000_000, 1), dtype=np.float32), np.ones((3, 1))), "at most 1e\\+13 pairs"),
    ],
)
def test_metrics_refuse(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
