"""Precision-weighted composition: the score of the noised composition, exact for Gaussians at every W."""

import json

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, closed_form, compose, gaussian_family, opaque, own_mixtures, points, within_standard_errors
from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.fields.precision import PrecisionField, at_least
from polyscore.samplers import build_sampler, describe
from polyscore.samplers.moves import AsOne
from polyscore.samplers.starts import noised

EXPONENTS = {
    "1,.7,-.3": {"a": 1, "b": 0.7, "base": -0.3},
    "1,1,-1": {"a": 1, "b": 1, "base": -1},
    ".3,.2": {"a": 0.3, "b": 0.2},
    "2,-.5": {"a": 2, "base": -0.5},
}
all_exponents = pytest.mark.parametrize("exponents", EXPONENTS.values(), ids=EXPONENTS)
TIMES = torch.tensor([0.999, 0.7, 0.4, 0.1, 0.01], dtype=F64)


def field_of(q, dtype=F64, floor=0.1, times=TIMES):
    return PrecisionField(q, times, torch.empty(0, dtype=dtype), 3.0, floor)


def noised_gaussian(q, t):
    """Mean and covariance of the composition after noising, in NumPy."""
    mean, cov, _ = closed_form(q)
    alpha, sigma = q.schedule.alpha(t).item(), q.schedule.sigma(t).item()
    return alpha * mean, alpha**2 * cov + sigma**2 * np.eye(len(mean))


# --- the score
@all_exponents
@pytest.mark.parametrize("hide, dtype, tolerance", [
    (lambda q: q, F64, 1e-7), (lambda q: q, torch.float32, 1e-4), (opaque, F64, 1e-6),
], ids=["float64", "float32", "by differences"])  # fmt: skip
def test_it_is_the_score_of_the_noised_composition(exponents, hide, dtype, tolerance):
    """-C_t^-1 (x - alpha m) in NumPy, three dimensions, matrices that do not commute; relative to the largest score.

    Differences of scores know I + sigma^2 grad s only down to 1e-4, so that early times are left out there."""
    q = compose(gaussian_family(3), **exponents)
    field, x = field_of(hide(q), dtype), points(q, 30, dtype=dtype)
    for i, t in enumerate(TIMES):
        if hide is opaque and i == 0:
            continue
        mean, cov = noised_gaussian(q, t)
        expected = -np.linalg.solve(cov, (x.double().numpy() - mean).T).T
        got, excess = field(x[None], i)
        assert excess is None and got.dtype == dtype
        assert np.abs(got[0].double().numpy() - expected).max() < tolerance * np.abs(expected).max()
        added = q.score(x, t).double().numpy()  # which is another path
        assert not 0.05 < t < 0.5 or np.abs(added - expected).max() > 0.01 * np.abs(expected).max()


def test_one_condition_keeps_its_score():
    q = own_mixtures(3)["a"]
    field, x = field_of(q), points(q, 40)[None]
    for i, t in enumerate(TIMES):
        torch.testing.assert_close(field(x, i)[0], q.score(x, t), rtol=1e-7, atol=1e-9)


def posterior_covariance(part, x, alpha, sigma):
    """Of x_0 given x_t = x under a mixture, in NumPy, by its components' posteriors."""
    shares, means, covs = [], [], []
    for mean, cov, share in zip(part.means.numpy(), part.components.covariances.numpy(), part.weights.numpy()):
        marginal = alpha**2 * cov + sigma**2 * np.eye(len(mean))
        gain = alpha * cov @ np.linalg.inv(marginal)
        away = x - alpha * mean
        shares.append(share * np.exp(-0.5 * away @ np.linalg.solve(marginal, away)) / np.linalg.det(marginal) ** 0.5)
        means.append(mean + gain @ away)
        covs.append(cov - alpha * gain @ cov)
    shares, means = np.array(shares) / sum(shares), np.array(means)
    middle = shares @ means
    return np.einsum("k,kde->de", shares, np.array(covs)) + np.einsum(
        "k,kd,ke->de", shares, means - middle, means - middle
    )


@pytest.mark.parametrize("hide, tolerance", [(lambda q: q, 1e-8), (opaque, 2e-3)], ids=["autograd", "differences"])
def test_precisions_are_those_of_the_clean_point(hide, tolerance):
    """R^-1 sigma^2 / alpha^2 is the covariance of x_0 given x_t of mixtures in three dimensions."""
    q = compose(own_mixtures(3), a=1, b=1, base=-1)
    field, x = field_of(hide(q)), points(q, 6, scale=1.0)
    for i in (1, 2, 3):
        alpha, sigma = q.schedule.alpha(TIMES[i]).item(), q.schedule.sigma(TIMES[i]).item()
        covs = (sigma / alpha) ** 2 * torch.linalg.inv(field.precisions(x[None], i))[:, 0]
        for name, got in zip(q.conditions, covs, strict=True):
            for point, cov in zip(x.numpy(), got.numpy(), strict=True):
                expected = posterior_covariance(q.family.members[name], point, alpha, sigma)
                np.testing.assert_allclose(cov, expected, atol=tolerance * np.abs(expected).max())


# --- the start
@all_exponents
def test_the_start_is_the_noised_composition(exponents):
    q = compose(gaussian_family(3), **exponents)
    t = torch.tensor(0.4, dtype=F64)
    start, (mean, cov) = noised(q, AsOne(), t), noised_gaussian(q, t)
    z = torch.eye(3, dtype=F64)
    rows = start.draw(z, z[:, 0]) - start.draw(0 * z, z[:, 0])
    np.testing.assert_allclose(start.mean.numpy(), mean, rtol=1e-4)
    np.testing.assert_allclose((rows.mT @ rows).numpy(), cov, rtol=1e-4, atol=1e-5)


# --- the sampler
@all_exponents
@pytest.mark.parametrize("churn", [1.0, 0.0])
def test_plain_denoising_along_it_ends_in_the_composition(exponents, churn):
    """Mean and covariance of 3000 whitened samples, 12 numbers within 4.5 standard errors, a false alarm in 10^4,
    besides 0.02 of 100 steps."""
    q = compose(gaussian_family(3), **exponents)
    x = ps.PrecisionWeighted(churn=churn).sample(q, 3000, seed=1).samples.double()
    mean, cov, _ = closed_form(q)
    white = (x - torch.as_tensor(mean)) @ torch.as_tensor(np.linalg.inv(np.linalg.cholesky(cov)).T)
    within_standard_errors(white, 0.0, 4.5, slack=0.02)
    within_standard_errors((white[:, :, None] * white[:, None]).flatten(1), torch.eye(3).flatten(), 4.5, slack=0.02)


@pytest.mark.parametrize("schedule", [ps.Cosine(), ps.LinearFlow()], ids=["Cosine", "LinearFlow"])
def test_schedules_that_end_in_pure_noise(schedule):
    """As above."""
    q = compose(gaussian_family(2, schedule), a=1, b=0.7, base=-0.3)
    x = ps.PrecisionWeighted().sample(q, 3000, seed=2).samples.double()
    mean, cov, _ = closed_form(q)
    white = (x - torch.as_tensor(mean)) @ torch.as_tensor(np.linalg.inv(np.linalg.cholesky(cov)).T)
    within_standard_errors(white, 0.0, 4.5, slack=0.02)
    within_standard_errors((white[:, :, None] * white[:, None]).flatten(1), torch.eye(2).flatten(), 4.5, slack=0.02)


@pytest.mark.slow
def test_mixtures_are_nearer_than_by_added_scores():
    """Sliced W2 to exact draws of a composition of mixtures: 0.05 was measured, and 0.31 by adding scores."""
    q = compose(own_mixtures(2), a=1, b=1, base=-1)
    reference = ps.exact(q).sample(3000, 1)
    mine, added = (
        ps.sliced_wasserstein(s.sample(q, 3000, seed=1).samples, reference)
        for s in (ps.PrecisionWeighted(), ps.Denoise())
    )
    assert mine < 0.5 * added


# --- what is not positive
def test_matrices_are_projected_by_their_eigenvalues():
    good, bad = (
        torch.diag(torch.tensor([2.0, 0.5, 1.0])),
        torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 3.0]]),
    )
    kept, low = at_least(torch.stack([good, bad]), 0.2)
    assert low.tolist() == [False, True] and torch.equal(kept[0], good)
    torch.testing.assert_close(torch.linalg.eigvalsh(kept[1]), torch.tensor([0.2, 3.0, 3.0]))
    torch.testing.assert_close(kept[1] @ torch.tensor([1.0, 1.0, 0.0]), torch.tensor([3.0, 3.0, 0.0]))


def test_a_precision_that_is_not_positive_is_projected_and_told_of():
    """Between the modes of a, x_0 is spread wider under a than under the base: 2 R_a - R_base is negative there."""
    apart = ps.Mixture([[-3.0, 0.0], [3.0, 0.0]], cov=0.5)
    q = compose(ps.Family({"a": apart, "base": ps.Gaussian(cov=[12.0, 3.0])}), a=2, base=-1)
    with pytest.warns(DegeneracyWarning, match=r"precision of the clean point must be positive; at t = .* projected"):
        run = ps.PrecisionWeighted(30).sample(q, 300, seed=1)
    assert run.samples.isfinite().all() and "projected" in run.summary()


def test_points_of_many_coordinates_are_refused():
    q = ps.Family({"a": ps.Gaussian(dim=65)})["a"]
    with pytest.raises(ArgumentError, match=r"be vectors of at most 64 coordinates; got \(65,\)"):
        ps.PrecisionWeighted().sample(q, 2)
    with pytest.raises(ArgumentError, match="floor must be a number above 0"):
        ps.PrecisionWeighted(floor=0)


def test_it_is_a_sampler_like_the_others():
    q, sampler = compose(own_mixtures(3), a=1, b=0.7, base=-0.3), ps.PrecisionWeighted(12, floor=0.2)
    run = sampler.sample(q, 300, seed=5, dtype=F64)
    assert run.arithmetic == "closed form" and run.log_evidence.isnan().all()
    assert torch.equal(run.samples, sampler.sample(q, 300, seed=5, dtype=F64).samples)
    pieces = sampler.sample(q, 300, seed=5, dtype=F64, max_particles=100)
    torch.testing.assert_close(pieces.samples, run.samples, rtol=1e-9, atol=1e-9)
    assert build_sampler(json.loads(json.dumps(describe(sampler)))) == sampler


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_it_is_the_same_in_inference_mode(dtype):
    """Its gradients are its own matter."""
    q, sampler = compose(own_mixtures(2), a=1, b=0.6, base=-0.2), ps.PrecisionWeighted(7)
    expected = sampler.sample(q, 5, seed=9, dtype=dtype).samples
    with torch.inference_mode():
        assert torch.equal(sampler.sample(q, 5, seed=9, dtype=dtype).samples, expected)
