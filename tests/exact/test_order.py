"""Orders of convergence on a Gaussian whose probability-flow map is known; steps against textbook formulas."""

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, PURE_NOISE, SCHEDULES, compose, gaussian_family, time_grid
from polyscore.samplers.checks import variance_ratio
from polyscore.samplers.grids import TimeGrid, equal_grid, extent_of, snr_grid
from polyscore.samplers.integrators import _integrals, _phi, euler_steps, frozen_steps, multistep_steps
from polyscore.samplers.loop import iterate
from polyscore.samplers.moves import Balanced
from polyscore.samplers.plan import make_plan


def root(matrix):
    values, basis = np.linalg.eigh(matrix)
    return (basis * np.sqrt(values)) @ basis.T


def flow_map(part: ps.Gaussian, schedule: ps.Schedule, x: np.ndarray, start: float, end: float) -> np.ndarray:
    """The ODE's exact map: every noised covariance shares cov's basis, so roots commute and white points stay put."""
    mean, cov, eye = part.mean.numpy(), part.cov.numpy(), np.eye(part.dim)
    (a1, s1), (a0, s0) = (
        (schedule.alpha(t).item(), schedule.sigma(t).item()) for t in torch.tensor([start, end], dtype=F64)
    )
    white = np.linalg.inv(root(a1**2 * cov + s1**2 * eye)) @ (x - a1 * mean).T
    return (root(a0**2 * cov + s0**2 * eye) @ white).T + a0 * mean


def ode_errors(schedule, counts, order=1, **how):
    q = gaussian_family(3, schedule)["a"]
    errors = []
    for steps in counts:
        plan = make_plan(q, ps.Denoise(steps, churn=0.0, order=order, **how), 3, torch.empty(0, dtype=F64))
        states = list(iterate(plan, 0, 64))
        first, last = states[0].x[:, 0].numpy(), states[-1].x[:, 0].numpy()
        # Equal Euler steps go all the way although their times are clamped.
        whole = how.get("grid") == "equal" and not schedule.ends_in_pure_noise
        start, end = (1.0, 0.0) if whole else (plan.times[0].item(), plan.times[-1].item())
        errors.append(np.abs(last - flow_map(q.distribution("a"), schedule, first, start, end)).max())
    return np.array(errors)


def grid_of(times):
    return TimeGrid(times, -times.diff())


def slopes(errors, counts):
    return -np.diff(np.log(errors)) / np.diff(np.log(counts))


@pytest.mark.parametrize("order, low, high", [(1, 0.85, 1.2), (2, 1.8, 2.3)])
def test_order_of_the_ode_steps(order, low, high):
    counts = np.array([100, 200, 400, 800])
    how = {"grid": "equal", "integrator": "euler", "start": "noise"}
    observed = slopes(ode_errors(ps.VP(0.1, 12.0), counts.tolist(), order, **how), counts)
    assert ((low < observed) & (observed < high)).all(), observed


@pytest.mark.parametrize("name", PURE_NOISE)
def test_order_of_the_step_that_is_exact_in_the_linear_part(name):
    counts = np.array([100, 200, 400, 800])
    errors = ode_errors(SCHEDULES[name], counts.tolist(), grid="equal", integrator="frozen", start="noise")
    observed = slopes(errors, counts)
    assert ((observed > 0.8) & (observed < 1.3)).all(), (errors, observed)


@pytest.mark.parametrize("integrator, low, high", [("frozen", 0.85, 1.15), ("multistep", 1.8, 2.3)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_order_on_the_grid_in_log_snr(name, integrator, low, high):
    counts = np.array([50, 100, 200, 400])
    errors = ode_errors(SCHEDULES[name], counts.tolist(), integrator=integrator)
    observed = slopes(errors, counts)
    assert ((low < observed) & (observed < high)).all(), (errors, observed)


@pytest.mark.parametrize("churn", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("integrator, order", [("multistep", 2), ("frozen", 1)])
def test_weak_order_of_the_default_steps(churn, integrator, order):
    """The variance in which a Gaussian comes out, by propagation of moments: the bias falls as steps^-order."""
    schedule, extent = ps.VP(), extent_of(ps.Family({"a": ps.Gaussian(cov=[0.3])})["a"])
    build = {"multistep": multistep_steps, "frozen": frozen_steps}[integrator]
    counts = np.array([100, 200, 400, 800])
    gaps = []
    for steps in counts.tolist():
        grid = snr_grid(schedule, steps, extent)
        gaps.append(abs(variance_ratio(schedule, 0.3, grid.times, build(schedule, grid, 1.0, churn)) - 1))
    assert (np.abs(slopes(np.array(gaps), counts) - order) < 0.25).all(), gaps


def test_weak_order_of_the_sde_steps():
    """The variance of the Euler-Maruyama chain on a 1-D Gaussian, by its own recursion: bias falls as 1 / steps."""
    part, schedule = ps.Gaussian(cov=[2.0]), ps.VP()
    gaps, counts = [], np.array([250, 500, 1000, 2000])
    for steps in counts.tolist():
        times = time_grid(steps)
        table = euler_steps(schedule, equal_grid(schedule, steps), 1.0, 1.0, Balanced())
        variance = schedule.sigma(times[0]).item() ** 2
        for i in range(steps):
            t = times[i]
            precision = 1 / (schedule.alpha(t) ** 2 * 2.0 + schedule.sigma(t) ** 2).item()
            factor = table.keep[i].item() - table.pull[i].item() * precision
            variance = factor**2 * variance + table.noise[i].item() ** 2
        gaps.append(abs(variance - part.cov.item()))
    assert (np.abs(slopes(np.array(gaps), counts) - 1) < 0.25).all(), gaps


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [7, 100])
def test_an_ancestral_step_is_the_textbook_posterior(name, steps):
    """q(x_s | x_t, x_0): mean and variance as in Ho et al. (2020), from the conditional x_t | x_s."""
    schedule, times = SCHEDULES[name], time_grid(steps)
    table = frozen_steps(schedule, grid_of(times), 1.0, 1.0)
    for i in range(steps):
        t, s = times[i], times[i + 1]
        at, st, as_, ss = (f(r).item() for r in (t, s) for f in (schedule.alpha, schedule.sigma))
        step_alpha = at / as_
        step_variance = st**2 - step_alpha**2 * ss**2
        of_x, of_x0 = step_alpha * ss**2 / st**2, as_ * step_variance / st**2
        # S = (alpha x0 - x) / sigma^2
        assert table.keep[i].item() - table.pull[i].item() / st**2 == pytest.approx(of_x, rel=1e-6, abs=1e-9)
        assert table.pull[i].item() * at / st**2 == pytest.approx(of_x0, rel=1e-6, abs=1e-9)
        assert table.noise[i].item() ** 2 == pytest.approx(step_variance * ss**2 / st**2, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_without_churn_is_ddim(name):
    schedule, times = SCHEDULES[name], time_grid(20)
    table = frozen_steps(schedule, grid_of(times), 1.0, 0.0)
    t, s = times[:-1], times[1:]
    # x_s = alpha_s x0 + sigma_s eps with eps = -sigma_t S and x0 = (x_t + sigma_t^2 S) / alpha_t
    keep = schedule.alpha(s) / schedule.alpha(t)
    pull = keep * schedule.sigma(t) ** 2 - schedule.sigma(s) * schedule.sigma(t)
    torch.testing.assert_close(table.keep, keep, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(table.pull, pull, rtol=1e-7, atol=1e-7)
    assert not table.noise.any()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("churn", [0.0, 0.5, 1.0, 1.3])
def test_quadrature_agrees_with_the_closed_branch_at_one(name, churn):
    schedule, times = SCHEDULES[name], time_grid(50)
    closed, general = (frozen_steps(schedule, grid_of(times), total, churn) for total in (1.0, 1.0 + 1e-12))
    t = times[:-1]
    for one, other, scale in (
        (closed.keep, general.keep, 1 / schedule.alpha(t)),
        (closed.pull, general.pull, 1 / schedule.alpha(t)),
        (closed.noise**2, general.noise**2, torch.ones_like(t)),
    ):
        assert bool(((one - other).abs() <= 1e-6 * (1 + scale * 1e-2)).all())


@pytest.mark.parametrize("name", PURE_NOISE)
@pytest.mark.parametrize("total, churn", [(0.5, 1.0), (1.5, 0.0), (2.0, 0.7)])
def test_step_integrals_against_a_fine_ode_solution(name, total, churn):
    """The frozen linear SDE's mean and variance, by many small classical Runge-Kutta steps from t to s."""
    schedule = SCHEDULES[name]
    t, s, x0 = 0.83, 0.7, 1.3

    def slopes_at(r, state):
        r = torch.tensor(r, dtype=F64)
        drift, eta2, alpha, sigma = (f(r).item() for f in (schedule.drift, lambda u: schedule.diffusion(u) ** 2,
                                                          schedule.alpha, schedule.sigma))  # fmt: skip
        pull = 0.5 * (1 + churn**2) * eta2
        mean, variance = state
        rate = -total * drift - pull * total / sigma**2  # of x in reverse time
        return np.array([rate * mean + pull * alpha * x0 / sigma**2, 2 * rate * variance + churn**2 * eta2])

    state, count = np.array([-0.4, 0.0]), 400
    h = (t - s) / count
    for i in range(count):
        r = t - i * h
        k1 = slopes_at(r, state)
        k2 = slopes_at(r - h / 2, state + h / 2 * k1)
        k3 = slopes_at(r - h / 2, state + h / 2 * k2)
        k4 = slopes_at(r - h, state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    ends = torch.tensor([s], dtype=F64), torch.tensor([t], dtype=F64)
    toward, variance = _integrals(schedule, *ends, total, churn)
    phi = _phi(schedule, *ends, total, churn)
    assert (phi * -0.4 + toward * x0).item() == pytest.approx(state[0], rel=1e-7)
    assert variance.item() == pytest.approx(state[1], rel=1e-7, abs=1e-12)
    table = frozen_steps(schedule, grid_of(torch.tensor([t, s], dtype=F64)), total, churn)
    alpha, sigma = schedule.alpha(ends[1]).item(), schedule.sigma(ends[1]).item()
    score = (alpha * x0 - total * -0.4) / sigma**2
    assert (table.keep * -0.4 + table.pull * score).item() == pytest.approx(state[0], rel=1e-7)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "LinearFlow"])
def test_w_not_one_flow_keeps_pure_noise(name):
    """N(0, I)^W under variance-preserving noise: the ODE moves no point. Euler says so exactly; the step that freezes
    X = W alpha x is of order 1."""
    p = ps.Family({"a": ps.Gaussian(cov=1.0), "b": ps.Gaussian(cov=1.0)}, SCHEDULES[name])
    gaps = []
    for steps in (100, 400):
        sampler = ps.Denoise(steps, churn=0.0, grid="equal", integrator="euler", start="noise")
        states = list(iterate(make_plan(compose(p, a=1, b=0.7), sampler, 0, torch.empty(0, dtype=F64)), 0, 8))
        gaps.append((states[-1].x - states[0].x).abs().max().item())
    if SCHEDULES[name].ends_in_pure_noise:
        assert 3 < gaps[0] / gaps[1] < 5
        assert gaps[1] < 0.02
    else:
        assert max(gaps) < 1e-12
