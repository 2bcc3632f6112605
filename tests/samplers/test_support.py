"""How far data support a composition: against fits to other data, and against distances that are known."""

import math
import warnings

import pytest
import torch

import polyscore as ps
from polyscore.errors import DegeneracyWarning
from polyscore.paper.settings import setting
from polyscore.samplers.support import farthest, moved


def draw(n, seed, mean=(0.0, 0.0), size=1.0):
    return torch.tensor(mean) + size * torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))


def composed(n, seed=0, few=None):
    """A product with wide sources, of fits to data that are drawn anew for every seed."""
    data = {"control": draw(n, 3 * seed, size=2.0), "A": draw(n, 3 * seed + 1, (1.0, 0.0)),
            "B": draw(few or n, 3 * seed + 2, (0.0, -1.0), 1.5)}  # fmt: skip
    return ps.base_composition(ps.fit(data, kind="mixture", progress=False))


def test_what_other_data_would_move_is_what_fits_to_other_data_differ_by():
    """Over 40 datasets the mean along each axis scatters by `moved`, within a half: 40 tell it to 11 %, 16 to 18 %."""
    truth = ps.base_composition(ps.Family({"control": ps.Gaussian(cov=4.0), "A": ps.Gaussian([1.0, 0.0], 1.0),
                                           "B": ps.Gaussian([0.0, -1.0], 2.25)}))  # fmt: skip
    deviation = ps.exact(truth).sample(4000, seed=1).std(0)
    exact = [ps.exact(composed(150, seed)) for seed in range(40)]
    means = torch.stack([target.sample(4000, seed=1).mean(0) for target in exact])  # one draw's numbers for all
    scatter = (means.std(0) / deviation).max().item()
    said = torch.tensor([moved(q, ps.exact(q).sample(512, seed=1)) for q in (composed(150, seed) for seed in range(6))])
    assert scatter / 1.5 < said.median().item() < 1.5 * scatter, (scatter, said)


@pytest.mark.parametrize("others, expected", [
    ((ps.Gaussian([0.2], 1.0), ps.Gaussian([0.1], 1.0)), math.sqrt((0.2**2 + 0.1**2) / 2)),
    ((ps.Gaussian(cov=1.12, dim=1), ps.Gaussian(cov=0.88, dim=1)), 0.06),  # of the deviation: half of the variance's
], ids=["mean", "width"])  # fmt: skip
def test_it_is_the_root_mean_square_of_what_the_mean_or_the_deviation_is_moved_by(monkeypatch, others, expected):
    own = ps.Family({"a": ps.Gaussian(dim=1, cov=1.0)})["a"]
    monkeypatch.setattr(
        "polyscore.samplers.support.alternatives", lambda *_: [ps.Family({"a": o})["a"] for o in others]
    )
    quantiles = torch.special.ndtri((torch.arange(512, dtype=torch.float64) + 0.5) / 512)
    assert moved(own, quantiles[:, None]) == pytest.approx(expected, rel=0.03)


def test_it_falls_with_the_root_of_the_rows():
    few, many = (moved(q, ps.exact(q).sample(512, seed=1)) for q in (composed(100), composed(10_000)))
    assert 5 < few / many < 20


@pytest.mark.filterwarnings("ignore:swarms should")
def test_a_summary_tells_of_samples_in_tails_of_their_conditions():
    """Between N(5, 1) and N(-5, 1) samples are five deviations outside of both; of what overlaps nothing is said."""
    for place, told in ((5.0, True), (1.0, False)):
        data = {"control": torch.cat([draw(1500, k, (sign * place, 0.0)) for k, sign in enumerate((1, -1))]),
                "A": draw(3000, 2, (place, 0.0)), "B": draw(3000, 3, (-place, 0.0))}  # fmt: skip
        q = ps.base_composition(ps.fit(data, kind="mixture", progress=False))
        run = ps.FeynmanKac(16).sample(q, 500, seed=0)
        assert ("deviations outside of" in run.summary()) is told, run.summary()


def test_outside_is_the_distance_in_deviations():
    """A Gaussian's log-density at r deviations is r^2 / 2 below its middle; draws of two variables are ln 4 below."""
    p = ps.fit({"here": draw(4000, 0), "there": draw(4000, 1, (12.0, 0.0))}, kind="mixture", progress=False)
    name, away = farthest(p["here"] * p["there"], torch.tensor([[3.0, 0.0]]).expand(600, 2))
    assert name == "there" and away == pytest.approx(math.sqrt(81 - 2 * math.log(2)), rel=0.05)
    assert farthest(p["here"] * p["there"], draw(600, 2))[1] > 11.0 > farthest(p["here"], draw(600, 2))[1]


def test_conditions_that_do_not_meet_speak_against_the_run_whatever_the_sampler():
    data = {"control": draw(1500, 0), "up": draw(1500, 1, (12.0, 0.0)), "down": draw(1500, 2, (-12.0, 3.0), 0.7)}
    q = ps.base_composition(ps.fit(data, kind="mixture", progress=False))
    for sampler in (ps.auto(q), ps.Denoise()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = sampler.sample(q, 300, seed=0)
        assert any("samples should lie where their conditions have data" in str(w.message) for w in caught)
        assert run.outside[0] == "up" and 14 < run.outside[1] < 20  # 18.1 by exact scores, less by adding them
        assert "deviations outside of 'up'" in run.summary() and "Nothing speaks" not in run.summary()


def test_few_rows_speak_against_the_run_and_many_do_not():
    with pytest.warns(DegeneracyWarning, match="data should settle where a composition lies"):
        run = ps.FeynmanKac(4).sample(composed(1500, few=8), 300, seed=0)
    assert run.moved > 0.3 and any("more rows" in finding for finding in run.findings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = ps.FeynmanKac(16, pooled=True).sample(composed(1500), 300, seed=0)
    assert run.moved < 0.1 and "other rows of data would move" in run.summary()
    assert "Nothing speaks against it" in run.summary()


def test_nothing_is_said_of_what_nobody_fitted():
    run = ps.FeynmanKac(4).sample(ps.base_composition(setting("gaussian-factorized-id")), 100, seed=0)
    assert math.isnan(run.moved) and math.isnan(run.outside[1]) and "rows" not in run.summary()


def test_nothing_is_said_of_samples_that_rounding_moved():
    """Data a thousandth wide at 100,000, where float32 has steps of 0.008: what it keeps of samples would be asked
    elsewhere. In float64 as at the origin."""
    near = {name: draw(300, seed).double() for seed, name in enumerate(("A", "B"))}
    far = {name: 1e5 + 1e-3 * points for name, points in near.items()}
    p, q = (ps.fit(data, kind="mixture", progress=False) for data in (near, far))
    with pytest.warns(DegeneracyWarning, match="points should be told apart"):
        lost = ps.Denoise(20).sample(q["A"] * q["B"], 200)
    assert math.isnan(lost.moved) and not any("data should settle" in finding for finding in lost.findings)
    at_home, away = (
        ps.Denoise(20).sample(family["A"] * family["B"], 200, dtype=torch.float64).moved for family in (p, q)
    )
    assert away == pytest.approx(at_home, rel=1e-3)
