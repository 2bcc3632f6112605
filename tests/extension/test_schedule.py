"""A schedule from outside: noise that grows far beyond the signal, which falls to a half; no variance is preserved."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import closed_form, compose, gaussian_family, weighted_moments
from exact.test_order import ode_errors, slopes
from polyscore.algebra.family_file import parse_family
from polyscore.errors import ArgumentError
from polyscore.schedules import SCHEDULES, check_consistent, from_dict


# --- the extension
@SCHEDULES.register("growing")
@dataclass(frozen=True)
class Growing(ps.Schedule):
    """alpha = 1 - t / 2, sigma = high t^2."""

    high: float = 80.0

    def alpha(self, t):
        return 1 - t / 2

    def sigma(self, t):
        return self.high * t**2

    def drift(self, t):
        return -1 / (2 - t)

    def diffusion(self, t):
        return ((4 / t + 2 / (2 - t)) * self.sigma(t) ** 2).sqrt()


# --- end


def test_its_two_descriptions_are_one_and_others_are_refused():
    check_consistent(Growing())

    class Wrong(Growing):
        def drift(self, t):
            return -2 / (2 - t)

    with pytest.raises(ArgumentError, match="drift of Wrong must follow from its alpha and sigma"):
        gaussian_family(2, Wrong())
    SCHEDULES.register("wrong")(Wrong)  # a name makes nothing right
    with pytest.raises(ArgumentError, match="drift of Wrong must follow"):
        gaussian_family(2, Wrong())


def test_time_is_found_again_by_the_noise():
    t = torch.tensor([1e-4, 0.03, 0.5, 0.99], dtype=torch.float64)
    schedule = Growing()
    ratio = schedule.log_noise_to_signal(t)
    torch.testing.assert_close(ratio, (80 * t**2 / (1 - t / 2)).log())
    torch.testing.assert_close(schedule.time_at(ratio), t)


def test_closed_forms_keep_their_order():
    counts = np.array([50, 100, 200, 400])
    observed = slopes(ode_errors(Growing(), counts.tolist()), counts)
    assert ((observed > 1.8) & (observed < 2.3)).all(), observed


@pytest.mark.parametrize("exponents", [{"a": 1, "b": 1, "base": -1}, {"a": 1.2, "b": 0.5}])
def test_it_samples_and_weighs(exponents):
    """4 swarms of 2048. Over six other seeds the root mean square error of log Z is 0.04 and that of moments 0.035: the
    limits are six and four of these, below 1e-4 if the seed were free."""
    q = compose(gaussian_family(2, Growing()), **exponents)
    run = ps.FeynmanKac(2048, 150).sample(q, 4, seed=1)
    mean, cov, log_z = closed_form(q)
    assert run.total_log_evidence == pytest.approx(log_z, abs=0.25)
    got_mean, got_cov = weighted_moments(run)
    scale = np.sqrt(np.diag(cov))
    assert np.abs((got_mean - mean) / scale).max() < 0.15
    assert np.abs((got_cov - cov) / np.outer(scale, scale)).max() < 0.15


def test_files_hold_it_by_its_kind(tmp_path):
    assert from_dict(Growing(50.0).to_dict()) == Growing(50.0)
    assert Growing().to_dict() == {"kind": "growing", "high": 80.0}
    written = "schedule: {kind: growing, high: 60.0}\nconditions: {a: {kind: gaussian, cov: 2.0}}"
    p = parse_family(written)
    assert p.schedule == Growing(60.0)
    assert ps.Denoise(60).sample(p["a"], 4000, seed=1).samples.var(0).tolist() == pytest.approx([2, 2], rel=0.12)
    with pytest.raises(ArgumentError, match="Did you mean 'growing'"):
        parse_family(written.replace("growing", "groving"))
    with pytest.raises(ArgumentError, match=r"must be one of high; got 'hihg'\. Did you mean 'high'"):
        parse_family(written.replace("high", "hihg"))


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")
def test_model_files_hold_it_too(tmp_path):
    data = {name: part.sample(100, seed=1) for name, part in gaussian_family(2).members.items()}
    p = ps.fit(data, steps=10, width=8, schedule=Growing(20.0), progress=False)
    again = ps.load(p.save(tmp_path / "model"))
    assert again.schedule == Growing(20.0)
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    assert torch.equal(p["a"].score(x, 0.3), again["a"].score(x, 0.3))
    assert math.isfinite(ps.FeynmanKac(4, 10).sample(ps.base_composition(again), 20).total_log_evidence)
