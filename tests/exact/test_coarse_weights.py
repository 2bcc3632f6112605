"""What the time step does to log Z where W is not 1: known before the run, for Gaussians, and told of."""

import re
import warnings

import pytest
import torch

import polyscore as ps
from cases import F64, SCHEDULES
from polyscore.errors import DegeneracyWarning
from polyscore.samplers.checks import log_evidence_error
from polyscore.samplers.plan import make_plan

WIDE = {"a": ps.Gaussian(cov=10.0), "b": ps.Gaussian(cov=8.0)}


def predicted(q, sampler, variance):
    plan = make_plan(q, sampler, 0, torch.empty(0, dtype=F64))
    return log_evidence_error(q, variance, plan.times, plan.scalars)


@pytest.mark.filterwarnings("ignore:(steps|swarms|K|weight) should")
@pytest.mark.parametrize("schedule, total, options", [
    ("LinearFlow", 1.7, {"steps": 12, "integrator": "frozen"}), ("LinearFlow", 0.5, {"steps": 10}),
    ("VP", 1.7, {"steps": 12, "integrator": "euler", "quadrature": "right", "grid": "equal"}),
    ("Cosine", 0.6, {"steps": 8, "integrator": "frozen", "churn": 0.5, "quadrature": "trapezoid"}),
])  # fmt: skip
def test_the_error_of_log_z_is_known_beforehand(schedule, total, options):
    """3000 swarms of 64: within 4.5 standard errors, an alarm in 10^5."""
    q = ps.Family({"a": ps.Gaussian([0.0], cov=[4.0])}, SCHEDULES[schedule])["a"] ** total
    sampler = ps.FeynmanKac(64, **options)
    expected, run = predicted(q, sampler, 4.0), sampler.sample(q, 3000, seed=1, dtype=F64)
    off = run.total_log_evidence - ps.exact(q).log_evidence
    assert abs(off - expected) < 4.5 * run.log_evidence_error
    assert abs(expected) > 2 * run.log_evidence_error or abs(expected) < 0.01


def test_first_order_is_what_the_flow_needs_many_steps_for():
    """W = 2.5, variance 10, two dimensions: 0.45 nats at 100 steps of first order and 0.13 at 400; 0.03 by default."""
    q = ps.Family(WIDE, ps.LinearFlow())["a"] ** 2.5
    errors = [2 * predicted(q, ps.FeynmanKac(2, steps, integrator=integrator), 10.0)
              for steps, integrator in ((100, "frozen"), (400, "frozen"), (100, "multistep"))]  # fmt: skip
    assert errors == pytest.approx([0.449, 0.129, 0.029], abs=0.001)


def test_coarse_weights_are_told_of_with_the_steps_that_are_enough():
    # Wide in one coordinate: what is wide in both is sampled in units of its size.
    q = ps.Family({"a": ps.Gaussian(cov=[1.0, 14.0])}, ps.LinearFlow())["a"] ** 2.5
    with pytest.warns(
        DegeneracyWarning, match=r"fine enough for the weights at W = 2.5; with 100 log Z .* \+0.45 off"
    ) as w:
        ps.FeynmanKac(2, integrator="frozen").sample(q, 2)
    enough = int(re.search(r"steps=(\d+)", str(w[0].message)).group(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ps.FeynmanKac(2, enough, integrator="frozen").sample(q, 2)
        ps.FeynmanKac(2).sample(q, 2)
