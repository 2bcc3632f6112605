"""What errors of learned scores may do to weights: models that are perfect but for a constant error of their noise."""

import math

import pytest
import torch

import polyscore as ps
from cases import SCHEDULES
from polyscore.errors import DegeneracyWarning
from polyscore.samplers.grids import Extent, TimeGrid, equal_grid, extent_of, snr_grid
from polyscore.samplers.quadratures import noise_products, trapezoid

PARTS = {"a": ps.Gaussian(cov=[4.0, 1.0]), "b": ps.Gaussian(cov=[1.0, 4.0]), "base": ps.Gaussian(cov=4.0)}  # log Z = 0
OLD = {"grid": "equal", "integrator": "euler", "quadrature": "trapezoid", "start": "noise"}


def wrong(error: float, schedule: ps.Schedule, waves: float = 0.0) -> ps.Composition:
    """Models whose noise is off by `error` in the first coordinate, in a and b alike, or by a wave of that height."""

    def model(part, off):
        def eps(x, t):
            alpha, sigma = schedule.alpha(t), schedule.sigma(t)
            away = off * torch.cos(waves * x[:, :1]) * torch.tensor([1.0, 0.0]).to(x)
            return -sigma[:, None] * part.score(x, alpha, sigma) + away

        return ps.Learned(eps, (2,), schedule)

    offs = {"a": error, "b": error, "base": 0.0}
    return ps.base_composition(ps.Family({name: model(part, offs[name]) for name, part in PARTS.items()}))


def log_z(sampler: ps.FeynmanKac, q: ps.Composition) -> float:
    return sampler.sample(q, 300, seed=1).total_log_evidence


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_constant_error_of_the_noise_does_not_grow_with_coarse_steps(name):
    """The truth is 0; with an error e = 0.1 the weights' own integral is 2 e^2 times the range of log(sigma / alpha),
    0.19, and cross terms lower it to 0.1. Between 50 and 300 steps it moves by less than 0.04: four of the estimates'
    own errors, 1 in 10^4."""
    q = wrong(0.1, SCHEDULES[name])
    found = [log_z(ps.FeynmanKac(8, steps), q) for steps in (50, 100, 300)]
    assert max(map(abs, found)) < 0.35
    assert max(found) - min(found) < 0.04
    assert log_z(ps.FeynmanKac(8, 100), wrong(0.0, SCHEDULES[name])) == pytest.approx(0, abs=0.03)


@pytest.mark.filterwarnings("ignore:no single step", "ignore:weight should", "ignore:swarms should")
def test_the_old_weights_let_the_last_step_decide():
    q = wrong(0.1, ps.VP())
    assert log_z(ps.FeynmanKac(16, 100, **OLD), q) > 2
    with pytest.warns(DegeneracyWarning, match="no single step should decide; step 100 of 100"):
        ps.FeynmanKac(16, 100, **OLD).sample(wrong(0.3, ps.VP(), waves=1.5), 100)


def test_learned_weights_are_counted_down_to_a_hundredth_and_exact_ones_to_the_end():
    schedule = ps.VP()
    for known, last in ((True, 0.0), (False, 0.01)):
        extent = Extent(0.1, 1.0, (1.0, 0.1), 0.0, known, known)
        grid = snr_grid(schedule, 100, extent)
        counted = noise_products(schedule, grid, extent).right > 0
        ratio = schedule.log_noise_to_signal(grid.times[1:]).exp()
        assert torch.equal(counted, ratio >= last)


# the quadrature itself
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("rate", ["constant", "proportional"])
def test_products_of_noise_are_integrated_exactly_where_they_are_linear_in_the_variance(name, rate):
    """g = (eta^2 / 2) E / sigma^2 for E = 1 and E = sigma^2, against a fine sum over log-time."""
    schedule = SCHEDULES[name]
    extent = Extent(0.1, 1.0, (1.0,), 1e-5, True, True)
    grid = snr_grid(schedule, 20, extent)
    left, right = noise_products(schedule, grid, extent)

    def g(t):
        eta2, sigma2 = schedule.diffusion(t) ** 2, schedule.sigma(t) ** 2
        return 0.5 * eta2 * (1 / sigma2 if rate == "constant" else torch.ones_like(t))

    for i in range(20):
        fine = torch.logit(grid.times[i : i + 2].flip(0))
        u = torch.linspace(fine[0], fine[1], 4001, dtype=torch.float64)
        t = torch.sigmoid(u)
        expected = torch.trapezoid(g(t) * t * (1 - t), u)
        got = left[i] * g(grid.times[i]) + right[i] * g(grid.times[i + 1])
        assert got.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("schedule", [ps.LinearFlow(), ps.Cosine()], ids=["LinearFlow", "Cosine"])
def test_steps_from_pure_noise_and_to_the_data_itself_are_integrated_as_products_behave_there(schedule):
    """E = alpha^2 / sigma^2 at alpha(1) = 0, where an end has no rate, and E = sigma^2 at t = 0, by fine sums."""
    times = torch.tensor([1.0, 0.8, 0.3, 0.0], dtype=torch.float64)
    left, right = noise_products(schedule, TimeGrid(times, -times.diff()), Extent(0.1, 1.0, (1.0,), 0.0, True, True))

    def early(t):
        return 0.5 * (schedule.diffusion(t) * schedule.alpha(t) / schedule.sigma(t) ** 2) ** 2

    def late(t):
        return 0.5 * schedule.diffusion(t) ** 2

    assert (left[0], right[-1]) == (0, 0)
    assert (right[0] * early(times[1])).item() == pytest.approx(middle_sum(early, 0.8, 1.0), rel=1e-4)
    assert (left[-1] * late(times[2])).item() == pytest.approx(middle_sum(late, 0.0, 0.3), rel=1e-4)


def middle_sum(g, start: float, stop: float, count: int = 200_000) -> float:
    width = (stop - start) / count
    return (g(start + width * (torch.arange(count, dtype=torch.float64) + 0.5)).sum() * width).item()


def test_the_trapezoid_would_count_the_last_error_a_hundred_times():
    """With 500 equal steps of VP the last one weighs a squared error by 50, where the integral is 2.65."""
    schedule, grid = ps.VP(), equal_grid(ps.VP(), 500)
    extent = Extent(0.1, 1.0, (1.0,), 1e-5, True, True)
    across = 0.5 * (schedule.diffusion(grid.times) / schedule.sigma(grid.times)) ** 2

    def last(rule):
        left, right = rule(schedule, grid, extent)
        return (left[-1] * across[-2] + right[-1] * across[-1]).item()

    assert last(trapezoid) == pytest.approx(50, rel=0.05)
    assert last(noise_products) == pytest.approx(0.5 * math.log(200), rel=0.05)


# the grid
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("deviation", [1e-4, 0.03, 1.0, 300.0])
def test_the_grid_falls_from_noise_to_a_hundredth_of_the_narrowest(name, deviation):
    q = ps.Family({"a": ps.Gaussian(cov=deviation**2, dim=3)}, SCHEDULES[name])["a"]
    times, lengths, _ = snr_grid(q.schedule, 60, extent_of(q))
    ratio = q.schedule.log_noise_to_signal(times)
    assert bool((times.diff() < 0).all()) and torch.equal(lengths, times[:-1] - times[1:])
    assert ratio[-1].exp().item() == pytest.approx(0.01 * deviation, rel=1e-6)
    assert -ratio.diff().min() < 2.05 * (ratio[0] - ratio[-1]) / 60  # half of the steps are even
    if q.schedule.ends_in_pure_noise:
        assert ratio[0].exp().item() == pytest.approx(max(150, 50 * deviation), rel=1e-3)


def test_a_model_of_discrete_timesteps_is_not_asked_below_its_first():
    schedule = ps.DDPM(timesteps=50, beta_end=0.4)
    asked = []

    def eps(x, i):
        asked.append(i.min().item())
        return x

    q = ps.Family({"a": ps.Learned(eps, (2,), schedule, discrete=True)})["a"]
    ps.Denoise(steps=30).sample(q, 4)
    assert asked.count(0) <= 2  # the first timestep is where the grid ends, not where it dwells
