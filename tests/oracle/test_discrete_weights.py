"""Log-weights g dt against the weights of the discrete steps themselves, from their kernels (Radon-Nikodym).

A chain that moves by K(x' | x) and is looked at backwards by any L(x | x') has the exact log-weights

    sum over steps of  log pi_s(x') - log pi_t(x) + log L(x | x') - log K(x' | x),

unbiased for Z however coarse the steps. With L the noising dx = W u dt + eta dB they tend to the integral of g; each
particle's differ by O(steps^-1/2), since squares of the step's noise average out only in the sum, their mean by
O(1 / steps). All of it is written here in NumPy.
"""

import itertools

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, closed_form, compose, gaussian_family, naive_excess, opaque
from polyscore.errors import ArgumentError
from polyscore.paper.settings import setting
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan

EXPONENTS = {"1,.7,-.3": {"a": 1, "b": 0.7, "base": -0.3}, "1,1,-1": {"a": 1, "b": 1, "base": -1},
             ".3,.2": {"a": 0.3, "b": 0.2}}  # fmt: skip
all_exponents = pytest.mark.parametrize("exponents", EXPONENTS.values(), ids=EXPONENTS)


def log_normal(away, cov):
    return -0.5 * (away * np.linalg.solve(cov, away.T).T).sum(1) - 0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]


def scales(schedule, t):
    return (f(torch.as_tensor(t, dtype=F64)).numpy() for f in (schedule.alpha, schedule.sigma))


def log_path(q, x, t):
    """sum_a w_a log P_{a,t}(x)."""
    alpha, sigma = scales(q.schedule, t)
    total = 0.0
    for name, w in q.exponents.items():
        part, eye = q.family.members[name], np.eye(q.event[0])
        total = total + w * log_normal(x - alpha * part.mean.numpy(), alpha**2 * part.cov.numpy() + sigma**2 * eye)
    return total


def noising(q, t, s):
    """Factor and variance of dx = W u dt + eta dB from s to t, by many trapezoids."""
    r = np.linspace(s, t, 2001)
    (at, _), (a, _) = scales(q.schedule, t), scales(q.schedule, r)
    eta = q.schedule.diffusion(torch.as_tensor(r)).numpy()
    return (at / a[0]) ** q.total, np.trapezoid((at / a) ** (2 * q.total) * eta**2, r)


def run(q, steps, n):
    """All states of n particles that are weighed but never resampled, and their plan."""
    sampler = ps.FeynmanKac(2, steps, threshold=0.0, integrator="frozen")
    plan = make_plan(q, sampler, 0, torch.empty(0, dtype=F64))
    return plan, list(iterate(plan, 0, n // 2))


def flat(tensor):
    return tensor.flatten(0, 1).numpy()


def discrete_log_weights(plan, states):
    q, times, eye = plan.q, plan.times.tolist(), np.eye(plan.q.event[0])
    total = 0.0
    for i, (old, new) in enumerate(itertools.pairwise(states)):
        now, x, y = plan.coefficients(i), flat(old.x), flat(new.x)
        shrink, variance = noising(q, times[i], times[i + 1])
        forth = log_normal(y - now.keep * x - now.pull * flat(old.score), now.noise**2 * eye)
        back = log_normal(x - shrink * y, variance * eye)
        total = total + log_path(q, y, times[i + 1]) - log_path(q, x, times[i]) + back - forth
    return total


@all_exponents
def test_g_dt_tends_to_the_weights_of_the_steps(exponents):
    """1000 particles, three dimensions: from 100 to 400 steps their root mean square difference falls by 2 to 2.5 (2 is
    order 1/2), its mean by 3.3 to 3.8 (4 is order 1) in 4000 others, standard errors below 5 %."""
    q = compose(gaussian_family(3), **exponents)
    gaps = []
    for steps in (100, 400):
        plan, states = run(q, steps, 1000)
        gaps.append(flat(states[-1].log_weights) - discrete_log_weights(plan, states))
    (coarse, fine), (low, high) = (np.sqrt(np.mean(np.square(gaps), 1)), (1.7, 3.0))
    assert low < coarse / fine < high
    means = np.mean(gaps, 1)
    assert 2.8 < means[0] / means[1] < 5


def test_the_weights_of_the_steps_are_unbiased_where_g_dt_is_not():
    """Z^ / Z of 20,000 particles in 12 coarse steps, one dimension, W = 0.5: 1 within 4 standard errors, a false alarm
    in 10^4; that of g dt is off by more than five of its own."""
    q = compose(ps.Family({"a": ps.Gaussian([0.4], cov=[1.5]), "b": ps.Gaussian([-0.3], cov=[0.7])}), a=0.3, b=0.2)
    plan, states = run(q, 12, 20_000)
    log_z = closed_form(q)[2] - (1 - q.total) * np.log(plan.last_signal)  # of alpha x_0
    logs = {"kernels": discrete_log_weights(plan, states), "g dt": flat(states[-1].log_weights)}
    off = {}
    for name, values in logs.items():
        ratio = np.exp(values + plan.origin.log_mass - log_z)
        off[name] = (ratio.mean() - 1) / (ratio.std() / np.sqrt(len(ratio)))
    assert abs(off["kernels"]) < 4 and abs(off["g dt"]) > 5, off


@pytest.mark.parametrize("exponents", [{"a": 1.3, "b": 0.5, "base": -0.8}, {"a": 0.7, "b": 0.3}])
def test_kernels_of_scores_alone_are_g_dt_from_the_left_end(exponents):
    """Where pi_s / pi_t is itself taken from kernels, prod_a (k_a / L)^{w_a} with k_a the reverse step of condition a,
    nothing is left of the noise at W = 1: the gain is pull^2 / (2 noise^2) (|S|^2 - sum w |s_a|^2), to the letter. So
    weights that know scores alone have no more to say than g."""
    q = compose(gaussian_family(3), **exponents)
    plan, states = run(q, 40, 60)
    for i in (3, 20, 36):
        now, x, y, cov = plan.coefficients(i), flat(states[i].x), flat(states[i + 1].x), np.eye(3)
        scores, shares = q.scores(torch.as_tensor(x), plan.times[i]), list(q.exponents.values())
        moves = [y - now.keep * x - now.pull * score.numpy() for score in scores]
        own = sum(w * log_normal(away, now.noise**2 * cov) for w, away in zip(shares, moves, strict=True))
        gain = own - log_normal(y - now.keep * x - now.pull * flat(states[i].score), now.noise**2 * cov)
        expected = now.pull**2 / (2 * now.noise**2) * naive_excess(scores, shares).numpy()
        np.testing.assert_allclose(gain, expected, rtol=1e-6, atol=1e-8)
        assert np.abs(expected).max() > 1e-5


# --- as an option of samplers: quadrature="discrete"
@all_exponents
def test_the_option_weighs_by_the_steps(exponents):
    """Particle by particle, what is written here in NumPy; three dimensions, 15 coarse steps."""
    q = compose(gaussian_family(3), **exponents)
    sampler = ps.FeynmanKac(2, 15, threshold=0.0, integrator="frozen", quadrature="discrete")
    plan = make_plan(q, sampler, 0, torch.empty(0, dtype=F64))
    states = list(iterate(plan, 0, 20))
    expected = discrete_log_weights(plan, states)
    np.testing.assert_allclose(flat(states[-1].log_weights), expected, rtol=1e-6, atol=1e-6)
    assert np.std(expected) > 0.5


SMALL = compose(ps.Family({"a": ps.Gaussian([0.4], cov=[1.5]), "b": ps.Gaussian([-0.3], cov=[0.7])}), a=0.3, b=0.2)


@pytest.mark.filterwarnings("ignore:(swarms|weight|K|no single step) should")
@pytest.mark.parametrize("make", [
    lambda **options: ps.FeynmanKac(16, **options),
    lambda **options: ps.FeynmanKac(16, kernels=("mala",), **options),
    lambda **options: ps.Controlled(16, bumps=0, pilot=256, **options),
], ids=["multistep", "mala", "controlled"])  # fmt: skip
def test_coarse_steps_leave_no_bias_with_the_option(make):
    """Z^ / Z over 3000 swarms of 16, 30 steps, W = 0.5: its mean is 1 within 4 standard errors, an alarm in 10^4. A
    drift that steers is in the step's own kernel; the line through two clean points as well."""
    run = make(steps=30, quadrature="discrete", threshold=0.5).sample(SMALL, 3000, seed=4)
    ratio = (run.log_evidence.double() - closed_form(SMALL)[2]).exp()
    error = ratio.std().item() / len(ratio) ** 0.5
    assert abs(ratio.mean().item() - 1) < 4 * error and error < 0.1


@pytest.mark.filterwarnings("ignore:(swarms|weight|K|no single step|steps) should")
def test_twelve_steps_find_far_mixtures_with_the_option_alone():
    """Sliced W2 of 1000 outputs: 0.1 and 4.5 were seen."""
    q = ps.base_composition(setting("mixture-ood"))
    reference = ps.exact(q).sample(1000, seed=1)
    plain, discrete = (
        ps.sliced_wasserstein(sampler.sample(q, 1000, seed=0).samples, reference, projections=200)
        for sampler in (ps.FeynmanKac(16, 12), ps.FeynmanKac(16, 12, quadrature="discrete"))
    )
    assert discrete < 0.1 * plain


@pytest.mark.parametrize("sampler, q, words", [
    (ps.FeynmanKac(2, 9, quadrature="discrete"), opaque(SMALL), "go with factors that have densities"),
    (ps.FeynmanKac(2, 9, quadrature="discrete", churn=0.5), SMALL, "go with churn = 1"),
    (ps.FeynmanKac(2, 9, quadrature="discrete", clip=1.0), SMALL, "clip must be None"),
    (ps.FeynmanKac(2, 9, quadrature="discrete", move="unbalanced"), SMALL, "go with the balanced move"),
    (ps.PrecisionFeynmanKac(2, 9, quadrature="discrete"), SMALL, "go with the balanced move"),
])  # fmt: skip
def test_what_has_no_such_weights_is_refused(sampler, q, words):
    with pytest.raises(ArgumentError, match=words):
        sampler.sample(q, 2)
