"""Resampling and weights: unbiased offspring, edge cases, NumPy's numbers."""

import math

import numpy as np
import pytest
import torch

from cases import F64, within_standard_errors
from polyscore.errors import ArgumentError
from polyscore.smc import (
    Multinomial,
    Residual,
    Stratified,
    Systematic,
    effective_sample_size,
    log_mean_exp,
    resampler,
    unique_ancestors,
)

SCHEMES = {"systematic": Systematic(), "stratified": Stratified(), "multinomial": Multinomial(), "residual": Residual()}
every = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
WEIGHTS = {
    "uneven": [0.31, 0.02, 0.17, 0.25, 0.25],
    "one heavy": [0.9, 0.05, 0.03, 0.01, 0.005, 0.003, 0.002],
    "with zeros": [0.0, 0.4, 0.0, 0.6, 0.0],
    "whole": [0.5, 0.25, 0.25, 0.0],
    "single": [1.0],
}


def uniforms(scheme, particles, n, seed=0, dtype=F64):
    return torch.rand(n, scheme.uniforms(particles), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def counts(indices, particles):
    return torch.nn.functional.one_hot(indices, particles).sum(-2)


@every
@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("shift", [0.0, 300.0, -300.0])
def test_mean_offspring_is_particles_times_weight(scheme, weights, shift):
    """Over 20,000 sets of uniforms, within 5.5 standard errors (4e-8 each, about 1e-5 over all 240 counts)."""
    particles = len(weights)
    log_weights = torch.tensor(weights, dtype=F64).log() + shift
    u = uniforms(scheme, particles, 20_000)
    indices = scheme(log_weights.expand(20_000, -1).contiguous(), u)
    assert indices.shape == (20_000, particles)
    expected = particles * torch.tensor(weights, dtype=F64)
    within_standard_errors(counts(indices, particles), expected, 5.5, slack=1e-9)


@every
def test_a_weight_that_holds_all(scheme):
    for heavy in (0, 3, 7):
        log_weights = torch.full((50, 8), -math.inf)
        log_weights[:, heavy] = 2.0
        assert bool((scheme(log_weights, uniforms(scheme, 8, 50, dtype=torch.float32)) == heavy).all())


@every
@pytest.mark.parametrize("particles", [2, 64, 1000, 4096])
@pytest.mark.parametrize("u", [0.0, 1 - 2**-24], ids=["lowest", "highest"])
def test_extreme_uniforms_never_choose_a_weight_of_zero(scheme, particles, u):
    """float32 uniforms reach 1 - 2^-24, and (K - 1 + u) / K then rounds to 1: the last particle must not pay for it."""
    log_weights = torch.zeros(1, particles)
    log_weights[:, 0] = log_weights[:, -1] = -math.inf
    if particles == 2:
        log_weights[:, 0] = 0
    chosen = scheme(log_weights, torch.full((1, scheme.uniforms(particles)), u))
    assert bool(log_weights[0][chosen].isfinite().all())


@pytest.mark.parametrize("name", ["systematic", "stratified", "residual"])
@pytest.mark.parametrize("particles", [1, 2, 3, 7, 16, 100, 1000])
def test_equal_weights_keep_everyone(name, particles):
    scheme = SCHEMES[name]
    log_weights = torch.full((200, particles), -3.7)
    indices = scheme(log_weights, uniforms(scheme, particles, 200, dtype=torch.float32).clamp(0.01, 0.99))
    assert torch.equal(indices, torch.arange(particles).expand(200, -1))


@pytest.mark.parametrize("particles", [3, 16, 333])
def test_systematic_counts_are_floor_or_ceiling(particles):
    log_weights = 2 * torch.randn(500, particles, generator=torch.Generator().manual_seed(1), dtype=F64)
    got = counts(Systematic()(log_weights, uniforms(Systematic(), particles, 500)), particles)
    expected = particles * torch.softmax(log_weights, -1)
    assert bool((got >= (expected - 1e-9).floor()).all())
    assert bool((got <= (expected + 1e-9).ceil()).all())


def test_residual_gives_the_whole_parts_for_certain():
    log_weights = torch.randn(500, 20, generator=torch.Generator().manual_seed(1), dtype=F64)
    got = counts(Residual()(log_weights, uniforms(Residual(), 20, 500)), 20)
    assert bool((got >= (20 * torch.softmax(log_weights, -1)).floor()).all())


def test_systematic_against_a_plain_loop():
    rng = np.random.default_rng(4)
    for _ in range(50):
        particles = int(rng.integers(1, 30))
        weights, u = rng.dirichlet(np.ones(particles)), rng.random()
        expected, running, j = [], weights[0], 0
        for k in range(particles):
            while (k + u) / particles >= running and j < particles - 1:
                j += 1
                running += weights[j]
            expected.append(j)
        got = Systematic()(torch.tensor(weights)[None].log(), torch.tensor([[u]], dtype=F64))
        assert got[0].tolist() == expected


@every
def test_variance_is_never_above_multinomials(scheme):
    """Douc et al. (2005): stratified, residual and (here) systematic counts vary no more than multinomial ones, whose
    variances add up to K sum_k w_k (1 - w_k), and which have just that.

    20,000 sets: the sum of variances has a standard error near 1 %, the slack is 6 %: under 1e-8."""
    weights = torch.tensor(WEIGHTS["uneven"], dtype=F64)
    log_weights = weights.log().expand(20_000, -1).contiguous()
    variance = counts(scheme(log_weights, uniforms(scheme, 5, 20_000)), 5).double().var(0).sum().item()
    multinomial = 5 * (weights * (1 - weights)).sum().item()
    assert variance <= 1.06 * multinomial
    if isinstance(scheme, Multinomial):
        assert variance == pytest.approx(multinomial, rel=0.06)
    else:
        assert variance < 0.9 * multinomial


def test_swarms_do_not_mix():
    log_weights = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    assert Systematic()(log_weights, torch.full((2, 1), 0.5)).tolist() == [[0, 0], [1, 1]]


def test_schemes_by_name():
    for name, scheme in SCHEMES.items():
        assert resampler(name) == scheme
        assert resampler(scheme) is scheme
    with pytest.raises(ArgumentError, match="one of systematic, stratified, multinomial, residual; got 'sytematic'"):
        resampler("sytematic")


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("shift", [0.0, 500.0, -2000.0])
def test_weights_against_numpy(dtype, shift):
    raw = np.random.default_rng(0).normal(scale=2, size=(20, 33))
    log_weights = torch.tensor(raw + shift, dtype=dtype)
    w = np.exp(raw)
    tolerance = 1e-9 if dtype == F64 else 2e-3 if shift else 1e-5
    np.testing.assert_allclose(effective_sample_size(log_weights), w.sum(1) ** 2 / (w**2).sum(1), rtol=tolerance)
    np.testing.assert_allclose(log_mean_exp(log_weights), np.log(w.mean(1)) + shift, rtol=tolerance, atol=tolerance)


def test_ess_at_its_ends():
    assert effective_sample_size(torch.zeros(1, 12)).item() == pytest.approx(12)
    one = torch.full((1, 12), -math.inf)
    one[0, 4] = -7.0
    assert effective_sample_size(one).item() == 1
    assert log_mean_exp(one).item() == pytest.approx(-7 - math.log(12))


def test_unique_ancestors():
    assert unique_ancestors(torch.tensor([[0, 0, 0], [2, 1, 2], [5, 0, 3]])).tolist() == [1, 2, 3]
    assert unique_ancestors(torch.tensor([[7]])).tolist() == [1]
