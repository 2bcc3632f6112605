"""Schedules: the ODEs that bind alpha, sigma to drift, diffusion; their ends; the discrete table."""

import json
import math

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, PURE_NOISE, SCHEDULES
from polyscore.errors import ArgumentError
from polyscore.schedules import T_MAX, T_MIN, from_dict

every = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
TIMES = torch.tensor([T_MIN, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.4999, 0.5001, 0.7, 0.9, 0.99, 0.999, T_MAX], dtype=F64)


def derivative(function, times):
    times = times.clone().requires_grad_()
    return torch.autograd.grad(function(times).sum(), times)[0]


@every
def test_alpha_follows_its_ode(schedule):
    torch.testing.assert_close(
        derivative(schedule.alpha, TIMES), schedule.drift(TIMES) * schedule.alpha(TIMES), rtol=1e-7, atol=1e-9
    )


@every
def test_sigma_squared_follows_its_ode(schedule):
    left = derivative(lambda t: schedule.sigma(t) ** 2, TIMES)
    drift, sigma, eta = schedule.drift(TIMES), schedule.sigma(TIMES), schedule.diffusion(TIMES)
    scale = (2 * drift * sigma**2).abs() + eta**2  # the two terms nearly cancel where the drift is infinite
    assert bool(((left - 2 * drift * sigma**2 - eta**2).abs() <= 1e-8 * scale).all())


@every
def test_ends(schedule):
    zero, one = torch.zeros((), dtype=F64), torch.ones((), dtype=F64)
    assert schedule.alpha(zero).item() == pytest.approx(1, abs=1e-12)
    assert schedule.sigma(zero).item() == pytest.approx(0, abs=1e-12)
    assert schedule.sigma(one).item() == pytest.approx(math.sqrt(1 - schedule.alpha(one).item() ** 2), abs=1e-9)
    assert schedule.ends_in_pure_noise == (schedule in PURE_NOISE.values())
    if schedule.ends_in_pure_noise:
        assert schedule.alpha(one).item() == pytest.approx(0, abs=1e-12)
        assert schedule.sigma(one).item() == 1


@every
def test_alpha_falls_sigma_rises_and_nothing_is_negative(schedule):
    times = torch.linspace(T_MIN, T_MAX, 2001, dtype=F64)
    assert bool((schedule.alpha(times).diff() < 0).all())
    assert bool((schedule.sigma(times).diff() > 0).all())
    assert bool((schedule.diffusion(times) >= 0).all())
    assert bool((schedule.drift(times) <= 0).all())


@every
@pytest.mark.parametrize("name", ["alpha", "sigma", "drift", "diffusion"])
def test_float32_agrees_with_float64_and_keeps_shape_and_dtype(schedule, name):
    times = TIMES[1:-1].float()
    wide, narrow = (getattr(schedule, name)(t.reshape(1, -1)) for t in (times.double(), times))
    assert narrow.dtype == torch.float32
    assert narrow.shape == (1, len(times))
    # float32 resolves 1 - t at t = 0.999 to 6e-5 relative
    torch.testing.assert_close(narrow.double(), wide, rtol=3e-4, atol=1e-6)


@every
def test_description_round_trip(schedule):
    again = from_dict(json.loads(json.dumps(schedule.to_dict())))
    assert again == schedule
    assert hash(again) == hash(schedule)


def test_descriptions_that_describe_nothing():
    with pytest.raises(ArgumentError, match=r"must be one of VP, DDPM, Cosine, LinearFlow.*; got 'Linear'"):
        from_dict({"kind": "Linear"})
    with pytest.raises(ArgumentError, match="beta_min"):
        from_dict({"kind": "VP", "betamin": 0.1})


def test_a_misspelt_kind_or_option_is_told():
    with pytest.raises(ArgumentError, match="Did you mean 'LinearFlow'"):
        from_dict({"kind": "LinearFow"})
    with pytest.raises(
        ArgumentError, match=r"an option of Cosine must be one of offset; got 'ofset'\. Did you mean 'offset'"
    ):
        from_dict({"kind": "Cosine", "ofset": 0.1})


def test_the_cosine_of_before_is_that_without_an_offset():
    """Files of 0.3.0 name no offset; its bytes are those of the plain formulas."""
    assert from_dict({"kind": "Cosine"}) == ps.Cosine() == ps.Cosine(offset=0)
    for dtype in (torch.float32, F64):
        t = torch.rand(10_000, dtype=dtype, generator=torch.Generator().manual_seed(0))
        assert torch.equal(ps.Cosine().alpha(t), torch.sin(0.5 * math.pi * (1 - t)))
        assert torch.equal(ps.Cosine().sigma(t), torch.sin(0.5 * math.pi * t))
        assert torch.equal(ps.Cosine().drift(t), -0.5 * math.pi * torch.tan(0.5 * math.pi * t))


@pytest.mark.parametrize("offset", [0.0, 0.008, 0.3])
def test_the_cosine_with_an_offset_is_that_of_nichol_and_dhariwal(offset):
    t = torch.linspace(0, 1, 101, dtype=F64)
    f = torch.cos((t + offset) / (1 + offset) * math.pi / 2) ** 2
    torch.testing.assert_close(ps.Cosine(offset).alpha(t) ** 2, f / f[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("offset", [-0.1, 1.5, math.nan, "0.008", None, True])
def test_impossible_offsets(offset):
    with pytest.raises(ArgumentError, match="Cosine's offset must"):
        ps.Cosine(offset)


@every
def test_the_ratio_of_noise_to_signal_has_an_inverse(schedule):
    ratio = torch.linspace(-6, 4, 41, dtype=F64)
    ratio = ratio[ratio < schedule.log_noise_to_signal(torch.tensor(T_MAX, dtype=F64))]
    times = schedule.time_at(ratio)
    assert bool((times.diff() > 0).all())
    torch.testing.assert_close((schedule.sigma(times) / schedule.alpha(times)).log(), ratio, rtol=1e-9, atol=1e-9)


def test_different_schedules_differ():
    assert ps.VP() != ps.VP(0.1, 19.0)
    assert ps.DDPM() != ps.DDPM(zero_snr=True)


def test_vp_against_a_numerical_integral_of_its_rate():
    schedule = ps.VP(0.3, 11.0)
    for end in (0.1, 0.6, 1.0):
        grid = torch.linspace(0, end, 100_001, dtype=F64)
        integral = torch.trapezoid(0.3 + (11.0 - 0.3) * grid, grid).item()
        assert schedule.alpha(torch.tensor(end, dtype=F64)).item() == pytest.approx(math.exp(-0.5 * integral), rel=1e-9)


@pytest.mark.parametrize("timesteps, start, end", [(1000, 1e-4, 0.02), (37, 1e-3, 0.2), (1, 0.1, 0.1)])
def test_ddpm_table_against_a_loop(timesteps, start, end):
    product, expected = 1.0, []
    for i in range(timesteps):
        beta = start + (end - start) * (i / (timesteps - 1) if timesteps > 1 else 0)
        product *= 1 - beta
        expected.append(math.sqrt(product))
    table = ps.DDPM(timesteps, start, end).table()
    torch.testing.assert_close(table, torch.tensor(expected, dtype=F64), rtol=1e-10, atol=0)


def test_zero_snr_table_against_a_loop_and_its_ends():
    plain, rescaled = ps.DDPM().table().tolist(), ps.DDPM(zero_snr=True).table().tolist()
    assert rescaled[-1] == 0
    assert rescaled[0] == pytest.approx(plain[0], rel=1e-12)  # Lin et al.: the first is kept, the last is 0
    for before, after in zip(plain, rescaled, strict=True):
        assert after == pytest.approx((before - plain[-1]) * plain[0] / (plain[0] - plain[-1]), abs=1e-12)


@pytest.mark.parametrize("zero_snr", [False, True])
def test_ddpm_table_converges_to_the_continuous_limit(zero_snr):
    """The gap falls as 1 / timesteps when timesteps * beta stays: 4 times the steps, a quarter of the gap."""
    gaps = []
    for timesteps in (250, 1000, 4000):
        schedule = ps.DDPM(timesteps, 0.1 / timesteps, 20 / timesteps, zero_snr)
        at = torch.arange(1, timesteps + 1, dtype=F64) / timesteps
        gaps.append((schedule.table() - schedule.alpha(at)).abs().max().item())
    assert gaps[1] < 0.01
    assert 3 < gaps[0] / gaps[1] < 5
    assert 3 < gaps[1] / gaps[2] < 5


def test_timestep_is_the_inverse_of_the_table_times():
    schedule = ps.DDPM(timesteps=50, beta_end=0.2)
    at = torch.arange(1, 51, dtype=F64) / 50
    assert schedule.timestep(at).tolist() == list(range(50))
    assert schedule.timestep(torch.zeros(())).item() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.VP(0, 20), lambda: ps.VP(3, 1), lambda: ps.DDPM(timesteps=0), lambda: ps.DDPM(beta_end=1.5),
        lambda: ps.DDPM(beta_start=0.1, beta_end=0.01), lambda: ps.DDPM(timesteps=1, zero_snr=True),
    ],
)  # fmt: skip
def test_impossible_schedules(make):
    with pytest.raises(ArgumentError, match=r"(betas must satisfy 0 <|timesteps must be a whole number from) .*; got"):
        make()


@pytest.mark.parametrize("value", ["0.1", None, True, 1j, math.nan, math.inf, 10**400, [0.1], torch.ones(2)], ids=repr)
@pytest.mark.parametrize(
    "kind, name", [(ps.VP, "beta_min"), (ps.VP, "beta_max"), (ps.DDPM, "beta_start"), (ps.DDPM, "beta_end")]
)
def test_a_rate_is_one_finite_number(kind, name, value):
    with pytest.raises(ArgumentError, match=f"{kind.__name__}'s {name} must be a finite number; got "):
        kind(**{name: value})


@pytest.mark.parametrize("timesteps", [10.5, 10.0, "10", True, None, math.nan, 0, -1, 10**7, 10**400])
def test_timesteps_are_counted_in_whole_numbers(timesteps):
    with pytest.raises(ArgumentError, match="DDPM's timesteps must be a whole number from 1 to 1000000; got "):
        ps.DDPM(timesteps=timesteps)


@pytest.mark.parametrize("zero_snr", ["no", 0, 1, None])
def test_zero_snr_is_a_truth(zero_snr):
    with pytest.raises(ArgumentError, match="zero_snr must be True or False; got "):
        ps.DDPM(zero_snr=zero_snr)


def test_numbers_of_numpy_are_numbers():
    assert ps.VP(np.float32(0.5), np.int64(20)) == ps.VP(0.5, 20.0)
    json.dumps(ps.VP(np.float32(0.5), np.int64(20)).to_dict())
    assert ps.DDPM(np.int32(10), 0.01, 0.02).table().shape == (10,)


@pytest.mark.parametrize("description", [None, 3, [], {"kind": ["VP"]}, {"kind": "VP", 1: 2, "x": 3}, {"kind": None}])
def test_descriptions_of_another_kind_are_refused(description):
    with pytest.raises(ArgumentError, match="must be"):
        from_dict(description)
