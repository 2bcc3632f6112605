"""Cases that went wrong once: repeated components, narrow modes, far-apart units, energy models, large data."""

import warnings

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, compose
from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.samplers.grids import TimeGrid
from polyscore.samplers.integrators import frozen_steps


def test_rejection_counts_a_component_that_is_written_twice():
    """The share beyond x_0 = 3 against importance sampling; 20,000 draws each, a false alarm in 1e-6."""
    m = [[0.0, 0, 0], [0.0, 0, 0], [6.0, 0, 0]]
    p = ps.Family({"a": ps.Mixture(m, 1.0, [0.45, 0.45, 0.1]), "b": ps.Mixture(m, 1.0, [0.1, 0.1, 0.8]),
                   "c": ps.Mixture([m[0], m[2]], 1.0, [0.5, 0.5])})  # fmt: skip
    q = p["a"] * p["b"] / p["c"]
    assert ps.exact(q).method == "rejection"
    shares = [
        (ps.exact(q, method).sample(20_000, seed=1)[:, 0] > 3).float().mean() for method in ("rejection", "importance")
    ]
    assert abs(shares[0] - shares[1]) < 0.03
    assert ps.exact(q, "rejection").log_evidence == pytest.approx(ps.exact(q, "importance").log_evidence, abs=0.02)


@pytest.mark.parametrize("variance", [1e-2, 1e-4, 1e-6, 1e-8])
def test_narrow_modes_are_not_lost_between_cells(variance):
    p = ps.Family({"a": ps.Mixture([[-10.0, 0.0], [10.03, 0.05]], cov=variance)})
    target = ps.exact(p["a"])
    assert target.log_evidence == pytest.approx(0, abs=0.01)
    draws = target.sample(4000, seed=2).double()
    right = draws[draws[:, 0] > 0]
    # 2000 draws a mode: 15 % is 4.7 standard errors of a variance (3e-6), 0.05 six of the share
    assert right[:, 1].var().item() == pytest.approx(variance, rel=0.15)
    assert len(right) / 4000 == pytest.approx(0.5, abs=0.05)


def test_a_grid_that_is_too_coarse_says_so():
    p = ps.Family({"a": ps.Mixture([[-10.0, 0.0], [10.0, 0.0]], cov=1e-6)})
    with pytest.warns(DegeneracyWarning, match="cells"):
        ps.exact(p["a"], "grid")


@pytest.mark.parametrize("cov", [[1e-6, 1e6], [1e8, 1.0], [1e-10, 1e-3, 1e7]])
def test_axes_of_far_apart_units_are_proper(cov):
    p = ps.Family({"a": ps.Gaussian(cov=cov), "b": ps.Gaussian(cov=[10 * c for c in cov])})
    assert p["a"].validity().proper is True
    assert (p["a"] * p["a"] / p["b"]).validity().proper is True
    assert (p["b"] / p["a"]).validity().proper is False
    assert ps.exact(p["a"]).log_evidence == pytest.approx(0, abs=1e-6)


def test_integers_and_wrong_shapes_are_refused():
    q = ps.Family({"a": ps.Gaussian(cov=2.0)})["a"]
    for x in (torch.ones(5, 2, dtype=torch.long), torch.ones(5, 3), [[0.0, 0.0]]):
        with pytest.raises(ArgumentError):
            q.score(x, 0.5)


def test_an_energy_model_can_be_sampled_and_its_samples_trained_on():
    schedule = ps.VP()

    def score(x, t):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(-0.5 * x.square().sum(), x)[0]

    p = ps.Family({"a": ps.Learned(score, (2,), schedule, prediction="score")})
    samples = ps.Denoise(steps=50).sample(p["a"], 200, seed=0).samples
    torch.nn.Linear(2, 1)(samples).sum().backward()
    samples.add_(1)
    assert samples.isfinite().all()


def test_a_mixture_that_dwarfs_the_noise_starts_where_its_parts_are():
    """Parts at +-1000, weights 0.3 and 0.7: 6.6 deviations of signal are left at t = 1. Five standard errors."""
    p = ps.Family({"a": ps.Mixture([[1000.0, 0.0], [-1000.0, 0.0]], 1.0, [0.3, 0.7])})
    for sampler in (ps.Denoise(), ps.FeynmanKac(4)):
        samples = sampler.sample(p["a"], 2000, dtype=torch.float64).samples
        right = samples[samples[:, 0] > 0]
        assert len(right) / 2000 == pytest.approx(0.3, abs=5 * (0.21 / 2000) ** 0.5)
        assert right[:, 0].mean().item() == pytest.approx(1000, abs=5 / len(right) ** 0.5)


def test_learned_scores_under_a_schedule_that_keeps_signal_are_warned_of():
    p = ps.Family({"a": ps.Learned(lambda x, t: x, (2,), ps.VP(0.1, 4))})
    with pytest.warns(DegeneracyWarning, match="Standardise"):
        ps.Denoise().sample(p["a"], 10)


def test_a_gaussian_that_dwarfs_the_noise_starts_where_it_is():
    """N(1000, 1) under VP, where 6.6 of the mean is left at t = 1; 4000 samples, 5 standard errors: 1 in 10^6."""
    p = ps.Family({"a": ps.Gaussian(mean=[1000.0, 0.0])})
    for sampler in (ps.Denoise(), ps.Denoise(churn=0), ps.FeynmanKac(4)):
        samples = sampler.sample(p["a"], 4000, dtype=torch.float64).samples
        assert samples.mean(0).tolist() == pytest.approx([1000, 0], abs=5 / 4000**0.5)
        assert samples.var(0).tolist() == pytest.approx([1, 1], abs=5 * (2 / 4000) ** 0.5)


def test_training_on_data_that_dwarfs_the_noise_is_warned_of():
    x = 1000 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    with pytest.warns(DegeneracyWarning, match="data should be small.*standardise=True"):
        ps.fit({"a": x}, steps=1, width=8, standardise=False)
    ps.fit({"a": x}, steps=1, width=8)  # no warning, which would be an error here


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    p = ps.Family({"a": ps.Gaussian()})
    assert (p["a"] ** np.float32(0.5)).exponents == {"a": 0.5}
    assert ps.FeynmanKac(particles=np.int64(2), steps=np.int64(5)).sample(p["a"], np.int64(3)).samples.shape == (3, 2)
    with pytest.raises(ArgumentError, match="composition"):
        ps.Denoise().sample(p, 2)  # a family is not one


@pytest.mark.parametrize("schedule", [ps.LinearFlow(), ps.Cosine(), ps.DDPM(zero_snr=True)])
def test_a_small_error_of_a_learned_score_stays_small_at_the_noise_end(schedule):
    """A noise prediction off by 0.02 moves the mean by little; it was multiplied by alpha_s / alpha_t = 200 once."""
    exact = ps.Gaussian()

    def eps(x, t):
        alpha, sigma = schedule.alpha(t), schedule.sigma(t)
        return -sigma[:, None] * exact.score(x, alpha, sigma) + 0.02

    p = ps.Family({"a": ps.Learned(eps, (2,), schedule)})
    for churn in (0.0, 1.0):
        samples = ps.Denoise(steps=200, churn=churn).sample(p["a"], 2000, seed=0).samples
        assert samples.mean().abs() < 0.5
        assert samples.std().item() == pytest.approx(1, abs=0.1)


def test_no_warning_for_the_settings_of_the_paper():
    from polyscore.paper.settings import SETTINGS, setting

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in SETTINGS:
            ps.FeynmanKac.published(16, steps=100).sample(ps.base_composition(setting(name)), 20)


@pytest.mark.parametrize("total", [0.75, 1.5])
def test_steps_close_to_the_data_are_what_they_are_in_closed_form(total):
    """Where alpha is 1, with v = sigma^2 and churn 1, the frozen X has (1 - r^W) / W and the noise a variance of
    v_s (1 - r^(2 W - 1)) / (2 W - 1), r = v_s / v_t; also at times of 1e-18, which parts of 1e-7 need."""
    times = torch.logspace(-8, -18, 31, dtype=F64)
    table = frozen_steps(ps.VP(), TimeGrid(times, -times.diff()), total, churn=1.0)
    v = ps.VP().sigma(times) ** 2
    r = v[1:] / v[:-1]
    toward, variance = (1 - r**total) / total, v[1:] * (1 - r ** (2 * total - 1)) / (2 * total - 1)
    assert torch.allclose(table.keep, r**total + toward * total, rtol=1e-6)
    assert torch.allclose(table.pull, toward * v[:-1], rtol=1e-6, atol=0)
    assert torch.allclose(table.noise**2, variance, rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:(K|swarms|steps) should")
def test_a_narrow_coordinate_leaves_a_wide_one_its_width():
    """Deviations of 1 and 1e-5 at W = 0.75, both right to 10 %; the wide one lost two thirds of its own."""
    family = ps.Family({"a": ps.Gaussian(cov=[1.0, 1e-10]), "b": ps.Gaussian(cov=[1.5, 1.5e-10])})
    q = compose(family, a=0.5, b=0.25)
    run = ps.FeynmanKac(16, threshold=0.5).sample(q, 2000, seed=1, dtype=F64)
    expected = np.sqrt([1 / (0.5 + 0.25 / 1.5), 1e-10 / (0.5 + 0.25 / 1.5)])
    assert (np.abs(run.samples.std(0).numpy() / expected - 1) < 0.1).all()
