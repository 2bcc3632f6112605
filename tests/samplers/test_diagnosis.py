"""What a run says of itself: findings, summary, bounded history, and what is refused before it starts."""

import dataclasses
import math
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

import polyscore as ps
from cases import compose, gaussian_family
from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.samplers.diagnosis import possible_log_evidence, shift

FAR = ps.Family({"a": ps.Mixture([[-6.0, 1.5], [9.0, 0.0]], 1.0), "b": ps.Mixture([[0.0, -9.0], [-1.5, 6.0]], 1.0),
                 "base": ps.Mixture([[-6.0, 1.5], [9.0, 0.0], [0.0, -9.0], [-1.5, 6.0]], 1.0)})  # fmt: skip


def told(sampler, q, n=300, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = sampler.sample(q, n, **options)
    return run, [str(w.message) for w in caught], [w.filename for w in caught]


def test_a_healthy_run_has_no_findings():
    run, messages, _ = told(ps.FeynmanKac(16), ps.base_composition(FAR))
    assert run.findings == messages == []
    assert "Nothing speaks against it" in run.summary()


@pytest.mark.parametrize("name", ["dose^2", "IL-2 * TNF", "a"])
def test_whether_scores_were_added_is_not_read_off_names(name):
    p = ps.Family({name: ps.Gaussian(cov=1.0), "base": ps.Gaussian(cov=2.0)})
    alone, added = (ps.Denoise().sample(q, 50).summary() for q in (p[name], p[name] ** 1.5 / p["base"] ** 0.5))
    assert "Nothing speaks against it" in alone and "error of adding scores" in added
    assert "Nothing speaks against it" in ps.auto(p[name]).sample(p[name], 50).summary()


@pytest.mark.parametrize("particles", [2, 4])
def test_too_few_particles_disagree_on_the_evidence_whatever_k(particles):
    """SW2 is 0.9 at K = 4 where K = 16 gives 0.04: the swarms' evidence knows it."""
    run, messages, files = told(ps.FeynmanKac(particles), ps.base_composition(FAR))
    assert any("agree on the evidence" in message for message in messages)
    assert run.evidence_share < 0.3
    assert set(files) == {__file__}  # the caller's line, not ours
    assert all(finding in run.summary() for finding in run.findings)


def test_one_ancestor_is_told():
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    run, messages, _ = told(ps.FeynmanKac(8, 200, resampling="multinomial"), q)
    assert any("descend from one" in message for message in messages)
    assert (run.unique_ancestors == 1).float().mean() > 0.9


@pytest.mark.parametrize("particles", [2, 3, 6, 64])
def test_weight_on_single_particles_is_told_whatever_k(particles):
    q = compose(gaussian_family(6), a=6, b=6)
    _, messages, _ = told(ps.FeynmanKac(particles, 50, threshold=0), q, 40)
    assert any("weight should be shared" in message for message in messages)


@pytest.mark.parametrize("exponents, low, high", [
    ([0.3, 0.7], -math.inf, 0), ([1.0], 0, 0), ([2.0, -1.0], 0, math.inf), ([1.8, -0.5, -0.3], 0, math.inf),
    ([1.0, 1.0, -1.0], -math.inf, math.inf), ([0.5, 0.6], -math.inf, math.inf),
])  # fmt: skip
def test_bounds_of_the_evidence_hold_for_random_gaussians(exponents, low, high):
    assert possible_log_evidence(exponents) == (low, high)
    seeds = torch.Generator().manual_seed(3)
    for _ in range(40):
        spread = 1 + torch.rand(len(exponents), 2, generator=seeds, dtype=torch.float64)
        means = torch.randn(len(exponents), 2, generator=seeds, dtype=torch.float64)
        # Denominators wider than everything, so that the composition is proper.
        covs = [v * (6 if w < 0 else 1) for v, w in zip(spread, exponents, strict=True)]
        p = ps.Family({str(k): ps.Gaussian(m, c) for k, (m, c) in enumerate(zip(means, covs, strict=True))})
        q = ps.Composition(p, {str(k): w for k, w in enumerate(exponents)})
        assert low - 1e-9 <= ps.exact(q).log_evidence <= high + 1e-9


@pytest.mark.parametrize("value, finding", [(0.5, "must be at most 0; the estimate is 0.5"), (-0.5, "")])
def test_evidence_that_cannot_be_is_told(value, finding):
    p = ps.Family({"a": ps.Gaussian(cov=1.0), "b": ps.Gaussian(cov=2.0)})
    run, messages, _ = told(ps.FeynmanKac(8), p["a"] ** 0.5 * p["b"] ** 0.5)
    assert messages == []
    claimed = dataclasses.replace(run, log_evidence=torch.full_like(run.log_evidence, value))
    assert [bool(finding) and finding in text for text in claimed.findings] == [True] * bool(finding)


@pytest.mark.parametrize("above, told_", [(0.3, False), (0.5, True)])
def test_evidence_is_impossible_beyond_four_of_its_errors_alone(above, told_):
    """Half of 40 swarms at e times the others: an error of 0.074, so that 0.1 and four of them are 0.4."""
    p = ps.Family({"a": ps.Gaussian(cov=1.0), "b": ps.Gaussian(cov=2.0)})
    run = ps.FeynmanKac(8, steps=10).sample(p["a"] ** 0.5 * p["b"] ** 0.5, 40, progress=False)
    values = torch.tensor([0.0, 1.0]).repeat(20) + above - math.log((1 + math.e) / 2)
    claimed = dataclasses.replace(run, log_evidence=values)
    assert claimed.log_evidence_error == pytest.approx(0.074, abs=1e-3)
    assert any("must be at most 0" in finding for finding in claimed.findings) == told_


@pytest.mark.parametrize("slope, told_", [(0.4, True), (0.0, False)])
def test_a_bias_that_evidence_shows_is_told_where_it_is_beyond_its_error(slope, told_):
    """Weights exp(slope x) move a standard normal by slope; heavy ones that have nothing to do with x move it by less
    than five errors, though by more than 0.05 of a deviation."""
    p = ps.Family({"a": ps.Gaussian(cov=1.0), "b": ps.Gaussian(cov=1.0)})
    run = ps.FeynmanKac(8, steps=10).sample(p["a"] ** 0.5 * p["b"] ** 0.5, 2000, progress=False)
    draw = torch.Generator().manual_seed(0)
    x, other = torch.randn(2000, 2, generator=draw), torch.randn(2000, generator=draw)
    claimed = dataclasses.replace(run, samples=x, log_evidence=slope * x[:, 0] if slope else 1.5 * other,
                                  possible_log_evidence=(-math.inf, math.inf))  # fmt: skip
    moved, error = shift(claimed)
    assert any("deviations elsewhere" in finding for finding in claimed.findings) == told_
    assert moved == pytest.approx(slope, abs=0.1) if slope else 0.05 < moved < 5 * error


@pytest.mark.parametrize("tilt, expected", [(lambda z: 0.2 * z, 0.2), (lambda z: 0.05 * z.square(), 0.5 / 0.9 - 0.5)],
                         ids=["mean", "width"])  # fmt: skip
def test_what_evidence_moves_is_told_in_deviations(tilt, expected):
    """Of quantiles z of a normal: weights exp(z / 5) move its mean, exp(z^2 / 20) its variance to 1 / 0.9, of whose
    change a half is the deviation's."""
    z = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    assert shift(SimpleNamespace(samples=z[:, None], log_evidence=tilt(z)))[0] == pytest.approx(expected, rel=0.02)


def test_one_swarm_has_no_error_of_its_evidence_and_is_not_judged_by_it():
    q = ps.base_composition(gaussian_family(2))
    one, many, plain = (s.sample(q, n) for s, n in ((ps.FeynmanKac(4), 1), (ps.FeynmanKac(4), 200), (ps.Denoise(), 5)))
    assert math.isnan(one.log_evidence_error) and math.isnan(plain.log_evidence_error)
    assert "of one swarm" in one.summary()
    values = many.log_evidence.double().exp()
    expected = (values.std(correction=1) / values.mean() / 200**0.5).item()
    assert many.log_evidence_error == pytest.approx(expected, rel=0.02)


def test_parts_of_a_closed_form_are_no_strays_whatever_its_covariances():
    law = ps.Mixture([[0.0, 0.0], [40.0, 0.0]], [0.01, 0.02], [0.7, 0.3])
    run = ps.Denoise().sample(ps.Family({"a": law})["a"], 300)
    assert run.arithmetic == "closed form" and run.strays == 0
    assert (run.samples[:, 0] > 20).float().mean().item() == pytest.approx(0.3, abs=0.13)  # five standard errors


def test_a_start_whose_moments_cancel_is_noise_and_still_weighed():
    """m^2 / g is proper, but the product of moments is not: 2 / (alpha^2 10^6 + 1) < 1 / (4 alpha^2 + 1)."""
    p = ps.Family({"m": ps.Mixture([[-1000.0, 0.0], [1000.0, 0.0]], 1.0), "g": ps.Gaussian(cov=4.0, dim=2)})
    with pytest.warns(DegeneracyWarning):
        run = ps.FeynmanKac(8).sample(p["m"] ** 2 / p["g"], 50)
    assert run.samples.isfinite().all()


def test_the_summary_says_what_happened_in_words():
    run = ps.FeynmanKac(4, 50, clip=0.5).sample(ps.base_composition(gaussian_family(2)), 50)
    words = run.summary()
    for part in ("50 samples of", "FeynmanKac", "closed form", "Swarms of 4", "log Z = ", "The clip changed"):
        assert part in words
    plain = ps.Denoise(steps=50).sample(gaussian_family(2)["a"], 50)
    assert "log Z" not in plain.summary() and "Swarms" not in plain.summary()


# history
def test_the_history_of_ess_is_bounded_and_its_summaries_are_right(monkeypatch):
    q, sampler = ps.base_composition(gaussian_family(2)), ps.FeynmanKac(4, 30)
    whole = sampler.sample(q, 600, seed=1)
    monkeypatch.setattr("polyscore.samplers.checks._MOST_HISTORY", 30 * 600 - 1)
    for bound in (None, 1024):
        short = sampler.sample(q, 600, seed=1, max_particles=bound)
        with pytest.raises(ArgumentError, match="history=True"):
            _ = short.ess
        torch.testing.assert_close(short.lowest_ess, whole.ess.amin(0))
        torch.testing.assert_close(short.mean_ess, whole.ess.mean(1))
        torch.testing.assert_close(short.step_losses, (4 / whole.ess).log().mean(1), rtol=1e-4, atol=1e-6)
        assert torch.equal(short.samples, whole.samples) and short.findings == whole.findings
    assert torch.equal(sampler.sample(q, 600, seed=1, history=True).ess, whole.ess)
    assert ps.Denoise(steps=30).sample(q, 600).ess.shape == (30, 600)  # takes no room, so it is always there


@pytest.mark.parametrize("sampler, n", [
    (ps.FeynmanKac(10**9), 1), (ps.Denoise(), 10**13), (ps.FeynmanKac(4, steps=10**11), 1), (ps.FeynmanKac(2), 10**20),
])  # fmt: skip
def test_counts_that_cannot_fit_are_refused_before_anything_is_allocated(sampler, n):
    with pytest.raises(ArgumentError, match=r"fit into memory; got .* needed, .* available"):
        sampler.sample(gaussian_family(2)["a"], n)


def test_four_thousand_dimensions_stay_diagonal():
    q = ps.Family({"a": ps.Gaussian(cov=2.0, dim=4000), "b": ps.Gaussian(cov=[1.0] * 4000)})
    run = ps.FeynmanKac(2, 3).sample(q["a"] ** 0.5 * q["b"] ** 0.5, 2)
    assert run.samples.shape == (2, 4000) and run.samples.isfinite().all()


# modes of the caller
def test_autocast_and_inference_mode_change_no_number():
    data = {name: part.sample(200, seed=1) for name, part in gaussian_family(2).members.items()}
    q = ps.base_composition(ps.fit(data, steps=20, width=16, progress=None))
    sampler = ps.FeynmanKac(2, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = sampler.sample(q, 20)
        with torch.autocast("cpu", torch.bfloat16):
            cast = sampler.sample(q, 20)
        with torch.inference_mode():
            inferred = sampler.sample(q, 20)
    for other in (cast, inferred):
        assert torch.equal(plain.samples, other.samples) and torch.equal(plain.log_evidence, other.log_evidence)


@pytest.mark.parametrize("options", [
    {"churn": "1"}, {"churn": None}, {"churn": float("nan")}, {"churn": True}, {"clip": "15"}, {"clip": float("nan")},
    {"clip": True}, {"threshold": "all"}, {"threshold": float("nan")}, {"window": "ab"}, {"window": (0.1, "b")},
    {"window": 3}, {"move": "balance"}, {"move": None}, {"grid": "cosine"}, {"grid": None}, {"integrator": 2},
    {"start": []}, {"kernels": "none"}, {"kernels": (3,)},
    {"quadrature": "left"}, {"steps": 10.5}, {"steps": "ten"}, {"particles": 4.0}, {"particles": True},
])  # fmt: skip
def test_settings_that_are_no_settings(options):
    with pytest.raises(ArgumentError, match=f"{next(iter(options))}.* must be"):
        ps.FeynmanKac(**options)


@pytest.mark.parametrize("options", [
    {"seed": 1.7}, {"seed": "1"}, {"seed": None}, {"seed": True}, {"dtype": torch.int32}, {"dtype": "float32"},
    {"dtype": torch.float16}, {"max_particles": 2.5},
])  # fmt: skip
def test_arguments_of_sample_that_are_none(options):
    with pytest.raises(ArgumentError, match=f"{next(iter(options))}.* must be"):
        ps.Denoise(steps=5).sample(gaussian_family(2)["a"], 4, **options)


def test_memory_of_many_samples_is_that_of_the_samples_and_one_chunk():
    """60,000 swarms of 4 over 100 steps, the history bounded below that: with it, 24 MB more; allowed are 15."""
    code = """
import resource, polyscore as ps
from polyscore.samplers import checks
checks._MOST_HISTORY = 1_000_000
p = ps.Family({"a": ps.Gaussian(cov=[4.0, 1.0]), "b": ps.Gaussian(cov=[1.0, 4.0]), "base": ps.Gaussian(cov=4.5)})
q, sampler = ps.base_composition(p), ps.FeynmanKac(4, 100)
sampler.sample(q, 5_000, max_particles=20_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = sampler.sample(q, 60_000, max_particles=20_000)
assert run.ess_history is None and len(run.samples) == 60_000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    # One thread and one arena: what an allocator keeps for later, a pool of it a thread, is not what is measured.
    plain = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env={**os.environ, **plain}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 15


def test_warnings_name_the_line_that_called():
    far = ps.Family({"a": ps.Learned(lambda x, t: x, (2,), ps.VP(0.1, 4))})
    with pytest.warns(DegeneracyWarning, match="signal") as caught:
        ps.Denoise(steps=100).sample(far["a"], 10)
    assert {w.filename for w in caught} == {__file__}


@pytest.mark.parametrize(
    "values, known",
    [
        ([0.0] * 199 + [40.0], False),  # one swarm holds all: the formula says 1, whatever the others would be
        ([0.0] * 100 + [30.0] * 10, False),
        ([0.0] * 100 + [30.0] * 100, True),
        ([0.0, 0.1, 0.05], True),  # few that agree
        ([0.0, 0.1, 9.0], False),
    ],
)
def test_the_error_of_log_z_is_unknown_where_few_swarms_count(values, known):
    p = ps.Family({"a": ps.Gaussian(cov=1.0), "b": ps.Gaussian(cov=2.0)})
    run = ps.FeynmanKac(8, steps=10).sample(p["a"] ** 0.5 * p["b"] ** 0.5, len(values), progress=False)
    claimed = dataclasses.replace(run, log_evidence=torch.tensor(values), possible_log_evidence=(-math.inf, math.inf))
    assert math.isfinite(claimed.log_evidence_error) == known
    assert ("error unknown" in claimed.summary()) != known and ("±" in claimed.summary()) == known
    few = len(values) >= 20 and not known
    assert any("the error of log Z is unknown" in finding for finding in claimed.findings) == few
    impossible = dataclasses.replace(claimed, possible_log_evidence=(-math.inf, -10.0))
    assert any("log Z of such a composition must be at most -10" in finding for finding in impossible.findings)
