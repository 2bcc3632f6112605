"""The precision-weighted score as a proposal under Feynman-Kac weights: the rate, evidence, what is left to weigh."""

import json
from dataclasses import dataclass

import pytest
import torch

import polyscore as ps
from cases import F64, closed_form, compose, gaussian_family, opaque, own_mixtures, points, spd, within_standard_errors
from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.fields.proposal import ProposalField, round_of_signs
from polyscore.samplers import build_sampler, describe

W_ONE, W_MORE, W_LESS = {"a": 1, "b": 1, "base": -1}, {"a": 1, "b": 0.7, "base": -0.3}, {"a": 0.3, "b": 0.2}
TIMES = torch.tensor([0.999, 0.7, 0.4, 0.1, 0.01], dtype=F64)


def field_of(q, churn=1.0, probes=None, dtype=F64):
    return ProposalField(q, TIMES, torch.empty(0, dtype=dtype), 3.0, 1e-3, churn, probes)


# --- the rate
def log_path(q, x, t):
    """sum_a w_a log P_{a,t}(x) of one point, by the densities themselves."""
    alpha, sigma = q.schedule.alpha(t), q.schedule.sigma(t)
    return sum(w * q.family.members[name].log_prob(x[None], alpha, sigma)[0] for name, w in q.exponents.items())


def drift(q, x, t, churn):
    """-u + (eta^2 / 2 W) (s + c^2 S), all of it from second derivatives of log-densities."""
    grad, hessian = torch.func.grad, torch.func.hessian
    alpha, sigma, total = q.schedule.alpha(t), q.schedule.sigma(t), q.total
    eye = torch.eye(len(x), dtype=F64)
    precision, pull, added = 0 * eye, 0 * x, 0 * x
    for name, w in q.exponents.items():

        def density(y, part=q.family.members[name]):
            return part.log_prob(y[None], alpha, sigma)[0]

        covariance = (sigma / alpha) ** 2 * (eye + sigma**2 * hessian(density)(x))  # of x_0 given x_t
        score = grad(density)(x)
        precision = precision + w * torch.linalg.inv(covariance)
        pull, added = pull + w * torch.linalg.inv(covariance) @ score, added + w * score
    near = total * torch.linalg.solve(precision, pull)
    return -q.schedule.drift(t) * x + q.schedule.diffusion(t) ** 2 / (2 * total) * (near + churn**2 * added)


def master_weight(q, x, t, churn):
    """sum_a w_a d log q_a / dtau + div b + <b, S> - (nu^2 / 2)(div S + |S|^2), by autograd."""
    nu2 = (churn * q.schedule.diffusion(t)) ** 2 / q.total
    S = torch.func.grad(lambda y: log_path(q, y, t))(x)
    laplacian = torch.func.hessian(lambda y: log_path(q, y, t))(x).trace()
    b = drift(q, x, t, churn)
    divergence = torch.func.jacrev(lambda y: drift(q, y, t, churn))(x).trace()
    rising = -torch.func.grad(lambda r: log_path(q, x, r))(t)  # reverse time
    return rising + divergence + b @ S - 0.5 * nu2 * (laplacian + S @ S)


@pytest.mark.parametrize("churn", [1.0, 0.0, 0.6])
@pytest.mark.parametrize("make, dim, exponents", [
    (gaussian_family, 3, W_MORE), (own_mixtures, 2, W_ONE), (own_mixtures, 3, {"a": 0.7, "b": 0.6, "base": -0.1}),
])  # fmt: skip
def test_the_rate_is_the_master_weight_of_the_move(make, dim, exponents, churn):
    """At random points of early, middle and late times; relative to the terms of which it is the sum."""
    q = compose(make(dim), **exponents)
    field, x = field_of(q, churn), points(q, 4, scale=1.5)
    for i in (1, 2, 3, 4):
        move, rate = field(x[None], i)
        power = q.schedule.diffusion(TIMES[i]) ** 2
        for k, point in enumerate(x):
            expected = master_weight(q, point, TIMES[i], churn)
            scale = 1 + power * (1 / q.schedule.sigma(TIMES[i]) ** 2 + point.square().sum())
            assert abs(rate[0, k] - expected) < 1e-6 * scale, (i, k)
            b = -q.schedule.drift(TIMES[i]) * point + power / (2 * q.total) * (1 + churn**2) * move[0, k]
            torch.testing.assert_close(b, drift(q, point, TIMES[i], churn), rtol=1e-7, atol=1e-7)


def test_rates_by_differences_are_near_the_exact_ones():
    q = compose(own_mixtures(2), **W_MORE)
    exact, model, x = field_of(q), field_of(opaque(q)), points(q, 30, scale=1.5)
    for i in (1, 2, 3):
        power = q.schedule.diffusion(TIMES[i]).item() ** 2
        torch.testing.assert_close(model(x[None], i)[1], exact(x[None], i)[1], rtol=1e-2, atol=1e-2 * power)


# --- what comes of it
@pytest.mark.parametrize("dim, exponents", [(2, W_ONE), (3, W_MORE), (3, W_LESS)], ids=["W=1", "W=1.4", "W=0.5"])
def test_gaussians_leave_little_to_weigh(dim, exponents):
    """Full covariances that do not commute. Without noise the last weights are all alike, and log Z is that of the time
    step; with it 200 swarms of 8 are within 4.5 standard errors, an alarm in 10^5; ESS beats plain weights'."""
    q = compose(gaussian_family(dim), **exponents)
    log_z = closed_form(q)[2]
    still = ps.PrecisionFeynmanKac(8, 60, churn=0.0).sample(q, 20, seed=1)
    assert still.mean_ess[-1] > 7.99 and abs(still.total_log_evidence - log_z) < 0.005
    run = ps.PrecisionFeynmanKac(8, 60).sample(q, 200, seed=1)
    plain = ps.FeynmanKac(8, 60, threshold=0.5).sample(q, 200, seed=1)
    assert abs(run.total_log_evidence - log_z) < 4.5 * run.log_evidence_error + 0.005
    assert run.mean_ess.mean() > plain.mean_ess.mean() + 0.3
    assert run.lowest_ess.median() > plain.lowest_ess.median() + 0.3


def test_mixtures_end_in_the_composition():
    """Where precisions alone are off: 400 swarms of 8, W = 1. Z^ / Z is 1 and moments are those of exact draws, within
    4.5 standard errors, an alarm in 10^4, and the time step's 1 %."""
    q = compose(own_mixtures(2), **W_ONE)
    exact = ps.exact(q)
    run = ps.PrecisionFeynmanKac(8, 60).sample(q, 400, seed=3)
    within_standard_errors((run.log_evidence.double() - exact.log_evidence).exp(), 1.0, 4.5, slack=0.01)
    x, y = run.samples.double(), exact.sample(20_000, seed=4).double()
    for power in (1, 2):
        a, b = (((z - y.mean(0)) / y.std(0)) ** power for z in (x, y))
        within_standard_errors(a, b.mean(0), 4.5, slack=0.05)


def test_without_noise_one_particle_moves_as_without_weights():
    """At W = 1, from the same start: to the bit."""

    @dataclass(frozen=True, repr=False)
    class Unweighted(ps.PrecisionWeighted):
        start: str = "matched"

    q = compose(own_mixtures(2), **W_ONE)
    runs = [kind(steps=12, churn=0.0).sample(q, 30, seed=5) for kind in (Unweighted, one_particle)]
    assert torch.equal(runs[0].samples, runs[1].samples)


def one_particle(**options):
    return ps.PrecisionFeynmanKac(1, **options)


def test_what_is_projected_is_counted_and_paid_for():
    """2 R_a - R_base is negative between the modes of a; 300 swarms of 16 still find log Z, within 4.5 of their errors
    and the time step."""
    apart = ps.Mixture([[-2.5, 0.0], [2.5, 0.3]], cov=0.5)
    q = compose(ps.Family({"a": apart, "base": ps.Gaussian(cov=[12.0, 3.0])}), a=2, base=-1)
    with pytest.warns(
        DegeneracyWarning, match=r"at t = \S+ to \S+ that of .* at up to .* % of all steps, and was proj"
    ):
        run = ps.PrecisionFeynmanKac(16, 60).sample(q, 300, seed=1)
    assert abs(run.total_log_evidence - ps.exact(q).log_evidence) < 4.5 * run.log_evidence_error + 0.02
    assert "projected" in run.summary()
    assert run.lowest_ess.median() > ps.FeynmanKac(16, 60, threshold=0.5).sample(q, 300, seed=1).lowest_ess.median() + 1


# --- traces by probes
@pytest.mark.parametrize("dim", [1, 3, 8, 12])
def test_a_round_of_probes_is_orthogonal(dim):
    rows = round_of_signs(dim, 3)
    torch.testing.assert_close(rows.T @ rows / len(rows), torch.eye(dim, dtype=F64))
    assert bool((rows.abs() == 1).all())
    assert dim == 1 or not torch.equal(rows, round_of_signs(dim, 4))
    signs = {frozenset(map(tuple, round_of_signs(dim, seed).tolist())) for seed in range(8)}
    assert len(signs) > 1 or dim == 1  # other signs, not only another order: else a row of ones is in every round


def test_probes_estimate_the_trace_and_a_round_of_them_has_it():
    q = compose(own_mixtures(3), **W_ONE)
    x = points(q, 5, scale=1.5)[None]
    exact, whole, few = (field_of(q, probes=probes) for probes in (None, 4, 2))
    for i in (1, 2, 3):
        R = exact.precisions(x, i)
        expected = exact.divergence(x, R, i)
        torch.testing.assert_close(whole.divergence(x, R, i), expected, rtol=1e-4, atol=1e-4)
        assert (few.divergence(x, R, i) - expected).abs().max() > 0.02 * expected.abs().max()


def test_many_dimensions_take_probes_and_their_noise_is_told_of():
    """log Z of ten-dimensional Gaussians without noise, where all that is left is the probes' error and the time step;
    two probes in six steps are told of."""
    q = compose(gaussian_family(10), **W_ONE)
    run = ps.PrecisionFeynmanKac(2, 40, churn=0.0, probes=4).sample(q, 4, seed=1)
    assert abs(run.total_log_evidence - closed_form(q)[2]) < 0.05
    with pytest.warns(DegeneracyWarning, match=r"traces should be nearly exact; estimated by 2 probes"):
        ps.PrecisionFeynmanKac(2, 6, probes=2).sample(q, 4, seed=1)


# --- what is told of
def told(sampler, q, n, most, threads=1):
    """All that a run was warned of."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return sampler.sample(q, n, seed=1, max_particles=most, dtype=F64).doubts
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")
def test_the_noise_of_probes_is_that_of_the_run_however_it_is_cut():
    """To the two digits that are told: in pieces, in nine dimensions; in two chunks, with another thread beside."""
    pieces = compose(gaussian_family(9), **W_ONE), ps.PrecisionFeynmanKac(4, steps=6, probes=4), 24
    chunks = compose(gaussian_family(3), **W_ONE), ps.PrecisionFeynmanKac(2, steps=4, probes=2), 300
    for (q, sampler, n), other in ((pieces, (24, 1)), (chunks, (512, 2))):
        whole = told(sampler, q, n, None)
        assert any("a deviation of up to " in doubt for doubt in whole)
        assert told(sampler, q, n, *other) == whole


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")
def test_the_share_that_is_projected_is_that_of_the_run_however_it_is_cut():
    apart = ps.Mixture([[-3.0, 0.0], [3.0, 0.0]], cov=0.5)
    q = compose(ps.Family({"a": apart, "base": ps.Gaussian(cov=[12.0, 3.0])}), a=2, base=-1)
    for sampler in (ps.PrecisionWeighted(20), ps.PrecisionFeynmanKac(2, 20)):
        whole = told(sampler, q, 300, None)
        assert any("was projected" in doubt for doubt in whole)
        assert {told(sampler, q, 300, most) for most in (256, 60)} == {whole}


# --- like the others
@pytest.mark.filterwarnings("ignore:traces should be")
def test_it_is_a_sampler_like_the_others():
    q, sampler = compose(own_mixtures(2), **W_MORE), ps.PrecisionFeynmanKac(4, 10, floor=0.2, probes=2, probe_seed=3)
    run = sampler.sample(q, 300, seed=5, dtype=F64)
    pieces = sampler.sample(q, 300, seed=5, dtype=F64, max_particles=300)
    torch.testing.assert_close(pieces.samples, run.samples, rtol=1e-7, atol=1e-7)
    assert build_sampler(json.loads(json.dumps(describe(sampler)))) == sampler
    for bad in ({"probes": 1}, {"floor": 1.5}, {"probe_seed": -1}):
        with pytest.raises(ArgumentError, match="must"):
            ps.PrecisionFeynmanKac(4, **bad)
    with pytest.raises(ArgumentError, match="points of PrecisionFeynmanKac must be vectors of at most 64"):
        sampler.sample(ps.Family({"a": ps.Gaussian(dim=65)})["a"], 2)


def test_narrow_sources_keep_their_precision_in_float32():
    """Gaussians 1e-4 wide: evidence within 4 standard errors and 1 %, nothing projected; times rounded to float32 gave
    1.08 times it, and sources of no precision where the noise is 10^4 times as wide."""
    family = ps.Family({"a": ps.Gaussian(mean=[1e-4, 0], cov=1e-8 * spd(2, 1)), "b": ps.Gaussian(cov=1e-8 * spd(2, 2)),
                        "base": ps.Gaussian(cov=1e-8 * spd(2, 3, 2.0, floor=1.5))})  # fmt: skip
    q = compose(family, a=1, b=1, base=-1)
    run = ps.PrecisionFeynmanKac(4).sample(q, 1000, seed=2)
    within_standard_errors((run.log_evidence.double() - closed_form(q)[2]).exp(), 1.0, 4, slack=0.01)
    assert not any("projected" in finding for finding in run.findings)


@pytest.mark.parametrize("sampler", [ps.PrecisionWeighted(), ps.PrecisionFeynmanKac(4)], ids=repr)
@pytest.mark.parametrize("power", [0.3, 0.05])
def test_small_powers_need_no_projection(sampler, power):
    """N(0, v)^W is wider than N(0, v), and its precision positive as any other: nothing is projected, and 4000 numbers
    have the variance v / W to 5 standard errors and 3 %, an alarm in 10^6. Held, they were up to 2.6 times as large.
    """
    q = ps.Family({"a": ps.Gaussian(cov=[4.0, 4.0])})["a"] ** power
    run = sampler.sample(q, 2000, seed=1)
    assert not any("projected" in finding for finding in run.findings)
    assert abs(run.samples.double().square().mean().item() * power / 4 - 1) < 5 * (2 / 4000) ** 0.5 + 0.03
    if isinstance(sampler, ps.FeynmanKac):
        assert abs(run.total_log_evidence - ps.exact(q).log_evidence) < 0.01
