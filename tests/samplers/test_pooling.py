"""Outputs drawn from all swarms together: counts by weight, moments without the bias of few particles, what is said."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, compose, gaussian_family
from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.paper.settings import setting
from polyscore.samplers import Sampler, build_sampler, describe
from polyscore.samplers.pooling import pooled

FEW = compose(gaussian_family(2), a=1, b=1, base=-1)


def far_apart() -> ps.Composition:
    """The paper's mixtures out of distribution: swarms of few particles do not agree."""
    return ps.base_composition(setting("mixture-ood"))


def quiet(sampler: Sampler, q: ps.Composition, n: int, seed: int, **options) -> ps.Run:
    """A run of too few particles or steps on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)
        return sampler.sample(q, n, seed, **options)


def test_particles_are_drawn_as_often_as_they_weigh():
    """Systematic: every particle n w times, rounded down or up, with w its share of its swarm times the swarm's."""
    run = quiet(ps.FeynmanKac(5, threshold=0.2, steps=30), far_apart(), 400, 3, dtype=F64)
    evidence, logs = run.log_evidence.numpy(), run.log_weights.numpy()
    within = np.exp(logs - logs.max(1, keepdims=True))
    within /= within.sum(1, keepdims=True)
    between = np.exp(evidence - evidence.max())
    expected = 400 * (between / between.sum())[:, None] * within
    rows = {tuple(x): k for k, x in enumerate(run.particles.flatten(0, 1).tolist())}
    drawn = pooled(run, 7)
    counts = np.bincount([rows[tuple(x)] for x in drawn.samples.tolist()], minlength=2000).reshape(400, 5)
    assert counts.sum() == 400 and counts.max() > 1
    assert (counts >= np.floor(expected - 1e-9)).all() and (counts <= np.ceil(expected + 1e-9)).all()


def test_order_says_nothing_of_the_swarm():
    """Of 2000 samples the first half has as many of the first 1000 swarms' as the second: within 4.5 deviations, an
    alarm in 10^5; in the order of swarms all would be there."""
    run = quiet(ps.FeynmanKac(4, steps=20), FEW, 2000, 1)
    early = {tuple(x) for x in run.particles[:1000].flatten(0, 1).tolist()}
    drawn = pooled(run, 0).samples.tolist()
    first, second = (sum(tuple(x) in early for x in part) for part in (drawn[:1000], drawn[1000:]))
    assert abs(first - second) < 4.5 * math.sqrt(1000) and first + second > 500


@pytest.mark.parametrize("exponents", [{"a": 1, "b": 1, "base": -1}, {"a": 0.9, "b": 0.8, "base": -0.3}])
def test_few_particles_leave_no_bias(exponents):
    """Gaussians in three dimensions, two particles: second moments of pooled outputs within 5 standard errors, taken
    from 20 runs (an alarm in 10^3: six entries, two cases, 19 degrees of freedom); of one output a swarm they are
    29 and 20 errors off."""
    q = compose(gaussian_family(3), **exponents)
    exact = ps.exact(q).sample(400_000, seed=5).double()
    truth = (exact.T @ exact / len(exact)).flatten()
    plain, drawn = [], []
    for seed in range(20):
        run = quiet(ps.FeynmanKac(2, steps=80, threshold=0.5), q, 1000, seed, dtype=F64)
        for found, x in ((plain, run.samples), (drawn, pooled(run, seed).samples)):
            found.append((x.T @ x / len(x)).flatten())
    off = [
        (torch.stack(found).mean(0) - truth) / (torch.stack(found).std(0) / math.sqrt(20)) for found in (plain, drawn)
    ]
    assert off[1].abs().max() < 5 < off[0].abs().max()


def test_four_particles_are_as_good_as_sixteen():
    """SW2 of 5000 outputs: pooled 0.04 here, 0.03 of K = 16 and of exact draws, 1.04 of one output a swarm."""
    q = far_apart()
    reference = ps.exact(q).sample(5000, seed=1)
    run, plain = (quiet(ps.FeynmanKac(4, threshold=0.5, pooled=one), q, 5000, 0) for one in (True, False))
    assert ps.sliced_wasserstein(run.samples, reference, 200) < 0.15
    assert ps.sliced_wasserstein(plain.samples, reference, 200) > 0.5
    assert torch.equal(run.particles, plain.particles) and torch.equal(run.log_evidence, plain.log_evidence)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others():
    q, sampler = far_apart(), ps.FeynmanKac(4, steps=20, pooled=True)
    one, again, other = (quiet(sampler, q, 300, seed) for seed in (1, 1, 2))
    assert torch.equal(one.samples, again.samples) and not torch.equal(one.samples, other.samples)


def test_a_run_says_that_outputs_are_pooled():
    q = far_apart()
    plain = quiet(ps.FeynmanKac(4, threshold=0.5), q, 2000, 0)
    run = ps.FeynmanKac(4, threshold=0.5, pooled=True).sample(q, 2000, seed=0)  # warns of nothing
    assert run.pooled and not plain.pooled
    assert any("pooled=True" in finding for finding in plain.findings)
    assert not any("agree on the evidence" in finding or "count alike" in finding for finding in run.findings)
    assert f"Samples are drawn from all swarms, by their evidence: {run.effective_swarms:.3g} count." in run.summary()
    assert "pooled=True" in run.sampler


def test_swarms_of_scores_that_may_be_wrong_are_pooled_by_those_who_trust_them():
    """The swarm that strays furthest may hold all evidence: of networks no more is promised than the help says."""
    plain = quiet(ps.FeynmanKac(4, threshold=0.5), far_apart(), 2000, 0)
    for arithmetic, trusted in (("closed form", False), ("model", True)):
        (advice,) = (one for one in replace(plain, arithmetic=arithmetic).findings if "pooled=True" in one)
        assert ("with scores that you trust" in advice) == trusted


def test_a_file_says_that_its_rows_are_no_swarms(tmp_path):
    """Evidence is saved swarm by swarm, and pooled samples stand in no order of these."""
    for one in (True, False):
        run = quiet(ps.FeynmanKac(2, steps=20, pooled=one), FEW, 50, 1)
        with np.load(run.save(tmp_path / f"{one}.npz", about={"of": "me"})) as held:
            assert json.loads(str(held["about"])).get("pooled", False) is one


def test_few_swarms_that_hold_the_evidence_are_told():
    run = quiet(ps.FeynmanKac(4, steps=20), FEW, 200, 1)
    torn = replace(run, log_evidence=run.log_evidence + 9.0 * (torch.arange(200) < 5))
    assert any("only" in finding and "Use more particles" in finding for finding in pooled(torn, 0).findings)


def test_naive_paths_that_one_swarm_outweighs_are_told():
    """One particle has no swarm to lose: what its evidence says of the others is all there is."""
    q = compose(gaussian_family(12), a=2, b=2, base=-1)
    run = quiet(ps.FeynmanKac(1, steps=20, pooled=True), q, 500, 0)
    assert len(torch.unique(run.samples, dim=0)) < 100
    assert any("agree on the evidence" in finding for finding in run.findings)
    near = quiet(ps.FeynmanKac(1, pooled=True), compose(gaussian_family(2), a=0.6, b=0.4), 2000, 0)
    assert near.findings == [] and "Nothing speaks against it" in near.summary()


def test_a_run_without_evidence_stays_as_it_is():
    run = quiet(ps.Denoise(steps=20), far_apart(), 100, 1)
    assert pooled(run, 0) is run


def test_stored_descriptions_are_as_they_were():
    """Keys of records hash them: the field stands in them where it says something, and nowhere else."""
    assert "pooled" not in describe(ps.FeynmanKac(8)) and "pooled" not in describe(ps.Controlled(4))
    written = describe(ps.Controlled(4, pooled=True))
    assert written["pooled"] is True and build_sampler(written) == ps.Controlled(4, pooled=True)
    assert not ps.Denoise().pooled
    with pytest.raises(ArgumentError, match="pooled must be True or False"):
        ps.FeynmanKac(8, pooled=1)


def test_auto_pools_closed_forms_and_no_networks():
    q = far_apart()
    chosen = ps.auto(q)
    assert chosen.pooled and "drawn from all swarms" in chosen.reason
    run = quiet(chosen, q, 500, 0)
    assert run.pooled and run.reason == chosen.reason
