"""Doubts about learned scores: compositions without a density are told, and healthy ones are left alone."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import polyscore as ps
from cases import F64
from polyscore.errors import DegeneracyWarning
from polyscore.samplers.spread import draws_alone, growth, outweighed, steepness

EXPONENTS = [
    {"a": 1, "b": 1, "base": -1},
    {"a": 2, "base": -1},
    {"a": 0.7, "b": 0.8, "base": -0.3},
    {"a": 1, "b": 1, "c": 1, "base": -2},
]


class Noisy(torch.nn.Module):
    """The noise in x of a distribution, with a smooth error of root mean square `error`, as a network has."""

    def __init__(self, part: ps.Gaussian | ps.Mixture, error: float, seed: int, schedule: ps.Schedule) -> None:
        super().__init__()
        draw, dim = torch.Generator().manual_seed(seed), part.event[0]
        self.part, self.schedule = part, schedule
        self.inner = torch.randn(dim + 2, 32, generator=draw)
        self.outer = error * math.sqrt(2 / 32) * torch.randn(32, dim, generator=draw)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = self.schedule.alpha(t), self.schedule.sigma(t)
        seen = torch.cat([x, 2 * t[:, None], torch.ones_like(t[:, None])], 1)
        return -sigma[:, None] * self.part.score(x, alpha, sigma) + torch.sin(seen @ self.inner) @ self.outer


def dressed(
    members: dict[str, ps.Gaussian | ps.Mixture], error: float = 0.0, seed: int = 0, schedule: ps.Schedule | None = None
) -> ps.Family:
    """The same family, every member behind a model with errors of its own."""
    schedule = schedule or ps.VP()
    return ps.Family({name: ps.Learned(Noisy(part, error, 100 * seed + k, schedule), part.event, schedule)
                      for k, (name, part) in enumerate(members.items())})  # fmt: skip


def least(covs: list[np.ndarray], exponents: list[float]) -> float:
    """The least eigenvalue of sum w P relative to sum |w| P, to the letter."""
    precisions = [np.linalg.inv(cov) for cov in covs]
    whole = sum(abs(w) * p for w, p in zip(exponents, precisions, strict=True))
    left = sum(w * p for w, p in zip(exponents, precisions, strict=True))
    return float(np.linalg.eigvals(np.linalg.solve(whole, left)).real.min())


def random_gaussians(seed: int, dim: int, low: float, high: float) -> tuple[dict[str, ps.Gaussian], dict[str, float]]:
    """Gaussians that do not commute, the base scaled until the least relative eigenvalue is where it was drawn."""
    draw, exponents = np.random.default_rng(seed), EXPONENTS[seed % len(EXPONENTS)]
    turns = [np.linalg.qr(draw.normal(size=(dim, dim)))[0] for _ in exponents]
    covs = [turn * np.exp(draw.uniform(-1.2, 1.2, dim)) @ turn.T for turn in turns]
    goal, (small, large) = draw.uniform(low, high), (1e-4, 1e4)
    for _ in range(60):
        scale = math.sqrt(small * large)
        short = least([*covs[:-1], scale * covs[-1]], list(exponents.values())) < goal
        small, large = (scale, large) if short else (small, scale)
    covs[-1] = large * covs[-1]
    return {name: ps.Gaussian(0.5 * draw.normal(size=dim), cov) for name, cov in zip(exponents, covs)}, exponents


def doubted(dim: int, low: float, high: float, error: float, count: int) -> int:
    found = 0
    for seed in range(count):
        members, exponents = random_gaussians(seed, dim, low, high)
        found += bool(growth(ps.Composition(dressed(members, error, seed), exponents), seed))
    return found


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
@pytest.mark.parametrize("error", [0.0, 0.05])
def test_proper_gaussians_are_not_doubted(dim, error):
    """Relative eigenvalues from 0, hardly proper, to 0.3. False alarms: 1 in 350, in one dimension and noisy."""
    assert doubted(dim, 0.0, 0.3, error, 12) <= (error > 0 and dim == 1)


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
def test_improper_gaussians_are_doubted(dim):
    """At errors of 0.1, 5 in 175 were missed."""
    assert doubted(dim, -0.6, -0.3, 0.0, 6) == 6
    assert doubted(dim, -0.6, -0.3, 0.1, 8) >= 6


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_mixtures_whose_parts_are_apart_are_not_doubted(dim):
    """By widths alone 115 of 320 proper ones would be; by how fast they fall off none was."""
    wide = 0
    for seed in range(12):
        draw, exponents = np.random.default_rng(seed), EXPONENTS[seed % len(EXPONENTS)]
        members = {name: ps.Mixture(2 * draw.normal(size=(int(draw.integers(1, 5)), dim)), cov=0.5 if w < 0 else 0.4)
                   for name, w in exponents.items()}  # fmt: skip
        q = ps.Composition(dressed(members, 0.05, seed), exponents)
        assert ps.Composition(ps.Family(members), exponents).validity().proper and not growth(q, seed)
        draws = [part.sample(512, seed=seed).double() for part in members.values()]
        wide += outweighed(draws, list(exponents.values())) is not None
    assert wide > 0


def test_widths_are_weighed_as_gaussians_whatever_the_units_of_a_column():
    """Along the second axis 1 + 1 - 1 / 0.4 is negative; a column that is constant in all sources says nothing."""
    z = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    sources = [z * torch.tensor(deviations, dtype=F64) for deviations in ([2.0, 1.0], [1.0, 1.0], [3.0, 0.4**0.5])]
    along = outweighed(sources, [1, 1, -1])
    assert along is not None and along.abs()[1].item() > 0.99
    assert outweighed(sources, [1, 1, -0.7]) is None and outweighed(sources[:2], [1, 1]) is None
    constant = [torch.cat([x[:, :1], 1e-4 * k * x[:, 1:]], 1) for k, x in zip((1, 3, 0.5), sources, strict=True)]
    assert outweighed(constant, [1, 1, -1]) is None
    assert outweighed([torch.cat([x, torch.ones(4000, 1, dtype=F64)], 1) for x in sources], [1, 1, -1]) is not None


@pytest.mark.parametrize("goal, told", [(-0.05, False), (-0.15, True)])
def test_precisions_must_be_outweighed_by_a_tenth(goal, told):
    """2 - u is that share of 2 + u."""
    z = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    narrow = ((1 + goal) / (2 * (1 - goal))) ** 0.5
    sources = [z * torch.tensor([1.0, deviation], dtype=F64) for deviation in (1.0, 1.0, narrow)]
    assert (outweighed(sources, [1, 1, -1]) is not None) == told


@pytest.mark.parametrize("exponents", [{"a": 1.0, "b": 0.5, "base": -0.7}, {"a": 1.0, "b": 1.0, "base": 1.0}])
def test_steepness_is_the_precision_of_noised_gaussians(exponents):
    """sum_a w_a v' (alpha^2 C_a + sigma^2)^-1 v, at the time where sigma = 0.3 alpha times the narrowest deviation."""
    schedule = ps.VP()
    variances = {"a": [1.0, 4.0, 2.0], "b": [2.0, 1.0, 1.0], "base": [0.5, 3.0, 1.0]}
    members = {name: ps.Gaussian(cov=v) for name, v in variances.items()}
    draws = [part.sample(60_000, seed=k).double() for k, part in enumerate(members.values())]
    v = torch.tensor([0.6, 0.8, 0.0], dtype=F64)
    widths = [float((v**2 * torch.tensor(c, dtype=F64)).sum() ** 0.5) for c in variances.values()]
    t = schedule.time_at(torch.tensor(0.3 * min(widths), dtype=F64).log())
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    expected = sum(w * (v**2 / (alpha**2 * torch.tensor(variances[name], dtype=F64) + sigma**2)).sum().item()
                   for name, w in exponents.items())  # fmt: skip
    found = steepness(ps.Composition(dressed(members), exponents), draws, v, 0)
    assert found == pytest.approx(expected, abs=0.04)  # five standard errors: each square is known to sqrt(2 / 60000)


def refuse(x: Tensor, t: Tensor) -> Tensor:
    raise RuntimeError("no such rows")


@pytest.mark.parametrize(
    "model",
    [
        lambda x, t: x * math.nan,
        refuse,
        lambda x, t: -1e3 * x.double(),
        lambda x, t: torch.zeros_like(x),
    ],
    ids=["nan", "refuses", "runs away", "no score"],
)
def test_a_source_that_cannot_be_drawn_is_no_error_and_no_doubt(model):
    healthy = dressed({"a": ps.Gaussian(cov=1.0, dim=2), "b": ps.Gaussian(cov=1.0, dim=2)})
    p = ps.Family({**healthy.members, "base": ps.Learned(model, (2,), ps.VP())})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)
        assert growth(ps.base_composition(p), 0) == ""


@pytest.mark.parametrize("schedule", [ps.Cosine(), ps.LinearFlow(), ps.DDPM(), ps.DDPM(zero_snr=True)], ids=repr)
def test_schedules_of_every_kind_are_told(schedule):
    members = {"a": ps.Gaussian(cov=1.0, dim=3), "b": ps.Gaussian(cov=1.0, dim=3), "base": ps.Gaussian(cov=0.3, dim=3)}
    assert growth(ps.base_composition(dressed(members, schedule=schedule)), 0)
    members["base"] = ps.Gaussian(cov=0.8, dim=3)
    assert not growth(ps.base_composition(dressed(members, schedule=schedule)), 0)


def test_the_direction_is_that_of_the_data_and_pictures_are_left_alone():
    """Improper along the first column, which is 1000 times as wide in the data's units as the second."""
    units = (torch.tensor([5.0, 700.0]), torch.tensor([1000.0, 1.0]))
    inner = {"a": [1.0, 1.0], "b": [1.0, 1.0], "base": [0.3, 0.3]}
    p = dressed({name: ps.Gaussian(cov=cov) for name, cov in inner.items()})
    told = growth(ps.base_composition(ps.Family(p.members, units=units)), 0)
    assert "must be normalisable; got a * b * base^-1" in told and ("(1," in told or "(-1," in told)
    assert growth(p["a"] * p["b"], 0) == ""
    picture = ps.Learned(lambda x, t: x, (1, 6, 6), ps.VP())
    assert growth(ps.base_composition(ps.Family({"a": picture, "b": picture, "base": picture})), 0) == ""


def test_draws_that_ran_away_tell_nothing_of_a_source(monkeypatch):
    """Six of 512 at 10^4 would make it a thousand times as wide."""
    samples = torch.randn(512, 2, generator=torch.Generator().manual_seed(0))
    samples[::100] = 1e4
    run = SimpleNamespace(samples=samples)
    monkeypatch.setattr("polyscore.samplers.spread.Denoise", lambda steps: SimpleNamespace(sample=lambda *_, **__: run))
    q = ps.Family({"a": ps.Gaussian(cov=1.0)})["a"]
    assert torch.equal(draws_alone(q, "a", 0), samples[samples[:, 0] < 1e4].double())


def test_auto_doubts_what_pilots_tear_and_says_so_with_the_run():
    members = {"a": ps.Gaussian(cov=[10, 1]), "b": ps.Gaussian(cov=[1, 10]), "base": ps.Gaussian(cov=0.6, dim=2)}
    q = ps.base_composition(dressed(members))
    chosen = ps.auto(q, most=8)
    assert isinstance(chosen, ps.FeynmanKac) and chosen.clip == 15 and chosen.particles == 8
    assert len(chosen.doubts) == 2 and "normalisable" in chosen.doubts[0] and "Denoise()" in chosen.doubts[1]
    with pytest.warns(DegeneracyWarning) as told:
        run = chosen.sample(q, 100)
    assert set(chosen.doubts) <= {str(warning.message) for warning in told}
    assert set(chosen.doubts) <= set(run.findings) and "biased by the clip" in run.summary()
    assert "±" not in run.summary() and run.doubts[:2] == chosen.doubts


def test_auto_has_no_doubts_of_a_healthy_composition_nor_of_one_particle(monkeypatch):
    """Swarms agree, so that growth is not even asked for; the same where nothing is weighed, and of closed forms."""
    members = {"a": ps.Gaussian(cov=[10, 1]), "b": ps.Gaussian(cov=[1, 10]), "base": ps.Gaussian(cov=10.0, dim=2)}
    healthy = ps.base_composition(dressed(members))
    monkeypatch.setattr("polyscore.samplers.pilots.growth", None)
    assert ps.auto(healthy).doubts == ps.auto(healthy, most=1).doubts == () == ps.FeynmanKac(4).doubts
    assert ps.auto(ps.base_composition(ps.Family(members))).doubts == ()
    plain = ps.auto(healthy, most=1)
    assert "for the reason above" in plain.sample(healthy, 20).summary()
    assert "Without weights nothing is known" in ps.Denoise().sample(healthy, 20).summary()
