"""Denoising one condition gives that condition back: every schedule, SDE to ODE."""

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import DISTRIBUTIONS, SCHEDULES, compose, gaussian_family, opaque


def moments(part):
    weights = part.weights.numpy() if isinstance(part, ps.Mixture) else np.ones(1)
    means, covs = part.components.means.numpy(), part.components.covariances.numpy()
    mean = weights @ means
    gaps = means - mean
    return mean, np.einsum("k,kij->ij", weights, covs + np.einsum("ki,kj->kij", gaps, gaps))


CASES = [("gaussian-3-full", schedule, churn) for schedule in SCHEDULES for churn in (0.0, 0.5, 1.0)]
CASES += [
    ("mixture-2-own", schedule, churn) for schedule in ("VP", "DDPM-zero-snr", "LinearFlow") for churn in (0.0, 1.0)
]


@pytest.mark.parametrize("name, schedule, churn", CASES)
def test_a_single_condition_is_reproduced(name, schedule, churn):
    """Mean within 0.1 standard deviations, covariance within 0.12. Over all 30 cases and two other seeds the largest
    errors were 0.045 and 0.081, root mean square 0.023 and 0.042: under 1e-2 a case if the seed were free."""
    part = DISTRIBUTIONS[name]
    q = ps.Family({"p": part}, SCHEDULES[schedule])["p"]
    x = ps.Denoise(steps=250, churn=churn).sample(q, 4000, seed=11).samples.double().numpy()
    mean, cov = moments(part)
    scale = np.sqrt(np.diag(cov))
    assert np.abs((x.mean(0) - mean) / scale).max() < 0.1
    assert np.abs((np.cov(x.T) - cov) / np.outer(scale, scale)).max() < 0.12


def test_heun_reproduces_with_few_steps():
    """Covariance of 40,000 samples, relative to its diagonal: 4.2 standard errors (0.0071) and the 0.005 that forty
    steps leave, for six numbers 2e-4 if the seed were free. Over 30 seeds the largest was 0.024; in as many steps of
    first order ("frozen") it is 0.08."""
    part = DISTRIBUTIONS["gaussian-3-full"]
    q = ps.Family({"p": part}, ps.VP())["p"]
    x = ps.Denoise(steps=40, churn=0, order=2).sample(q, 40_000, seed=11).samples.double().numpy()
    scale = np.sqrt(np.diag(part.cov.numpy()))
    assert np.abs((np.cov(x.T) - part.cov.numpy()) / np.outer(scale, scale)).max() < 0.035


@pytest.mark.parametrize("exponents", [{"a": 1.0, "b": 0.5}, {"a": 0.4, "b": 0.3}], ids=str)
def test_heun_follows_the_ode_of_other_powers_too(exponents):
    """Variances of commuting Gaussians end at prod l_a^w_a / W (Theorem 2, for any W): 20,000 samples know them to 1 %,
    4.5 such and 0.01 for the steps."""
    p = ps.Family({"a": ps.Gaussian(cov=[10.0, 1.0]), "b": ps.Gaussian(cov=[1.0, 4.0])})
    expected = torch.tensor([10.0 ** exponents["a"], 4.0 ** exponents["b"]]) / sum(exponents.values())
    x = ps.Denoise(churn=0, order=2).sample(ps.Composition(p, exponents), 20_000, seed=3).samples
    torch.testing.assert_close(x.var(0), expected, rtol=0.055, atol=0)


def test_mixture_weights_survive_denoising():
    """Share of points nearest to each mean of a well-separated mixture: 5.5 standard errors (0.028) plus 0.01 for 400
    steps: under 1e-6."""
    part = ps.Mixture([[-6, 0], [6, 0], [0, 8]], cov=0.36, weights=[0.6, 0.3, 0.1])
    q = ps.Family({"p": part}, ps.Cosine())["p"]
    x = ps.Denoise(steps=400).sample(q, 8000, seed=1).samples.double()
    nearest = torch.cdist(x, part.means).argmin(1)
    shares = torch.bincount(nearest, minlength=3).double() / len(x)
    assert (shares - part.weights).abs().max().item() < 0.04


def test_powers_of_noise_stay_under_variance_preserving_schedules():
    """N(0, 1)^W is N(0, 1/W): variance of 20,000 samples within 8 %: 6 standard errors (2e-9) and 2 % bias."""
    for schedule in (ps.VP(), ps.Cosine(), ps.DDPM(zero_snr=True)):
        q = ps.Family({"p": ps.Gaussian(cov=1.0)}, schedule)["p"] ** 2.5
        x = ps.Denoise(steps=500).sample(q, 20_000, seed=0).samples
        assert x.var(0).tolist() == pytest.approx([0.4, 0.4], rel=0.08)


def test_opaque_scores_give_the_same_samples_as_the_prepared_field():
    q = compose(gaussian_family(3), a=0.5, b=0.5)
    one, other = (
        ps.Denoise(steps=100, grid="equal", start="noise").sample(each, 300, seed=5, dtype=torch.float64)
        for each in (q, opaque(q))
    )
    torch.testing.assert_close(one.samples, other.samples, rtol=1e-6, atol=1e-6)
