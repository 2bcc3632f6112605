"""Exact references: each method against closed forms, plain grid sums and the others."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import (
    F64,
    closed_form,
    compose,
    gaussian_family,
    own_mixtures,
    shared_mixtures,
    vector,
    within_standard_errors,
)
from polyscore.errors import ArgumentError, CompositionError, DegeneracyWarning, ImproperError
from polyscore.rng import generator
from polyscore.targets import OnGrid, draws


def shared_components(dim: int = 3) -> ps.Family:
    """Mixtures over the same components, as rejection needs."""
    means = np.stack([vector(dim, seed, 2) for seed in (71, 72, 73)])
    weights = {"a": [0.7, 0.2, 0.1], "b": [0.5, 0.1, 0.4], "base": [0.4, 0.3, 0.3]}
    return ps.Family({name: ps.Mixture(means, cov=0.8, weights=w) for name, w in weights.items()})


def grid_moments(q: ps.Composition, half: float = 16, count: int = 401):
    """log Z, mean and second moments by a plain sum over a box."""
    dim = q.event[0]
    axis = torch.linspace(-half, half, count if dim == 2 else 8001 if dim == 1 else 101, dtype=F64)
    grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    logs = q.log_density(grid)
    p = torch.softmax(logs, 0)
    log_z = torch.logsumexp(logs, 0).item() + dim * math.log((axis[1] - axis[0]).item())
    return log_z, p @ grid, torch.einsum("n,ni,nj->ij", p, grid, grid)


def check_draws(x: torch.Tensor, mean, second, sigmas: float = 5.5, slack: float = 0.0) -> None:
    """First and second moments within 5.5 standard errors: 4e-8 each, under 1e-5 over a file."""
    x = x.double()
    within_standard_errors(x, mean, sigmas, slack)
    within_standard_errors(torch.einsum("ni,nj->nij", x, x), second, sigmas, slack)


GAUSSIANS = [{"a": 1, "b": 1, "base": -1}, {"a": 2, "base": -0.5}, {"a": 0.3, "b": 0.2}, {"b": 1}]


@pytest.mark.parametrize("exponents", GAUSSIANS, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_closed_form(dim, exponents):
    q = compose(gaussian_family(dim), **exponents)
    target = ps.exact(q)
    mean, cov, log_z = closed_form(q)
    assert target.method == "closed form"
    assert target.log_evidence == pytest.approx(log_z, abs=1e-9)
    check_draws(target.sample(20_000, seed=1), mean, cov + np.outer(mean, mean))
    x = torch.randn(10, dim, dtype=F64, generator=torch.Generator().manual_seed(0))
    gap = x.numpy() - mean
    expected = (
        -0.5 * np.einsum("ni,ij,nj->n", gap, np.linalg.inv(cov), gap) - 0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]
    )
    torch.testing.assert_close(target.log_prob(x), torch.from_numpy(expected))
    torch.testing.assert_close(target.log_prob(x), q.log_density(x) - log_z)


TWO = {
    "own": compose(own_mixtures(2), a=0.7, b=0.6, base=-0.1),
    "shared": compose(shared_mixtures(2), a=1, b=1, base=-1),
    "one-dimensional": compose(own_mixtures(1), a=1.2, b=0.5, base=-0.3),
    "single": compose(own_mixtures(2), a=1),
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("method", [None, "importance"])
def test_mixtures_in_one_and_two_dimensions(name, method):
    q = TWO[name]
    log_z, mean, second = grid_moments(q)
    target = ps.exact(q, method=method)
    assert target.method == (method or "grid")
    assert target.log_evidence == pytest.approx(log_z, abs=1e-4 if method is None else 0.03)
    check_draws(target.sample(4000, seed=2), mean, second, slack=0.0 if method is None else 0.01)
    x = torch.randn(10, *q.event, dtype=F64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(target.log_prob(x), q.log_density(x) - log_z, rtol=0, atol=0.04)


@pytest.mark.slow
def test_the_grid_agrees_with_the_closed_form():
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    mean, cov, log_z = closed_form(q)
    target = ps.exact(q, method="grid")
    assert target.log_evidence == pytest.approx(log_z, abs=1e-4)
    check_draws(target.sample(4000, seed=3), mean, cov + np.outer(mean, mean))


@pytest.mark.parametrize("exponents", [{"a": 1, "b": 1, "base": -1}, {"a": 2, "base": -0.5}, {"a": 1.5}], ids=str)
def test_rejection_beyond_two_dimensions(exponents):
    q = compose(shared_components(), **exponents)
    target = ps.exact(q)
    log_z, mean, second = grid_moments(q, half=9)
    assert target.method == "rejection"
    assert target.log_evidence == pytest.approx(log_z, abs=0.02)
    check_draws(target.sample(4000, seed=4), mean, second)


def test_a_numerator_without_a_denominator_is_bounded_by_its_peaks():
    """Where these are above 1: draws of N(0, 4) are accepted in a share of Z over their root, which 20,000 pilots know
    to 3 %, five such."""
    p = ps.Family({"wide": ps.Gaussian(cov=4.0, dim=1), "narrow": ps.Mixture([[0.0], [1.0]], 0.01, [0.3, 0.7])})
    q = p["wide"] * p["narrow"] ** 0.5
    target, (log_z, mean, second) = ps.exact(q, "rejection"), grid_moments(q, 8)
    assert target.acceptance == pytest.approx(math.exp(log_z) / (2 * math.pi * 0.01) ** -0.25, rel=0.15)
    check_draws(target.sample(5000, seed=0), mean, second)


def test_the_rejection_bound_is_a_bound():
    q = compose(shared_components(2), a=1, b=1, base=-1)
    target = ps.exact(q, method="rejection")
    axis = torch.linspace(-12, 12, 301, dtype=F64)
    grid = torch.cartesian_prod(axis, axis)
    ratio = q.log_density(grid) - target.proposal.log_prob(grid)
    assert ratio.max().item() <= target.log_bound + 1e-9


@pytest.mark.slow
def test_importance_beyond_two_dimensions():
    q = compose(own_mixtures(3), a=0.7, b=0.6, base=-0.1)
    target = ps.exact(q)
    log_z, mean, second = grid_moments(q, half=11)
    assert target.method == "importance"
    assert target.log_evidence == pytest.approx(log_z, abs=0.03)
    check_draws(target.sample(4000, seed=5), mean, second, slack=0.02)
    assert 500 < target.ess < 5_000_000


@pytest.mark.parametrize(
    "q",
    [compose(gaussian_family(2), a=1), TWO["one-dimensional"], compose(shared_components(), a=1, b=1, base=-1),
     compose(own_mixtures(3), a=0.7, b=0.6)],
    ids=["closed form", "grid", "rejection", "importance"],
)  # fmt: skip
def test_draws_belong_to_their_seed(q):
    state = torch.random.get_rng_state()
    target = ps.exact(q)
    one, again, other = (target.sample(50, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.shape == (50, *q.event)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_order_of_importance_draws_carries_no_structure():
    """Halves of a draw of 4000 have one mean: 5.5 standard errors, 4e-8 each."""
    x = ps.exact(TWO["own"], method="importance").sample(4000, seed=1).double()
    first, second = x[:2000], x[2000:]
    error = (first.var(0) / 2000 + second.var(0) / 2000).sqrt()
    assert bool(((first.mean(0) - second.mean(0)).abs() < 5.5 * error).all())


def test_exact_refuses():
    with pytest.raises(ImproperError, match="normalisable"):
        ps.exact(compose(gaussian_family(2), a=0.2, base=-1))
    with pytest.raises(ArgumentError, match="method must be one of closed form, grid"):
        ps.exact(TWO["own"], method="magic")
    with pytest.raises(ArgumentError, match="Gaussians"):
        ps.exact(TWO["own"], method="closed form")
    with pytest.raises(ArgumentError, match="one or two dimensions"):
        ps.exact(compose(own_mixtures(3), a=1), method="grid")
    with pytest.raises(ArgumentError, match="rejection must"):
        ps.exact(compose(own_mixtures(3), a=1, b=1, base=-1), method="rejection")
    for q in (compose(gaussian_family(2), a=1), TWO["one-dimensional"], compose(shared_components(), a=1)):
        with pytest.raises(ArgumentError, match="n must be at least 1"):
            ps.exact(q).sample(0)

    class Learned:
        event = (2,)

        def score(self, x, t):
            return -x

    with pytest.raises(CompositionError, match="closed form"):
        ps.exact(ps.Family({"m": Learned()})["m"])


def wide_over_narrow():
    """Six dimensions: the quotient is far wider than the product of the numerators, by components in closed form."""
    parts = {
        "a": ps.Mixture(np.zeros((2, 6)), [1.0, 0.5]),
        "b": ps.Gaussian(cov=[1.0] * 6),
        "base": ps.Gaussian(cov=[0.56] * 6),
    }
    pieces = [
        closed_form(compose(ps.Family({**parts, "a": ps.Gaussian(cov=[v] * 6)}), a=1, b=1, base=-1))[2]
        for v in (1.0, 0.5)
    ]
    return compose(ps.Family(parts), a=1, b=1, base=-1), np.logaddexp(*pieces) + math.log(0.5)


def test_a_poor_importance_reference_is_warned_of_at_the_callers_line():
    """The paper's proposal keeps 110 of 100,000 draws and an evidence wrong by 1; ours is good and silent."""
    q, log_z = wide_over_narrow()
    target = ps.exact(q, method="product importance")
    for call in (lambda: target.sample(100, seed=0), lambda: target.log_evidence):
        with pytest.warns(
            DegeneracyWarning, match="the product importance reference of a .* effective sample size"
        ) as caught:
            call()
        assert target.ess < 500
        assert Path(caught[0].filename) == Path(__file__)
    assert abs(target.log_evidence - log_z) > 0.5
    good = ps.exact(q)  # a warning would be an error here
    good.sample(100, seed=0)
    assert good.ess > 10_000
    # a standard error of 1 / sqrt(ess) = 0.004
    assert good.log_evidence == pytest.approx(log_z, abs=0.03)


def test_rejection_that_accepts_nothing_is_left_for_importance():
    """Two narrow modes under a wide Gaussian: log Z was -14.32 without a word, and no sample came."""
    p = ps.Family({"a": ps.Mixture([[-2, 0, 0], [2, 1, 1]], 1e-4, [0.3, 0.7]), "w": ps.Gaussian(cov=[9, 9, 9])})
    q = p["a"] ** 0.5 * p["w"]
    # the modes are 2e4 deviations apart: sqrt(w_k) times the integral of N_k^.5, times N(mean_k), each to 1e-4
    heights = [math.sqrt(w) * math.exp(-0.5 * r2 / 9) for w, r2 in ((0.3, 4), (0.7, 6))]
    root = 0.75 * math.log(2 * math.pi * 1e-4) + 1.5 * math.log(2)
    log_z = math.log(sum(heights)) + root - 1.5 * math.log(2 * math.pi * 9)
    target = ps.exact(q)
    assert target.method == "importance"
    assert log_z == pytest.approx(-10.505, abs=1e-3)
    assert target.log_evidence == pytest.approx(log_z, abs=5e-3)
    assert target.ess > 100_000
    share = (target.sample(4000, seed=0)[:, 0] > 0).double().mean().item()
    # 4000 draws: a standard error of 0.008, five of them 6e-7
    assert share == pytest.approx(heights[1] / sum(heights), abs=0.04)
    with pytest.warns(DegeneracyWarning, match="by rejection rests on an effective sample size"):
        poor = ps.exact(q, "rejection")
        assert abs(poor.log_evidence - log_z) > 1
    assert poor.ess < 500
    assert poor.acceptance < 1e-3
    assert ps.exact(compose(shared_components(), a=1, b=1, base=-1), "rejection").acceptance > 0.01


def along_one_axis(dim: int, parts, exponents, seed: int):
    """Mixtures that differ along one random direction only; log Z, mean and variance there by a fine 1-D sum.

    Args:
        parts: for each condition (means, variances, weights) along the direction and its variance across.
    """
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]
    members, total, across = {}, 0.0, 0.0
    reach = max(np.abs(means).max() + 12 * np.sqrt(np.max(variances)) for means, variances, _, _ in parts)
    narrowest = min(np.sqrt(np.min(variances)) for _, variances, _, _ in parts)
    dense = [m + np.sqrt(v) * np.linspace(-30, 30, 6001) for means, vs, _, _ in parts for m, v in zip(means, vs)]
    x = np.unique(np.concatenate([np.linspace(-reach, reach, 20_001), *dense]))
    assert narrowest > 0
    for k, ((means, variances, weights, other), w) in enumerate(zip(parts, exponents)):
        covs = [(basis * np.array([v] + [other] * (dim - 1))) @ basis.T for v in variances]
        members[str(k)] = ps.Mixture(np.outer(means, basis[:, 0]), [0.5 * (c + c.T) for c in covs], weights)
        gaps = (x - np.array(means)[:, None]) ** 2 / np.array(variances)[:, None]
        logs = np.log(weights)[:, None] - 0.5 * gaps - 0.5 * np.log(2 * np.pi * np.array(variances))[:, None]
        total = total + w * np.logaddexp.reduce(logs, 0)
        across += w / other
    density = np.exp(total - total.max())
    mass = np.trapezoid(density, x)
    mean = np.trapezoid(density * x, x) / mass
    variance = np.trapezoid(density * (x - mean) ** 2, x) / mass
    gaussians = sum(-0.5 * w * math.log(2 * math.pi * other) for (*_, other), w in zip(parts, exponents))
    log_z = math.log(mass) + total.max() + (dim - 1) * (gaussians + 0.5 * math.log(2 * math.pi / across))
    q = ps.Composition(ps.Family(members), dict(zip(members, exponents)))
    return q, basis[:, 0], log_z, mean, variance


ALONG = {
    "narrow and far": ([([-1e4, 3.0], [1e-8, 1e-4], [0.4, 0.6], 2.0)], [1.0]),
    "W = 0.5": ([([-2.0, 1.0], [1e-4, 0.3], [0.2, 0.8], 1.0), ([0.0, 4.0], [9.0, 1.0], [0.7, 0.3], 3.0)], [0.3, 0.2]),
    "W = 2, quotient": (
        [([-1.0, 2.0], [0.5, 1.0], [0.5, 0.5], 1.0), ([0.0, 1.0], [4.0, 2.0], [0.9, 0.1], 2.0),
         ([0.5, -0.5], [6.0, 5.0], [0.3, 0.7], 4.0)],
        [1.5, 1.0, -0.5],
    ),
    "three numerators": (
        [([-1.0, 2.0], [0.5, 1.0], [0.5, 0.5], 1.0), ([0.0, 3.0], [2.0, 0.1], [0.6, 0.4], 2.0),
         ([1.0, -3.0], [3.0, 1.0], [0.3, 0.7], 1.5)],
        [1.0, 0.5, 0.5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dim", [1, 3, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (2, 5, 6, 50))])
@pytest.mark.parametrize("name", ALONG)
def test_every_method_against_a_sum_along_one_axis(name, dim):
    """Evidence to 0.02 (the smallest effective sample size is 40,000: four standard errors), mean and variance of 2000
    draws to five standard errors, 6e-7 each; every ESS is high, and a warning would be an error here."""
    q, axis, log_z, mean, variance = along_one_axis(dim, *ALONG[name], seed=dim)
    target = ps.exact(q)
    assert target.log_evidence == pytest.approx(log_z, abs=0.02)
    draws = target.sample(2000, seed=3, dtype=F64) @ torch.from_numpy(axis)
    assert target.ess > 40_000
    assert draws.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(variance / 2000))
    within_standard_errors((draws - mean)[:, None] ** 2, variance, 5)


def test_parts_of_a_draw_are_the_draw(monkeypatch):
    """Bit for bit, whatever the size of the parts: stored references rest on it."""
    monkeypatch.setattr(draws, "_CHUNK_NUMBERS", 500)
    q = compose(own_mixtures(3), a=0.7, b=0.6, base=-0.1)
    for source in (ps.Gaussian(cov=[1.0, 2.0, 3.0]), gaussian_family(3).members["a"], own_mixtures(3).members["b"]):
        for count in (1, 15, 16, 17, 1000, 1003):
            found = torch.cat(list(draws.parts(source, count, 7, q)))
            assert torch.equal(found, source.sample(count, seed=7, dtype=F64)), count
    assert max(map(len, draws.parts(source, 1003, 7, q))) < 100


@pytest.mark.parametrize("method", ["product importance", "importance"])
def test_importance_in_parts_is_importance_at_once(method):
    """The plain algorithm: all draws, all weights, systematic points, a permutation."""
    q, n, seed = TWO["own"], 300, 5
    target = ps.exact(q, method)
    x = target.proposal.sample(max(target.oversampling * n, 100_000), seed=seed << 20, dtype=F64)
    shares = torch.softmax(q.log_density(x) - target.proposal.log_prob(x), 0).cumsum(0)
    u = torch.rand(1, generator=generator(seed, "offset"), dtype=F64)
    chosen = torch.searchsorted(shares, (torch.arange(n) + u) / n * shares[-1], right=True).clamp_max(len(x) - 1)
    expected = x[chosen][torch.randperm(n, generator=generator(seed, "order"))].float()
    assert torch.equal(target.sample(n, seed=seed), expected)


def test_rejection_in_parts_is_rejection_at_once(monkeypatch):
    q = compose(shared_components(), a=1, b=1, base=-1)
    target = ps.exact(q)
    x = target.proposal.sample(10_000, seed=3 << 20, dtype=F64)
    u = torch.rand(10_000, generator=generator(3, "accept", 0), dtype=F64)
    kept = x[u.log() < q.log_density(x) - target.proposal.log_prob(x) - target.log_bound]
    monkeypatch.setattr(draws, "_CHUNK_NUMBERS", 1000)
    assert torch.equal(target.sample(100, seed=3), kept[:100].float())


def test_memory_does_not_grow_with_the_number_of_draws():
    """10,000 points in five dimensions held 4.65 GB; an array over points, components and coordinates stays small."""
    q = compose(own_mixtures(5), a=0.7, b=0.6, base=-0.1)
    target = ps.exact(q, "importance")
    sizes = [len(x) * len(target.proposal.weights) * 5 * 8 for x in draws.parts(target.proposal, 300_000, 0, q)]
    assert len(sizes) > 1
    assert max(sizes) < 20_000_000


METHODS = {
    "closed form": compose(gaussian_family(2), a=1),
    "grid": TWO["one-dimensional"],
    "rejection": compose(shared_components(), a=1, b=1, base=-1),
    "importance": compose(own_mixtures(3), a=0.7, b=0.6),
}


@pytest.mark.parametrize("method", METHODS)
def test_counts_that_cannot_fit_are_refused_before_any_draw(method):
    target = ps.exact(METHODS[method], method)
    for n in (10**12, 10**20):
        with pytest.raises(ArgumentError, match=f"{n} draws must fit into memory; got .* needed, .* available"):
            target.sample(n)
    for n in (0, -1, 2.5, True, "3", None):
        with pytest.raises(ArgumentError, match="n must be"):
            target.sample(n)


def test_edges_of_quotients_are_seen_by_the_grid():
    """N(0, 1) over two far Gaussians peaks in an edge that no component shows: 1 / slope = 0.075 wide."""
    p = ps.Family({"a": ps.Gaussian(cov=[1.0]), "b": ps.Mixture([[-15.0], [25.0]], 1.5)})
    q = p["a"] / p["b"]
    x = torch.linspace(-60, 60, 2_000_001, dtype=F64)
    log_z = torch.logsumexp(q.log_density(x[:, None]), 0).item() + math.log(120 / 2_000_000)
    target = ps.exact(q)
    assert target.method == "grid"
    assert target.log_evidence == pytest.approx(log_z, abs=1e-6)
    assert OnGrid(q, cells=100).coarseness > 0.5 > target.coarseness


@pytest.mark.parametrize(
    "other", [ps.Gaussian([1e3, -2e3], 2e-8), ps.Mixture([[1e3, -2e3], [1e3, -2e3]], [2e-8, 2e-8])]
)
def test_far_and_narrow_draws_are_told_of_and_come_in_float64(other):
    """Deviations of 8e-5 about 1000, where float32 has steps of 6e-5: 5000 draws were eleven points a coordinate. In
    float64 their variance is 1e-8 / 1.5 within five standard errors of sqrt(2 / 5000)."""
    q = compose(ps.Family({"a": ps.Gaussian([1e3, -2e3], 1e-8), "b": other}), a=1, b=1)
    target = ps.exact(q)
    with pytest.warns(DegeneracyWarning, match="draws must be finer"):
        assert target.sample(5000, seed=1).dtype == torch.float32
    x = target.sample(5000, seed=1, dtype=F64)
    assert len(x[:, 0].unique()) == 5000
    assert ((x.var(0) / (1e-8 / 1.5) - 1).abs() < 0.1).all()


def test_draws_are_those_of_float64_rounded():
    """All kinds, in units too; a far coordinate that is as wide is nothing to tell of."""
    wide = ps.Family({"a": ps.Gaussian([1e5, 0.0], [1e4, 1e-10]), "b": ps.Gaussian([1e5, 0.0], [1e4, 1e-10])})
    data = torch.randn(100, 2, generator=generator(0, "test"), dtype=F64)
    fitted = ps.fit({"a": data, "b": 2 * data + 1}, kind="mixture", progress=False, device="cpu")
    for q, method in (
        (compose(wide, a=1, b=1), "closed form"),
        (compose(own_mixtures(2), a=1, b=1), "grid"),
        (compose(own_mixtures(2), a=1, b=1), "importance"),
        (compose(shared_components(), a=1, b=1, base=-1), "rejection"),
        (compose(fitted, a=1, b=0.5), None),
    ):
        target = ps.exact(q, method)
        one, other = target.sample(50, seed=3), target.sample(50, seed=3, dtype=F64)
        assert torch.allclose(one.double(), other, rtol=1e-6, atol=1e-6) and not torch.equal(one.double(), other)
    with pytest.raises(ArgumentError, match="dtype must be a floating-point type"):
        target.sample(5, dtype=torch.int32)
