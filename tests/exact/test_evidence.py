"""Feynman-Kac against closed forms: evidence, mean and covariance, for W = 1 and not, asymmetric, not commuting.

Limits: 0.15 on log Z, 0.25 standard deviations on mean and covariance, for four swarms of 4096 together. Root mean
square errors over three other seeds (SDE and ODE, two and three dimensions): log Z up to 0.051, else below 0.03; mean
up to 0.048, covariance up to 0.054. So two cases are three deviations from their limit and the others five or more:
some case would fail for 1 % of free seeds; the seeds are fixed, and only another platform redraws them.
"""

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import (
    PURE_NOISE,
    SCHEDULES,
    closed_form,
    compose,
    gaussian_family,
    gentle_family,
    opaque,
    own_mixtures,
    weighted_moments,
)
from polyscore.errors import ArgumentError
from polyscore.samplers.moves import Unbalanced

EXPONENTS = {
    ".5,.5": {"a": 0.5, "b": 0.5},
    ".3,.2": {"a": 0.3, "b": 0.2},
    "1,1,-1": {"a": 1, "b": 1, "base": -1},
    "2,-.5": {"a": 2, "base": -0.5},
    "1,1": {"a": 1, "b": 1},
}
all_exponents = pytest.mark.parametrize("exponents", EXPONENTS.values(), ids=EXPONENTS)


def check(run: ps.Run, q: ps.Composition, limit: float = 0.15, moments: float = 0.25) -> None:
    mean, cov, log_z = closed_form(q)
    assert run.total_log_evidence == pytest.approx(log_z, abs=limit)
    got_mean, got_cov = weighted_moments(run)
    scale = np.sqrt(np.diag(cov))
    assert np.abs((got_mean - mean) / scale).max() < moments
    assert np.abs((got_cov - cov) / np.outer(scale, scale)).max() < moments


def test_the_cases_are_asymmetric():
    for dim in (2, 3):
        for make in (gaussian_family, gentle_family):
            parts = make(dim).members
            a, b = parts["a"].cov, parts["b"].cov
            assert (a @ b - b @ a).abs().max().item() > 0.05
            assert min(part.mean.abs().max().item() for part in parts.values()) > 0.1


@pytest.mark.parametrize("dim", [2, 3])
@all_exponents
def test_evidence_and_moments_of_the_sde(dim, exponents):
    q = compose(gaussian_family(dim), **exponents)
    check(ps.FeynmanKac(particles=4096, steps=400).sample(q, 4, seed=4), q)


@pytest.mark.parametrize("dim", [2, 3])
@all_exponents
def test_evidence_and_moments_of_the_ode(dim, exponents):
    """The ODE is an importance sampler over its starts: its weights need a finite variance, hence other
    Gaussians."""
    q = compose(gentle_family(dim), **exponents)
    check(ps.FeynmanKac(particles=4096, steps=400, churn=0.0).sample(q, 4, seed=4), q)


@pytest.mark.parametrize("exponents", ["1,1,-1", "2,-.5"])
def test_ode_and_sde_agree(exponents):
    q = compose(gentle_family(2), **EXPONENTS[exponents])
    estimates = [
        ps.FeynmanKac(particles=512, steps=500, churn=churn).sample(q, 8, seed=7).total_log_evidence
        for churn in (0.0, 0.4, 1.0)
    ]
    assert np.ptp(estimates) < 0.15, estimates


@pytest.mark.parametrize("schedule", [name for name in PURE_NOISE if "200" not in name])
@pytest.mark.parametrize("exponents, churn", [("1,1,-1", 1.0), ("2,-.5", 1.0), (".3,.2", 0.0), ("1,1", 0.5)])
def test_schedules_that_end_in_pure_noise(schedule, exponents, churn):
    q = compose(gaussian_family(2, SCHEDULES[schedule]), **EXPONENTS[exponents])
    check(ps.FeynmanKac(particles=4096, steps=250, churn=churn).sample(q, 4, seed=5), q)


@pytest.mark.parametrize("exponents", ["2,-.5", ".5,.5"])
def test_the_unbalanced_move_is_right_too(exponents):
    q = compose(gaussian_family(2), **EXPONENTS[exponents])
    sampler = ps.FeynmanKac(particles=4096, steps=1000, move=Unbalanced(), grid="equal")
    check(sampler.sample(q, 1, seed=6), q, limit=0.25)


def test_the_published_sign_and_start_are_wrong_away_from_one():
    """11.2 instead of 1.2 was seen for such exponents; documented here so that nobody "fixes" `published` quietly."""
    q = compose(gaussian_family(2), **EXPONENTS["2,-.5"])
    run = ps.FeynmanKac.published(particles=4096, steps=1000, clip=None).sample(q, 1, seed=4)
    assert abs(run.log_evidence.item() - closed_form(q)[2]) > 1


def test_the_published_sampler_is_right_at_one():
    q = compose(gaussian_family(2), **EXPONENTS["1,1,-1"])
    check(ps.FeynmanKac.published(particles=4096, steps=1000, clip=None).sample(q, 1, seed=4), q)


@pytest.mark.parametrize("exponents", ["2,-.5", ".3,.2"])
def test_the_unbalanced_move_on_pure_noise_is_refused_away_from_one(exponents):
    """Its steps and its rates belong to two moves there."""
    q = compose(gaussian_family(2, ps.Cosine()), **EXPONENTS[exponents])
    with pytest.raises(ArgumentError, match="balanced move when W is not 1"):
        ps.FeynmanKac(particles=4, steps=5, move=Unbalanced()).sample(q, 1)


def test_the_unbalanced_move_on_pure_noise_is_right_at_one():
    q = compose(gaussian_family(2, ps.Cosine()), **EXPONENTS["1,1,-1"])
    check(ps.FeynmanKac(particles=4096, steps=250, move=Unbalanced()).sample(q, 4, seed=6), q)


def test_scores_alone_give_the_same_evidence():
    """The same family behind opaque score models: no closed form, no Gaussian field."""
    q = compose(gaussian_family(3), **EXPONENTS["2,-.5"])
    check(ps.FeynmanKac(particles=2048, steps=500).sample(opaque(q), 1, seed=4), q, limit=0.2)


def test_evidence_is_unbiased_over_swarms():
    """exp(log Z) averaged over 1000 swarms of 8: log of the mean within 0.1 of log Z.

    The standard error is 0.024, and the gap was below 0.015 for three seeds: four standard errors, 6e-5.
    """
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    run = ps.FeynmanKac(particles=8, steps=500).sample(q, 1000, seed=3)
    ratio = (run.log_evidence.double() - closed_form(q)[2]).exp()
    assert run.total_log_evidence == pytest.approx(closed_form(q)[2], abs=0.1), ratio.std().item() / len(ratio) ** 0.5


def test_a_single_condition_has_evidence_one():
    q = gaussian_family(3)["a"]
    run = ps.FeynmanKac(particles=4, steps=50).sample(q, 3, seed=0)
    assert run.log_evidence.abs().max().item() < 1e-4


def test_mixtures_of_two_dimensions_against_a_grid():
    """Evidence and moments of a composition of mixtures, the reference a plain grid sum."""
    q = compose(own_mixtures(2), a=0.7, b=0.6, base=-0.1)
    axis = torch.linspace(-12, 12, 301, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    logs = q.log_density(grid)
    log_z = torch.logsumexp(logs, 0).item() + 2 * np.log((axis[1] - axis[0]).item())
    density = torch.softmax(logs, 0)
    mean = density @ grid
    run = ps.FeynmanKac(particles=4096, steps=300).sample(q, 1, seed=2)
    assert run.log_evidence.item() == pytest.approx(log_z, abs=0.15)
    assert np.abs(weighted_moments(run)[0] - mean.numpy()).max() < 0.15
