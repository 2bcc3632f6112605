"""Steps on a model's own timesteps: diffusers' own for one condition, closed forms for compositions."""

import math
import warnings

import numpy as np
import pytest
import torch

import polyscore as ps
from pipelines.small import PARTS, GaussianNet, ddpm, flow, unet
from polyscore.samplers.checks import Asked, before
from polyscore.samplers.loop import iterate
from polyscore.samplers.moves import Unbalanced

F64 = torch.float64
KINDS = {
    "epsilon": ddpm(), "v": ddpm("v_prediction"), "sample": ddpm("sample"), "clipped": ddpm(clip_sample=True),
    "v-zero-snr": ddpm("v_prediction", zero_snr=True), "sample-zero-snr": ddpm("sample", zero_snr=True),
    "leading": ddpm(spacing="leading", steps_offset=1), "linspace": ddpm("v_prediction", spacing="linspace"),
}  # fmt: skip
quiet = pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")


def states(q, sampler, n=2):
    """The points before and after every step, with the noise that it was given."""
    plan = before(sampler, q, Asked(n, 0, None, F64))
    stream = plan.stream("noise", (1, *plan.event), 0, n, normal=True) if sampler.churn else None
    points = [state.x[:, 0].clone() for state in iterate(plan, 0, n)]
    return [(points[i], points[i + 1], stream(i)[:, 0].clone() if stream else None) for i in range(plan.steps)]


def exact(scheduler):
    """Let a scheduler compute its scalars in float64: 1 - alpha^2 has lost four digits in float32 near the data."""
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.double()
    for name in ("one", "final_alpha_cumprod"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, getattr(scheduler, name).double())


class Injected:
    """Stands for a generator: hands out given noise to a scheduler of diffusers."""

    def __init__(self, monkeypatch, module):
        self.noise = None
        monkeypatch.setattr(module, "randn_tensor", lambda *_, **__: self.noise)


@quiet
@torch.no_grad()
@pytest.mark.parametrize("steps", [3, 20])
@pytest.mark.parametrize("scheduler", KINDS.values(), ids=KINDS)
def test_a_run_of_one_condition_is_that_of_the_ddpm_scheduler_step_by_step(scheduler, steps, monkeypatch):
    from diffusers.schedulers import scheduling_ddpm

    model = unet(3).double()
    p = ps.from_diffusers(model, scheduler=scheduler, conditions={"a": 2})
    injected = Injected(monkeypatch, scheduling_ddpm)
    scheduler.set_timesteps(steps)
    exact(scheduler)
    rows = states(p["a"], ps.Denoise(steps, grid="timesteps", integrator="ancestral"))
    assert len(rows) == len(scheduler.timesteps) == steps
    for i, (x, after, injected.noise) in enumerate(rows):
        label = torch.full((len(x),), 2)
        out = model(x, scheduler.timesteps[i], class_labels=label).sample
        own = scheduler.step(out, scheduler.timesteps[i], x).prev_sample
        torch.testing.assert_close(after, own, rtol=1e-6, atol=1e-6 * max(1.0, x.abs().max().item()))


@quiet
@torch.no_grad()
@pytest.mark.parametrize("prediction, zero", [("epsilon", False), ("v_prediction", True)])
def test_without_noise_it_is_ddim(prediction, zero):
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler.from_config(
        ddpm(prediction, zero).config, clip_sample=False, set_alpha_to_one=True, timestep_spacing="trailing"
    )
    model = unet().double()
    p = ps.from_diffusers(model, scheduler=scheduler)
    scheduler.set_timesteps(10)
    exact(scheduler)
    for i, (x, after, _) in enumerate(
        states(p["data"], ps.Denoise(10, churn=0, grid="timesteps", integrator="ancestral"))
    ):
        own = scheduler.step(model(x, scheduler.timesteps[i]).sample, scheduler.timesteps[i], x).prev_sample
        torch.testing.assert_close(after, own, rtol=1e-6, atol=1e-6 * max(1.0, x.abs().max().item()))


@quiet
@torch.no_grad()
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_the_ode_of_a_flow_is_eulers(shift):
    scheduler, steps = flow(shift=shift), 6
    model = unet().double()
    p = ps.from_diffusers(model, scheduler=scheduler)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps))
    sampler = ps.Denoise(steps, churn=0, grid="timesteps", integrator="ancestral")
    for i, (x, after, _) in enumerate(states(p["data"], sampler)):
        told = scheduler.timesteps[i]
        own = scheduler.step(model(x, told).sample, told, x).prev_sample
        torch.testing.assert_close(after, own, rtol=1e-6, atol=1e-6 * max(1.0, x.abs().max().item()))


def product(exponents):
    """Mean, covariance and log of the integral of a product of powers of Gaussians; plain NumPy."""
    precision = sum(w * np.linalg.inv(PARTS[name][1]) for name, w in exponents.items())
    cov = np.linalg.inv(precision)
    mean = cov @ sum(w * np.linalg.solve(PARTS[name][1], PARTS[name][0]) for name, w in exponents.items())

    def log_normal(away, cov):
        return -0.5 * (away @ np.linalg.solve(cov, away) + np.linalg.slogdet(2 * math.pi * cov)[1])

    at_mean = sum(w * log_normal(mean - PARTS[name][0], PARTS[name][1]) for name, w in exponents.items())
    return mean, cov, at_mean - log_normal(np.zeros(3), cov)


EXPONENTS = {
    "W=1": {"a": 1, "b": 1, "base": -1}, "W=1, uneven": {"a": 0.7, "b": 0.3}, "W=2": {"a": 1, "b": 1},
    "W=0.5": {"a": 0.3, "b": 0.2}, "W=1.5": {"a": 2, "base": -0.5},
}  # fmt: skip
SCHEDULERS = {"epsilon": ddpm(), "v-zero-snr": ddpm("v_prediction", zero_snr=True), "flow": flow()}


def family(scheduler, model=None):
    model = model or GaussianNet(scheduler)
    return ps.from_diffusers(model, scheduler=scheduler, conditions={"a": 0, "b": 1, "base": 2})


def check(run, exponents):
    """log Z to 0.25, the mean to 0.2 and the covariance to 0.3 deviations."""
    mean, cov, log_z = product(exponents)
    weights = torch.softmax(run.log_weights, 1)[..., None].numpy() / len(run.samples)
    x = run.particles.flatten(2).numpy()
    got = (weights * x).sum((0, 1))
    spread = np.einsum("nki,nkj->ij", weights * (x - got), x - got)
    scale = np.sqrt(np.diag(cov))
    errors = (abs(run.total_log_evidence - log_z), np.abs((got - mean) / scale).max(),
              np.abs((spread - cov) / np.outer(scale, scale)).max())  # fmt: skip
    assert errors[0] < 0.25 and errors[1] < 0.2 and errors[2] < 0.3, errors


@quiet
@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("exponents", EXPONENTS.values(), ids=EXPONENTS)
def test_weighted_swarms_have_the_compositions_moments_and_evidence(exponents, scheduler):
    """Over three other seeds the largest errors were 0.09 of log Z, 0.07 of a mean and 0.21 of a covariance, of which
    up to 0.17 is the bias of a hundred steps; their root mean squares 0.04 each, around that bias. The limits are three
    deviations or more away: with a free seed one of these cases would fail in about 1 %.
    """
    sampler = ps.FeynmanKac(2048, 100, grid="timesteps", integrator="ancestral")
    check(sampler.sample(ps.Composition(family(scheduler), exponents), 2, seed=1, dtype=F64), exponents)


@quiet
@pytest.mark.parametrize("exponents", [{"a": 0.6, "b": 0.2}, {"a": 0.8, "b": 0.7, "base": -0.3}], ids=str)
def test_the_literal_step_with_a_composed_eps_has_weights_of_its_own(exponents):
    """DDPM's own posterior with eps = -sigma S at W = 0.8 and 1.2: the divergence of the drift is in its weights."""
    sampler = ps.FeynmanKac(2048, 100, grid="timesteps", integrator="ancestral", move=Unbalanced())
    check(sampler.sample(ps.Composition(family(ddpm()), exponents), 2, seed=1, dtype=F64), exponents)


@quiet
def test_the_literal_step_is_ddpms_with_the_composed_eps(monkeypatch):
    from diffusers.schedulers import scheduling_ddpm

    scheduler, exponents = ddpm(), {"a": 0.9, "b": 0.8, "base": -0.3}
    exact(scheduler)
    model, injected = unet(3).double(), Injected(monkeypatch, scheduling_ddpm)
    q = ps.Composition(family(scheduler, model), exponents)
    scheduler.set_timesteps(6)
    sampler = ps.Denoise(6, grid="timesteps", integrator="ancestral", move=Unbalanced())
    for i, (x, after, injected.noise) in enumerate(states(q, sampler)):
        outs = [model(x, scheduler.timesteps[i], class_labels=torch.full((len(x),), k)).sample for k in range(3)]
        eps = sum(w * out for w, out in zip(exponents.values(), outs, strict=True))
        own = scheduler.step(eps.detach(), scheduler.timesteps[i], x).prev_sample
        torch.testing.assert_close(after, own, rtol=1e-6, atol=1e-6 * max(1.0, x.abs().max().item()))


@torch.no_grad()
def test_sums_of_v_are_no_scores_where_w_is_not_1():
    """Composed at the door: the score of a product is the sum of scores, which the sum of v becomes only at W = 1."""
    scheduler = ddpm("v_prediction")
    model, x = GaussianNet(scheduler), torch.randn(4, 3, 1, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    alpha, sigma = scheduler.alphas_cumprod[499].double() ** 0.5, (1 - scheduler.alphas_cumprod[499].double()) ** 0.5
    for exponents in ({"a": 1, "b": 0.5}, {"a": 0.7, "b": 0.3}):
        v = sum(w * model(x, torch.full((4,), 499.0), torch.full((4,), k))[0] for k, w in enumerate(exponents.values()))
        summed = -(alpha * v + sigma * x) / sigma
        score = ps.Composition(family(scheduler, model), exponents).score(x, 0.5)
        exact_score = torch.zeros(4, 3, dtype=F64)
        for name, w in exponents.items():
            mean, cov = (torch.tensor(part) for part in PARTS[name])
            noised = alpha**2 * cov + sigma**2 * torch.eye(3, dtype=F64)
            exact_score -= w * torch.linalg.solve(noised, (x.flatten(1) - alpha * mean).T).T
        torch.testing.assert_close(score.flatten(1), exact_score, rtol=1e-9, atol=1e-9)
        assert torch.allclose(summed, score) == (sum(exponents.values()) == 1)


@quiet
def test_other_grids_and_integrators_serve_the_same_models():
    """Between timesteps the Gaussian is asked at interpolated levels: multistep on its own grid, in a quarter of the
    steps. At seeds 2 to 6 the largest error was 0.1."""
    exponents = {"a": 1, "b": 1, "base": -1}
    run = ps.FeynmanKac(2048, 25).sample(ps.Composition(family(ddpm("v_prediction")), exponents), 2, seed=1, dtype=F64)
    check(run, exponents)


def test_a_run_in_float32_at_no_signal_keeps_what_the_model_says():
    """The first step of zero terminal SNR in float32, against float64: the clean point is in the score, to rounding."""
    scheduler = ddpm("v_prediction", zero_snr=True)
    p = family(scheduler)
    sampler = ps.Denoise(4, churn=0, grid="timesteps", integrator="ancestral")
    plans = [before(sampler, p["a"], Asked(64, 0, None, dtype)) for dtype in (torch.float32, F64)]
    table = plans[1].scalars
    x = torch.randn(64, 1, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    after = []
    for plan, dtype in zip(plans, (torch.float32, F64), strict=True):
        score, _ = plan.field(x.to(dtype), 0, want_excess=False)
        after.append((table[0, 0].to(dtype) * x.to(dtype) + table[0, 1].to(dtype) * score).double())
    assert (after[0] - after[1]).abs().max() < 2e-6
    # All of it is the prior's mean, by alpha of the next timestep, and the noise that x is: 0.77 here.
    alpha = scheduler.alphas_cumprod[749].double() ** 0.5
    expected = alpha * torch.tensor(PARTS["a"][0]) + (1 - alpha**2).sqrt() * x.double().flatten(1)
    torch.testing.assert_close(after[1].flatten(1), expected, rtol=1e-9, atol=1e-9)


def test_the_steps_that_a_warning_names_divide_the_timesteps_and_have_nothing_left_to_warn_of():
    """In 640 steps "leading" visits timesteps 0 to 639 of 1000, and so begins where signal is left."""
    p = ps.from_diffusers(GaussianNet(ddpm()), scheduler=ddpm(spacing="leading"), conditions={"a": 0, "base": 2})
    told = []
    for steps in (20, 1000):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before(ps.Denoise(steps, grid="timesteps", integrator="ancestral"), p["a"], Asked(1))
        told.append([str(one.message) for one in caught])
    assert len(told[0]) == 1 and told[0][0].endswith("Use steps=1000.") and told[1] == []
