"""Langevin kernels and the annealed sampler: what they accept, leave as it is, and are biased by."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, closed_form, compose, gaussian_family, opaque, own_mixtures, spd, within_standard_errors
from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.samplers import MALA, ULA, build_sampler, describe
from polyscore.samplers.langevin import ENERGIES, chosen, line_integral, lobatto
from polyscore.samplers.plan import make_plan
from polyscore.samplers.step import evaluate

GAUSSIANS = compose(gaussian_family(3), a=1, b=0.7, base=-0.3)
OWN = own_mixtures(3).members
MIXTURES = compose(
    ps.Family({"a": OWN["a"], "b": OWN["b"], "base": ps.Gaussian([0.4, -0.3, 0.8], cov=4 * spd(3, 61, floor=1.0))}),
    a=1, b=1, base=-0.6,
)  # fmt: skip
MIDDLE = 60  # of 100 steps: noise and signal alike


def plan_of(q, steps=100, dtype=F64):
    return make_plan(q, ps.Denoise(steps), 0, torch.empty(0, dtype=dtype))


def state_at(plan, x, i):
    """A state whose swarms have the particles x `(N, K, d)` at time i."""
    state = plan.sampler.begin(plan, 0, len(x))
    particles = x.shape[1]
    weights = torch.zeros(x.shape[:2], dtype=x.dtype)
    return evaluate(plan, replace(state, log_weights=weights.expand(-1, particles), rate=weights), x, i)


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def uniforms(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def log_path(q, x, alpha, sigma):
    """sum_a w_a log P_{a,t}(x) and its gradient, in NumPy, for points x `(n, d)`."""
    total, gradient = np.zeros(len(x)), np.zeros_like(x)
    for name, w in q.exponents.items():
        parts = q.family.members[name].components
        logs, pulls = [], []
        for mean, cov, share in zip(parts.means.numpy(), parts.covariances.numpy(), parts.weights.numpy()):
            noised = alpha**2 * cov + sigma**2 * np.eye(len(mean))
            away = x - alpha * mean
            pull = -np.linalg.solve(noised, away.T).T
            log_det = np.linalg.slogdet(2 * np.pi * noised)[1]
            logs.append(np.log(share) + 0.5 * (away * pull).sum(1) - 0.5 * log_det)
            pulls.append(pull)
        logs = np.stack(logs)
        log_p = np.logaddexp.reduce(logs)
        total += w * log_p
        gradient += w * (np.exp(logs - log_p)[..., None] * np.stack(pulls)).sum(0)
    return total, gradient


# --- acceptance
@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("i, size", [(5, 2.0), (MIDDLE, 6.0), (95, 6.0)])
def test_the_acceptance_is_that_of_the_formula(i, size, energy):
    """Whoever is accepted by pi(y) q(x|y) / (pi(x) q(y|x)) in NumPy is accepted here, W = 1.4, three dimensions; both
    happen. The densities of q are written out, as variance 2 h I."""
    plan, kernel = plan_of(MIXTURES), MALA(1, size, energy, nodes=12)
    now = plan.coefficients(i)
    x, z, u = 1.5 * normals(50, 4, 3), normals(1, 50, 4, 3, seed=2), uniforms(1, 50, 4)
    state = state_at(plan, x, i)
    after = kernel(plan, state, i, z, u)

    h = kernel.length(plan, i)
    old, noise = x.reshape(-1, 3).numpy(), z.reshape(-1, 3).numpy()
    log_old, score_old = log_path(MIXTURES, old, now.alpha, now.sigma)
    new = old + h * score_old + math.sqrt(2 * h) * noise
    log_new, score_new = log_path(MIXTURES, new, now.alpha, now.sigma)

    def log_q(to, origin, score):
        return -((to - origin - h * score) ** 2).sum(1) / (4 * h) - 1.5 * np.log(4 * np.pi * h)

    ratio = log_new - log_old + log_q(old, new, score_new) - log_q(new, old, score_old)
    accepted = np.log(u.numpy().ravel()) < ratio
    assert 0.1 < accepted.mean() < 0.9
    expected = np.where(accepted[:, None], new, old)
    np.testing.assert_allclose(after.x.reshape(-1, 3).numpy(), expected, rtol=1e-9, atol=1e-9)
    # Score and rate are those of where each particle is now, and rejected proposals have left no trace.
    again = evaluate(plan, state, after.x, i)
    torch.testing.assert_close(after.score, again.score)
    assert torch.equal(after.log_weights, state.log_weights) and after.alarm == 0


def test_the_length_is_below_twice_the_least_variance_of_the_path():
    """At every time the step of size 1 is at most the smallest eigenvalue of the path's covariance."""
    plan, ratios = plan_of(GAUSSIANS), []
    for i in range(0, 101, 10):
        now, precision = plan.coefficients(i), np.zeros((3, 3))
        for name, w in GAUSSIANS.exponents.items():
            cov = GAUSSIANS.family.members[name].cov.numpy()
            precision += w * np.linalg.inv(now.alpha**2 * cov + now.sigma**2 * np.eye(3))
        ratios.append(ULA(size=1.0).length(plan, i) * np.linalg.eigvalsh(precision).max())
    assert max(ratios) <= 1 and min(ratios) > 0.3, ratios
    assert MALA(size=1.0).length(plan, 7) == pytest.approx(ULA(size=1.0).length(plan, 7) / 3 ** (1 / 3))


def test_a_proposal_without_a_number_is_rejected_and_alarms_nobody():
    plan = plan_of(GAUSSIANS)
    old = state_at(plan, normals(2, 2, 3), MIDDLE)
    new = replace(old, x=old.x + 1, score=torch.full_like(old.score, math.nan), alarm=old.alarm + math.nan)
    kept = chosen(torch.zeros(2, 2, dtype=torch.bool), new, old)
    assert torch.equal(kept.x, old.x) and kept.alarm == 0
    taken = chosen(torch.tensor([[True, False], [False, False]]), new, old)
    assert taken.alarm.isnan()


# --- the line integral
@pytest.mark.parametrize("i", [5, MIDDLE, 95])
@pytest.mark.parametrize("q, nodes, tolerance", [
    (GAUSSIANS, 0, 1e-10), (MIXTURES, 3, 2e-2), (MIXTURES, 8, 3e-4), (MIXTURES, 20, 1e-8),
], ids=["gaussians-0", "mixtures-3", "mixtures-8", "mixtures-20"])  # fmt: skip
def test_the_line_integral_is_the_difference_of_log_densities(q, nodes, tolerance, i):
    """Over proposals of size 1: the trapezoid is exact for Gaussians, and nodes converge for mixtures."""
    plan, kernel = plan_of(q), MALA()
    state = state_at(plan, 1.2 * normals(40, 3, 3), i)
    h = kernel.length(plan, i)
    new = evaluate(plan, state, state.x + h * state.score + (2 * h) ** 0.5 * normals(40, 3, 3, seed=3), i)
    expected = MALA(energy="density").rise(plan, state, new, i)
    got = line_integral(plan, state, new, i, nodes)
    assert (got - expected).abs().max().item() < tolerance
    assert expected.abs().max().item() > 1  # there was something to integrate


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 6])
def test_lobatto_integrates_polynomials(nodes):
    end, inner = lobatto(nodes)
    assert len(inner) == nodes
    for degree in range(2 * nodes + 2):
        value = end * (degree == 0) + end + sum(weight * place**degree for place, weight in inner)
        assert value == pytest.approx(1 / (degree + 1), rel=1e-12)


# --- what is invariant
def path_draws(q, plan, i, n, seed):
    """Draws of the path at time i in NumPy: a * b / base^0.6 is one Gaussian for every pair of components."""
    now, source = plan.coefficients(i), np.random.default_rng(seed)
    factors = [(w, q.family.members[name].components) for name, w in q.exponents.items()]
    shares, draws = [], []
    for chosen_parts in itertools.product(*(range(parts.count) for _, parts in factors)):
        precision, shift, log_mass = np.zeros((3, 3)), np.zeros(3), 0.0
        for (w, parts), k in zip(factors, chosen_parts):
            noised = now.alpha**2 * parts.covariances[k].numpy() + now.sigma**2 * np.eye(3)
            p, mean = np.linalg.inv(noised), now.alpha * parts.means[k].numpy()
            precision, shift = precision + w * p, shift + w * p @ mean
            log_mass += w * (
                np.log(parts.weights[k].item()) - 0.5 * np.linalg.slogdet(noised)[1] - 0.5 * mean @ p @ mean
            )
        cov = np.linalg.inv(precision)
        shares.append(log_mass + 0.5 * np.linalg.slogdet(cov)[1] + 0.5 * shift @ cov @ shift)
        draws.append((cov @ shift, cov))
    shares = np.exp(np.array(shares) - np.logaddexp.reduce(shares))
    counts = source.multinomial(n, shares)
    x = np.concatenate([source.multivariate_normal(m, c, size=k) for (m, c), k in zip(draws, counts)])
    return torch.as_tensor(source.permutation(x))


def moments(x):
    """x, and its products in pairs, `(n, d + d^2)`."""
    return torch.cat([x, (x[:, :, None] * x[:, None]).flatten(1)], dim=1)


@pytest.mark.parametrize("energy", ["density", "line"])
@pytest.mark.parametrize("i, size", [(MIDDLE, 1.0), (85, 3.0)])
def test_mala_leaves_the_path_as_it_is(i, size, energy):
    """12 moments of 20,000 exact draws after 15 proposals against those of 20,000 others, W = 1.4, three dimensions:
    all within 4.5 standard errors, a false alarm in 10^4. ULA of the same size fails: the test can."""
    plan = plan_of(MIXTURES)
    x, y = (path_draws(MIXTURES, plan, i, 20_000, seed) for seed in (1, 2))
    scale = y.std(0)
    z, u = normals(15, 20_000, 1, 3, seed=4), uniforms(15, 20_000, 1, seed=5)

    def gap(kernel):
        moved = kernel(plan, state_at(plan, x[:, None], i), i, z, u).x[:, 0]
        a, b = moments((moved - y.mean(0)) / scale), moments((y - y.mean(0)) / scale)
        return ((a.mean(0) - b.mean(0)).abs() / (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()).max().item()

    assert gap(MALA(15, size, energy)) < 4.5
    assert gap(ULA(15, size / 3 ** (1 / 3))) > 7


def test_mala_finds_the_path_from_elsewhere():
    """400 proposals from a start 3 deviations off: mean and products of a composition of Gaussians, W = 1.4, 6000
    chains, within 4.5 standard errors: a false alarm in 10^4."""
    plan, i, kernel = plan_of(GAUSSIANS), 100, MALA(100)
    mean, cov, _ = closed_form(GAUSSIANS)
    state = state_at(plan, (torch.as_tensor(mean) + 3 + 0.1 * normals(6000, 3))[:, None], i)
    for k in range(4):
        state = kernel(plan, state, i, normals(100, 6000, 1, 3, seed=k), uniforms(100, 6000, 1, seed=10 + k))
    root = np.linalg.cholesky(cov)
    white = (state.x[:, 0] / plan.coefficients(i).alpha - torch.as_tensor(mean)) @ torch.as_tensor(
        np.linalg.inv(root).T
    )
    within_standard_errors(white, 0.0, 4.5)
    within_standard_errors((white[:, :, None] * white[:, None]).flatten(1), torch.eye(3).flatten(), 4.5)


def test_ula_is_biased_by_its_size():
    """N(0, v) settles at v / (1 - h / 2v): 40,000 chains at h = v, v / 2, v / 8, each within 4.5 standard errors of
    0.7 %, a false alarm in 5 * 10^4; the bias shrinks from 1 to 1/15."""
    q = ps.Family({"a": ps.Gaussian(cov=[2.0])})["a"]
    plan, i, biases = plan_of(q), 70, []
    now = plan.coefficients(i)
    v = now.alpha**2 * 2.0 + now.sigma**2
    for size, repeats in ((1.0, 30), (0.5, 30), (0.125, 60)):
        assert ULA(size=size).length(plan, i) == pytest.approx(size * v)
        state = state_at(plan, v**0.5 * normals(40_000, 1, 1), i)
        x = ULA(repeats, size)(plan, state, i, normals(repeats, 40_000, 1, 1, seed=7), uniforms(0, 40_000, 1)).x
        biases.append(x.var().item() / v - 1)
        assert (biases[-1] + 1) * (1 - size / 2) == pytest.approx(1, abs=4.5 * 0.0071)
    assert biases[0] > 2 * biases[1] > 8 * biases[2] > 0


# --- with weights
@pytest.mark.filterwarnings("ignore:K should be large")  # eight are enough for the evidence, which is asked for here
@pytest.mark.parametrize("kernel", [MALA(2), MALA(1, energy="line", nodes=0)], ids=["density", "line"])
def test_feynman_kac_keeps_its_evidence_unbiased(kernel):
    """Z^ / Z over 1500 swarms of 8, W = 1.4: its mean is 1 within 4 standard errors of 0.3 %, a false alarm in 10^4,
    besides 0.3 % of the time step; and it varies less than half as much as without the kernel."""
    log_z = closed_form(GAUSSIANS)[2]
    run, plain = (
        ps.FeynmanKac(8, 150, integrator="frozen", kernels=kernels).sample(GAUSSIANS, 1500, seed=5)
        for kernels in ((kernel,), ())
    )
    ratio = (run.log_evidence.double() - log_z).exp()
    within_standard_errors(ratio, 1.0, 4, slack=0.003)
    assert run.log_evidence_error < 0.5 * plain.log_evidence_error


# --- the sampler
@pytest.mark.parametrize("how, slack", [({}, 0.03), ({"adjusted": False}, 0.06)], ids=["mala", "ula"])
def test_annealed_langevin_samples_a_composition_of_gaussians(how, slack):
    """Mean and covariance of 6000 samples, W = 1.4: all 12 within 4.5 standard errors, a false alarm in 10^4, besides
    what lags behind the levels, and ULA's own bias of 0.05 at the most. Adding scores is off by 0.4."""
    x = ps.AnnealedLangevin(**how).sample(GAUSSIANS, 6000, seed=1).samples.double()
    mean, cov, _ = closed_form(GAUSSIANS)
    scale = torch.as_tensor(np.sqrt(np.diag(cov)))
    z = (x - torch.as_tensor(mean)) / scale
    within_standard_errors(z, 0.0, 4.5, slack=slack)
    expected = torch.as_tensor(cov) / scale / scale[:, None]
    within_standard_errors((z[:, :, None] * z[:, None]).flatten(1), expected.flatten(), 4.5, slack=slack)
    added = ps.Denoise().sample(GAUSSIANS, 6000, seed=1).samples.double()
    assert ((added.mean(0) - torch.as_tensor(mean)) / scale).abs().max() > 0.3


@pytest.mark.filterwarnings("ignore:sources of unknown size")
def test_scores_alone_serve():
    """Behind opaque models the line is taken, and nothing else is known of the sources: 12 moments within 4.5 standard
    errors of 2000 samples, besides the lag of steps that are chosen for parts a tenth as wide."""
    sampler = ps.AnnealedLangevin(steps=60, repeats=4, size=20.0)
    x = sampler.sample(opaque(GAUSSIANS), 2000, seed=1).samples.double()
    mean, cov, _ = closed_form(GAUSSIANS)
    within_standard_errors((x - torch.as_tensor(mean)) / torch.as_tensor(np.sqrt(np.diag(cov))), 0.0, 4.5, slack=0.1)


def test_it_is_denoising_with_a_kernel():
    short = ps.AnnealedLangevin(10, repeats=2, size=0.5)
    same = ps.Denoise(10, kernels=[{"kind": "mala", "repeats": 2, "size": 0.5}]).sample(MIXTURES, 7, seed=3)
    assert torch.equal(short.sample(MIXTURES, 7, seed=3).samples, same.samples)
    loose = ps.AnnealedLangevin(10, adjusted=False)
    assert loose.kernels == (ULA(5),) and ps.AnnealedLangevin().kernels == (MALA(5),)


@pytest.mark.parametrize("sampler", [
    ps.AnnealedLangevin(), ps.AnnealedLangevin(20, adjusted=False, size=0.2, repeats=3),
    ps.FeynmanKac(4, 10, kernels=("ula", MALA(2, energy="line", nodes=1))),
])  # fmt: skip
def test_names_stand_for_it_in_files(sampler):
    assert build_sampler(json.loads(json.dumps(describe(sampler)))) == sampler


@pytest.mark.parametrize("make, words", [
    (lambda: MALA(0), "repeats must be a whole number of at least 1"),
    (lambda: ULA(size=0), "size must be a number above 0"),
    (lambda: MALA(energy="lines"), "energy must be one of auto, density, line.*Did you mean 'line'"),
    (lambda: MALA(nodes=-1), "nodes must be a whole number"),
    (lambda: ps.AnnealedLangevin(adjusted="no"), "adjusted must be True or False"),
    (lambda: ps.FeynmanKac(kernels=["mla"]), "kernel must be one of .*Did you mean 'mala'"),
])  # fmt: skip
def test_what_is_no_kernel_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_densities_are_wanted_where_they_are_asked_for():
    with pytest.raises(ValueError, match="must have a closed form here; got a learned model"):
        ps.FeynmanKac(2, 5, kernels=[MALA(energy="density")]).sample(opaque(GAUSSIANS), 2)


# --- acceptance
@pytest.mark.parametrize("energy", ["density", "line"])
def test_a_run_says_how_many_proposals_were_accepted(energy):
    """N(0, 1.5) in one dimension, where every level's share has a closed integral, taken here by a grid: 3000 chains a
    level, two proposals each, all 12 levels within 4.5 standard errors of 0.6 %, an alarm in 10^4."""
    q = ps.Family({"a": ps.Gaussian(cov=[1.5])})["a"]
    kernel = MALA(2, 1.5, energy, nodes=0)
    run = ps.Denoise(12, kernels=(kernel,)).sample(q, 3000, seed=2, dtype=F64)
    # In units of the path's deviation all levels are alike: h = size, S = -x.
    x, z = np.meshgrid(np.linspace(-7, 7, 1401), np.linspace(-7, 7, 1401))
    y = x - 1.5 * x + np.sqrt(3.0) * z
    ratio = 0.5 * (x**2 - y**2) + 0.5 * z**2 - (x - y + 1.5 * y) ** 2 / 6
    expected = np.sum(np.minimum(1, np.exp(ratio)) * np.exp(-0.5 * (x**2 + z**2))) * 0.01**2 / (2 * np.pi)
    assert run.acceptance.shape == (12,) and 0.3 < expected < 0.9
    # Twelve steps leave the widths of levels a little wrong: 0.01 of slack.
    assert (run.acceptance - expected).abs().max().item() < 4.5 * 0.0065 + 0.01
    assert f"Of the proposals {100 * run.acceptance.mean():.3g} % were accepted" in run.summary()


def test_acceptance_is_the_share_of_particles_that_moved():
    """By hand: one proposal at one level, and the points that are elsewhere after it."""
    plan, z, u = plan_of(MIXTURES), normals(1, 50, 4, 3, seed=8), uniforms(1, 50, 4, seed=9)
    before = state_at(plan, 1.5 * normals(50, 4, 3), MIDDLE)
    after = MALA(1, 2.0)(plan, before, MIDDLE, z, u)
    moved = (after.x != before.x).any(-1).double().mean()
    assert 0.05 < moved < 0.95 and (after.accepted - before.accepted).item() == pytest.approx(moved.item())


def test_acceptance_does_not_depend_on_chunks_and_is_none_without_proposals():
    sampler = ps.FeynmanKac(4, 6, kernels=(MALA(1), "ula", MALA(2, 0.5)))
    whole, parts = (sampler.sample(GAUSSIANS, 1000, seed=3, max_particles=most) for most in (None, 1200))
    torch.testing.assert_close(whole.acceptance, parts.acceptance, rtol=1e-4, atol=1e-4)
    assert ps.FeynmanKac(4, 6, kernels=("ula",)).sample(GAUSSIANS, 10, seed=3).acceptance is None


def test_kernels_that_are_stuck_are_told_of():
    with pytest.warns(DegeneracyWarning, match=r"proposals should be accepted more often; \S+ % were"):
        ps.AnnealedLangevin(10, size=60.0).sample(GAUSSIANS, 100, seed=1)
    assert not ps.AnnealedLangevin(10).sample(GAUSSIANS, 100, seed=1).findings
