"""Mixtures by EM: against scikit-learn, against perturbed likelihoods, and on data that are few or degenerate."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

import polyscore as ps
from polyscore.mixtures import SHAPES, Fit, fit_halves, fit_mixture
from polyscore.mixtures.dense import _earned, _enough
from polyscore.mixtures.em import Prior, Products, _floored, expect, improved, maximise
from polyscore.mixtures.shapes import low_rank, shapes_for


def three_parts(n: int, seed: int = 0) -> torch.Tensor:
    covs = [[[1.0, 0.6], [0.6, 0.8]], [[0.3, 0.0], [0.0, 2.0]], [[0.5, -0.2], [-0.2, 0.4]]]
    mixture = ps.Mixture([[0.0, 0.0], [5.0, 1.0], [-1.0, 6.0]], covs, [0.5, 0.3, 0.2])
    return mixture.sample(n, seed=seed, dtype=torch.float64)


def start(x: torch.Tensor, count: int, shape, prior: Prior) -> Fit:
    shares = torch.nn.functional.one_hot(torch.arange(len(x)) % count, count).double()
    shares[:, 0] += (x[:, 0] > x[:, 0].mean()).double()
    return maximise(Products(x), shares / shares.sum(1, keepdim=True), shape, prior)


def without_prior(x: torch.Tensor) -> Prior:
    return Prior(torch.ones(x.shape[1], dtype=x.dtype), 0.0, torch.full((x.shape[1],), 1e-12, dtype=x.dtype))


@pytest.mark.parametrize("shape, kind", [(0, "full"), (1, "diag"), (2, "spherical"), (3, "tied")])
def test_likelihood_and_bic_agree_with_scikit_learn(shape, kind):
    x = three_parts(500)
    fit = improved(x, start(x, 3, SHAPES[shape], without_prior(x)), without_prior(x), rounds=2000, least=1e-9)
    precisions = torch.linalg.inv(fit.covariances)
    given = {"full": precisions, "diag": precisions.diagonal(dim1=1, dim2=2), "spherical": precisions[:, 0, 0],
             "tied": precisions[0]}[kind]  # fmt: skip
    other = GaussianMixture(3, covariance_type=kind, reg_covar=0.0, tol=1e-12, max_iter=5000,
                            weights_init=fit.weights.numpy(), means_init=fit.means.numpy(),
                            precisions_init=given.numpy()).fit(x.numpy())  # fmt: skip
    assert fit.log_likelihood == pytest.approx(500 * other.score(x.numpy()), abs=1e-3)  # both at the same optimum
    assert -2 * fit.bic == pytest.approx(other.bic(x.numpy()), abs=1e-2)
    np.testing.assert_allclose(fit.log_prob(x).numpy(), other.score_samples(x.numpy()), atol=1e-4)


@pytest.mark.parametrize("shape", [*SHAPES, low_rank(1)], ids=lambda shape: shape.name)
def test_every_round_is_at_least_as_likely(shape):
    x = torch.cat([three_parts(300), three_parts(300, seed=1)[:, :1]], 1)
    fit = start(x, 3, shape, without_prior(x))
    seen = []
    for _ in range(30):
        shares, likelihood = expect(fit, Products(x))
        seen.append(likelihood)
        fit = maximise(Products(x), shares, shape, without_prior(x))
    assert all(b > a - 1e-8 for a, b in itertools.pairwise(seen)) and seen[-1] > seen[0] + 1


@pytest.mark.parametrize("shape", [*SHAPES, low_rank(1), low_rank(2)], ids=lambda shape: shape.name)
def test_restricted_covariances_are_the_most_likely_of_their_shape(shape):
    """Minus twice the likelihood, sum_k n_k (log det C_k + tr C_k^-1 S_k), grows for every small change in shape."""
    draw = torch.Generator().manual_seed(0)
    roots = torch.randn(2, 4, 4, generator=draw, dtype=torch.float64)
    scatter, shares = roots @ roots.mT, torch.tensor([3.0, 1.0], dtype=torch.float64)

    def cost(covariances: torch.Tensor) -> float:
        fits = torch.logdet(covariances) + (torch.linalg.inv(covariances) @ scatter).diagonal(dim1=1, dim2=2).sum(1)
        return (shares @ fits).item()

    best = cost(shape.restrict(scatter, shares))
    for seed in range(20):
        away = 0.1 * torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        other = shape.restrict(scatter + away + away.mT + 0.5 * torch.eye(4), shares)
        if bool((torch.linalg.eigvalsh(other) > 0).all()):
            assert cost(other) > best


def test_numbers_are_counted():
    """Directions that a small change can take: the rank of the shape's own tangent at a random covariance."""
    for shape in [*SHAPES, low_rank(1), low_rank(2)]:
        draw = torch.Generator().manual_seed(1)
        base = torch.randn(2, 5, 5, generator=draw, dtype=torch.float64)
        scatter, shares = base @ base.mT + torch.eye(5), torch.tensor([1.0, 2.0], dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(
            lambda s, shape=shape, shares=shares: shape.restrict(s + s.mT, shares), scatter
        )
        rank = int(torch.linalg.matrix_rank(jacobian.reshape(50, 50), rtol=1e-6))
        assert rank == shape.numbers(2, 5), shape.name


@pytest.mark.parametrize("n", [300, 3000])
def test_bic_finds_number_and_shape(n):
    found = fit_mixture(three_parts(n), seed=0)
    assert found.count == 3 and found.shape.name == "full"
    assert sorted(found.weights.tolist()) == pytest.approx([0.2, 0.3, 0.5], abs=5 * math.sqrt(0.25 / n))
    one = fit_mixture(ps.Gaussian(cov=[4.0, 0.5]).sample(n, seed=3), seed=0)
    assert one.count == 1 and one.shape.name == "diagonal"


def test_low_rank_is_found_in_many_dimensions():
    draw = torch.Generator().manual_seed(0)
    ways = torch.randn(2, 30, generator=draw, dtype=torch.float64)
    x = torch.randn(400, 2, generator=draw, dtype=torch.float64) @ ways
    found = fit_mixture(x + 0.3 * torch.randn(400, 30, generator=draw, dtype=torch.float64), seed=0)
    assert found.count == 1 and found.shape.name == "rank 2"
    assert "rank 1" not in [shape.name for shape in shapes_for(9, 1)]


@pytest.mark.filterwarnings("ignore:points should be many")
@pytest.mark.parametrize("points", [
    torch.tensor([[1.0, 2.0]]),
    torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    torch.ones(50, 3),
    torch.cat([torch.randn(40, 1, generator=torch.Generator().manual_seed(0)), torch.ones(40, 1)], 1),
    torch.randn(6, 20, generator=torch.Generator().manual_seed(0)),
    torch.tensor([[0.0, 0.0]] * 30 + [[1.0, 1.0]] * 30),
    1e6 + 1e-3 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
])  # fmt: skip
def test_few_or_degenerate_points_give_a_mixture_all_the_same(points):
    found = fit_mixture(points, seed=0)
    assert bool((torch.linalg.eigvalsh(found.covariances) > 0).all())
    assert all(bool(part.isfinite().all()) for part in (found.weights, found.means, found.covariances))
    assert math.isfinite(found.log_prob(points.double()).sum().item())


def test_too_few_points_are_warned_of():
    with pytest.warns(ps.errors.DegeneracyWarning, match="points should be many"):
        fit_mixture(torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))


@pytest.mark.filterwarnings("ignore:points should be many")
@pytest.mark.parametrize("dim, n", [(12, 10), (12, 13), (50, 10), (50, 40)])
def test_few_points_for_a_covariance_are_not_taken_for_a_plane(dim, n):
    """Standard normals: a covariance through all points is singular, and its likelihood would have no bound. A variance
    of ten points is below 0.1 in one of fifty columns once in 30, their mean once in 10^100."""
    found = fit_mixture(torch.randn(n, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64))
    assert torch.linalg.eigvalsh(found.covariances).min() > 0.1
    fresh = torch.randn(1000, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    truth = -0.5 * (fresh.square().sum(1) + dim * math.log(2 * math.pi))
    assert (truth - found.log_prob(fresh)).mean() < dim  # nats; 10^4 and more on a plane


def test_points_in_a_pattern_are_seen_as_points_in_any_order():
    """Every other one of 40,000 belongs to the other mode: what a stride of two takes has one."""
    n = 40_000
    x = torch.randn(n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0] += 3 * (1 - 2 * (torch.arange(n) % 2))
    found = fit_mixture(x)
    assert found.count == 2
    assert sorted(found.means.flatten().tolist()) == pytest.approx([-3, 3], abs=0.05)  # seven standard errors
    assert all(half.count == 2 for half in fit_halves(x, found))


def test_the_same_seed_gives_the_same_bytes():
    x = three_parts(200)
    first, again = fit_mixture(x, seed=4), fit_mixture(x, seed=4)
    assert torch.equal(first.covariances, again.covariances) and torch.equal(first.means, again.means)


def board(n: int, seed: int) -> torch.Tensor:
    """The dark fields of a board of 6 x 6: edges that eight Gaussians cannot draw."""
    draw = torch.Generator().manual_seed(seed)
    x = 6 * torch.rand(3 * n, 2, generator=draw, dtype=torch.float64)
    return x[x.floor().sum(1) % 2 == 0][:n]


def test_local_gaussians_are_stacked_where_held_out_points_ask_for_them():
    x, fresh = board(3000, 0), board(3000, 1)
    small, both = (fit_mixture(x, most=8, dense=dense) for dense in (0, 64))
    assert both.count in (small.count + 32, small.count + 64)
    assert both.weights.sum().item() == pytest.approx(1) and bool((both.weights > 0).all())
    gains = both.log_prob(fresh) - small.log_prob(fresh)
    assert gains.mean() > 0.1  # nats a point that neither has seen
    # Far out the wide components speak alone: what a density does beyond its data stays that of the small mixture.
    far = torch.tensor([[40.0, -30.0], [-25.0, 20.0]], dtype=torch.float64, requires_grad=True)
    slopes = [torch.autograd.grad(fit.log_prob(far).sum(), far)[0] for fit in (small, both)]
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_data_that_a_small_mixture_fits_stay_small(dim):
    """Over twelve data sets; stacking must earn four standard errors, so that a false alarm is below 1e-3."""
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(2000, dim, generator=draw, dtype=torch.float64)
        x = torch.cat([x[:1400] * 2, x[1400:] + 4])
        assert torch.equal(fit_mixture(x, most=4, dense=128).means, fit_mixture(x, most=4).means)


def test_rows_that_repeat_do_not_make_local_gaussians():
    """400 normal points six times each: held out by rows, four fifths of the copies would give every fifth away."""
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64).repeat_interleave(6, 0)
    fresh = torch.randn(4000, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    plain, both = (fit_mixture(x, most=4, dense=dense).log_prob(fresh).mean() for dense in (0, 128))
    assert both > plain - 0.01


def test_products_give_the_joint_density_and_the_moments_of_plain_sums():
    x = torch.randn(300, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 2 + 1000
    fit = fit_mixture(x, most=3)
    points, shares = Products(x), torch.softmax(fit.log_joint(x) + 0.1 * x[:, :1] * torch.arange(fit.count), -1)
    assert torch.allclose(points.log_joint(fit), fit.log_joint(x), rtol=1e-9, atol=1e-9)
    sizes, means, scatter = points.moments(shares)
    for k in range(fit.count):
        away = x - (mean := (shares[:, k, None] * x).sum(0) / shares[:, k].sum())
        assert torch.allclose(means[k], mean) and torch.isclose(sizes[k], shares[:, k].sum())
        assert torch.allclose(scatter[k], (shares[:, k, None] * away).T @ away, atol=1e-8)


def test_rows_that_repeat_go_into_one_half():
    """Of 61 rows, each three times: 31 and 30 of them, whole, and none where nothing is left to cut."""
    x = three_parts(61).repeat(3, 1)
    whole = fit_mixture(x)
    assert sorted(half.points for half in fit_halves(x, whole)) == [90, 93]
    assert fit_halves(x[:1].repeat(50, 1), whole) == []


def test_halves_of_too_few_points_for_the_components_tell_nothing():
    """Of six clusters halves of few points hold one or two: that says nothing of the form, and passed for it."""
    clusters = torch.tensor([(-3, 2.5), (0, 2.5), (3, 2.5), (-3, -2.5), (0, -2.5), (3, -2.5)], dtype=torch.float64)
    draw = torch.Generator().manual_seed(4)
    x = clusters.repeat(100, 1) + 0.6 * torch.randn(600, 2, generator=draw, dtype=torch.float64)
    whole = fit_mixture(x)
    assert whole.count == 6 and fit_halves(x[:350], whole) == []
    assert [half.count for half in fit_halves(x, whole)] == [6, 6]


def test_the_prior_keeps_components_off_single_points():
    """By hand: three points in one place, and d + 2 of the prior's, whose variances are a third of the data's."""
    x = torch.cat([three_parts(300), torch.tensor([[9.0, 9.0]], dtype=torch.float64).repeat(3, 1)])
    shares = torch.zeros(303, 3, dtype=torch.float64)
    shares[:150, 0] = shares[150:300, 1] = shares[300:, 2] = 1
    fit = maximise(Products(x), shares, SHAPES[0], Prior.of(x, 3))
    torch.testing.assert_close(fit.covariances[2], (4 / 7 * x.var(0, correction=0) / 3).diag())
    alone = maximise(Products(x), torch.ones(303, 1, dtype=torch.float64), SHAPES[0], Prior.of(x, 1))
    torch.testing.assert_close(alone.covariances[0], x.T.cov(correction=0))


@pytest.mark.parametrize("dim, place", [(3, 1e6), (20, 0.0), (20, -300.0)])
def test_the_joint_density_is_that_of_torch_far_from_the_origin(dim, place):
    draw = torch.Generator().manual_seed(dim)
    means = place + 3 * torch.randn(4, dim, generator=draw, dtype=torch.float64)
    roots = torch.randn(4, dim, dim, generator=draw, dtype=torch.float64) / dim**0.5
    covariances = roots @ roots.mT + 0.1 * torch.eye(dim, dtype=torch.float64)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    x = place + 5 * torch.randn(50, dim, generator=draw, dtype=torch.float64)
    parts = [torch.distributions.MultivariateNormal(m, c).log_prob(x) for m, c in zip(means, covariances)]
    expected = weights.log() + torch.stack(parts, 1)
    torch.testing.assert_close(
        Fit(weights, means, covariances, SHAPES[0], 50).log_joint(x), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("dim", [1, 3])
def test_the_prior_shares_the_volume_of_the_data_among_the_components(dim):
    x = torch.randn(200, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.arange(
        1, dim + 1
    )
    volumes = [Prior.of(x, count).variances.prod().sqrt() * count for count in (1, 7)]
    torch.testing.assert_close(volumes[1], volumes[0])
    assert volumes[0].item() == pytest.approx(x.var(0, correction=0).prod().sqrt().item())


def test_no_direction_is_narrower_than_the_floor_in_the_units_of_its_column():
    """Deviations of 0.001 and 1; the second covariance has a narrow direction that is turned in those units."""
    floor, root = torch.tensor([1e-6, 1.0], dtype=torch.float64), torch.tensor([1e-3, 1.0], dtype=torch.float64)
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    narrow, wide = (root[:, None] * (turn * torch.tensor([low, 5.0], dtype=torch.float64)) @ turn.T * root
                    for low in (0.1, 1.0))  # fmt: skip
    straight = torch.diag(torch.tensor([1e-9, 5.0], dtype=torch.float64))
    found = _floored(torch.stack([straight, narrow, wide]), floor)
    torch.testing.assert_close(
        found, torch.stack([torch.diag(torch.tensor([1e-6, 5.0], dtype=torch.float64)), wide, wide])
    )


def test_one_number_of_components_that_earns_nothing_does_not_end_the_search():
    """Four clusters on a square, three deviations from its middle: a third component says little, a fourth all."""
    corners = 3 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    noise = torch.randn(240, 2, generator=torch.Generator().manual_seed(244), dtype=torch.float64)
    assert fit_mixture(corners[torch.arange(240) % 4] + noise).count == 4


@pytest.mark.parametrize("n, earns", [(100, False), (10_000, True)])
def test_stacking_must_earn_more_than_four_errors(n, earns):
    """35 of 100 points are e times as likely, the others e times less: the best share is in closed form, and what it
    gains is 0.017 nats a point with a deviation of 0.2."""
    small, up = torch.zeros(n, dtype=torch.float64), torch.arange(n) % 100 < 35
    gain, share = _earned(torch.where(up, 1.0, -1.0).double(), small)
    best = (0.35 * (math.e - 1) - 0.65 * (1 - 1 / math.e)) / ((math.e - 1) * (1 - 1 / math.e))
    expected = 0.35 * math.log(1 + best * (math.e - 1)) + 0.65 * math.log(1 - best * (1 - 1 / math.e))
    assert (gain, share) == pytest.approx((expected, best) if earns else (0, 0), rel=1e-4)


def test_a_local_gaussian_stands_for_enough_points():
    """Twenty, or three times its own numbers a coordinate."""
    assert _enough(640, 32, 2) and not _enough(639, 32, 2) and _enough(960, 32, 9) and not _enough(959, 32, 9)
