"""Schedules with timesteps of a model's own: laws of all schedules, tables hit exactly, times as diffusers has them."""

import json

import diffusers
import numpy as np
import pytest
import torch

from laws import test_schedules as laws
from pipelines.small import ddpm, flow
from polyscore.pipelines.schedulers import noising_of
from polyscore.samplers.grids import Timesteps
from polyscore.samplers.integrators import nodes
from polyscore.schedules import DDPM, SPACINGS, Flow, Tabulated, from_dict

F64 = torch.float64
SCHEDULERS = {
    "linear": ddpm(), "cosine": ddpm(beta_schedule="squaredcos_cap_v2"), "scaled": ddpm(beta_schedule="scaled_linear"),
    "zero-snr": ddpm("v_prediction", zero_snr=True), "short": ddpm(num_train_timesteps=20, beta_end=0.4),
    "short-zero-snr": ddpm("sample", zero_snr=True, num_train_timesteps=20, beta_end=0.4), "flow": flow(shift=3.0),
}  # fmt: skip
every = pytest.mark.parametrize("schedule", [noising_of(s).schedule for s in SCHEDULERS.values()], ids=SCHEDULERS)
tables = pytest.mark.parametrize("scheduler", list(SCHEDULERS.values())[:-1], ids=list(SCHEDULERS)[:-1])


@every
@pytest.mark.parametrize("law", [
    laws.test_alpha_follows_its_ode, laws.test_sigma_squared_follows_its_ode,
    laws.test_alpha_falls_sigma_rises_and_nothing_is_negative,
], ids=lambda law: law.__name__[5:])  # fmt: skip
def test_it_obeys_the_laws_of_schedules(schedule, law):
    law(schedule)


@every
def test_its_ends_and_its_inverse(schedule):
    ends = torch.tensor([0.0, 1.0], dtype=F64)
    assert schedule.alpha(ends)[0] == 1 and schedule.sigma(ends)[0] == 0
    assert schedule.ends_in_pure_noise == (schedule.alpha(ends)[1].item() < 1e-12)
    assert bool(schedule.drift(ends).isfinite().all()) and bool(schedule.diffusion(ends).isfinite().all())
    t = torch.tensor([2e-4, 0.01, 0.3, 0.77, 0.999], dtype=F64)
    torch.testing.assert_close(schedule.time_at(schedule.log_noise_to_signal(t)), t)


@tables
def test_the_curve_goes_through_the_table(scheduler):
    schedule, power = noising_of(scheduler).schedule, scheduler.alphas_cumprod.double()
    t = torch.arange(1, len(power) + 1, dtype=F64) / len(power)
    torch.testing.assert_close(schedule.alpha(t), power.sqrt(), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(schedule.sigma(t), (1 - power).sqrt(), rtol=1e-9, atol=1e-14)
    # A model is told the timestep itself, whatever float32 made of the time.
    assert schedule.timestep(schedule.asked(t.float())).tolist() == list(range(len(power)))
    between = (t[:-1] + t[1:]) / 2
    torch.testing.assert_close(schedule.timestep(schedule.asked(between)), between * len(power) - 1)
    assert schedule.timestep(schedule.asked(torch.tensor([0.0, 1.0]))).tolist() == [0, len(power) - 1]


@pytest.mark.parametrize("zero", [False, True])
def test_the_curve_is_near_the_continuous_limit(zero):
    """A thousand linear betas against their closed-form limit: they differ by one part in a thousand of the rates."""
    ours = noising_of(ddpm("v_prediction", zero_snr=zero)).schedule
    t = torch.linspace(0.02, 0.98, 50, dtype=F64)
    torch.testing.assert_close(ours.diffusion(t), DDPM(zero_snr=zero).diffusion(t), rtol=0.02, atol=0)
    torch.testing.assert_close(ours.sigma(t), DDPM(zero_snr=zero).sigma(t), rtol=0.02, atol=0)


@tables
def test_the_integral_of_the_rate_is_the_signal_lost(scheduler):
    """eta^2 = -2 (log alpha)': nodes that know nothing of the knots, against the table itself."""
    schedule = noising_of(scheduler).schedule
    total = schedule.timesteps
    s, t = torch.tensor([4 / total], dtype=F64), torch.tensor([1 - 2 / total], dtype=F64)
    r, measure = nodes(s, t, 512)
    lost = scheduler.alphas_cumprod.double().log()
    assert (schedule.diffusion(r) ** 2 * measure).sum().item() == pytest.approx((lost[3] - lost[-3]).item(), rel=2e-3)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("steps", [1, 3, 7, 27, 48, 50, 100, 333, 1000])  # of 27 and 48 some fall on a half
def test_the_grid_lands_on_the_schedulers_timesteps(steps, spacing):
    scheduler = ddpm(spacing=spacing)
    scheduler.set_timesteps(steps)
    schedule = noising_of(scheduler).schedule
    grid = Timesteps()(schedule, steps)
    assert (schedule.timestep(schedule.asked(grid.times[:-1]))).tolist() == scheduler.timesteps.tolist()
    assert grid.times[-1] == 0 and grid.to_data
    torch.testing.assert_close(grid.lengths, -grid.times.diff())
    assert torch.equal(grid.times, Timesteps(spacing)(noising_of(ddpm(spacing="leading")).schedule, steps).times)


@pytest.mark.parametrize("shift", [1.0, 3.0, 0.5])
def test_a_flows_own_times_are_the_schedulers_sigmas(shift):
    scheduler = flow(shift=shift)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 9, 9))
    times = Timesteps()(noising_of(scheduler).schedule, 9).times
    torch.testing.assert_close(times.float(), scheduler.sigmas)


@pytest.mark.parametrize("area", [256, 1000, 4096])
def test_a_linear_shift_is_the_schedulers_own(area):
    """Which moves its times by mu itself, not by its exponential: mu / (mu + 1 / t - 1)."""
    scheduler = flow(use_dynamic_shifting=True, time_shift_type="linear", base_shift=0.5, max_shift=1.15)
    mu = 0.5 + (1.15 - 0.5) * (area - 256) / (4096 - 256)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 9, 9), mu=mu)
    times = Timesteps()(noising_of(scheduler, area=area).schedule, 9).times
    torch.testing.assert_close(times.float(), scheduler.sigmas)


def test_an_offset_of_the_timesteps_is_the_schedulers_own():
    """As Stable Diffusion's: one later than those of other schedulers of that spacing."""
    scheduler = diffusers.DDIMScheduler(steps_offset=1, timestep_spacing="leading", clip_sample=False)
    scheduler.set_timesteps(50)
    schedule = noising_of(scheduler).schedule
    visited = schedule.timestep(schedule.asked(Timesteps()(schedule, 50).times[:-1]))
    assert visited.tolist() == scheduler.timesteps.tolist() and visited[-1] == 1


@every
def test_files_hold_it(schedule):
    assert from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule
    assert len(repr(schedule)) < 120


def test_times_do_not_tell_schedules_apart_but_noise_does():
    assert Flow(shift=3.0) == Flow() != Flow(timesteps=500)
    assert Tabulated((0.9, 0.5), "leading", 1) == Tabulated((0.9, 0.5)) != Tabulated((0.9, 0.4))
