"""Samplers with a step, a state, a score and tables of their own run in the loop of all samplers."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

import polyscore as ps
from cases import closed_form, compose, gaussian_family
from polyscore.errors import ArgumentError
from polyscore.fields import row
from polyscore.samplers import SAMPLERS, Draw, Sampler, build_sampler, describe
from polyscore.samplers.plan import make_plan
from polyscore.samplers.step import State, begin, evaluate, gain, propose, resample
from polyscore.schema import setting

Q = compose(gaussian_family(2), a=1, b=1, base=-1)


@dataclass(frozen=True)
class Travelled(State):
    """How far each particle's ancestors have gone."""

    carried = ("way",)
    way: torch.Tensor = None


@dataclass(frozen=True, repr=False)
class Traveller(ps.FeynmanKac):
    def begin(self, plan, first, stop):
        state = begin(plan, first, stop)
        return Travelled(**vars(state), way=torch.zeros_like(state.log_weights))

    def step(self, plan, state, i, noise):
        x = propose(plan, state, i, now := plan.coefficients(i), noise)
        way = state.way + (x - state.x).norm(dim=-1)
        clean = now.of_x * state.x + now.of_score * state.score
        new = evaluate(plan, replace(state, way=way, clean=clean), x, i + 1)
        new = replace(new, log_weights=state.log_weights + gain(plan, state.rate, new.rate, now))
        new = resample(plan, new, i, noise["resampling"])
        WAYS.append(new)
        return new


WAYS: list[Travelled] = []


def test_a_step_made_of_the_pieces_is_the_step_and_carries_what_it_is_told_to():
    WAYS.clear()
    own, plain = (
        kind(6, 20, churn=0.0).sample(Q, 12, seed=3, dtype=torch.float64) for kind in (Traveller, ps.FeynmanKac)
    )
    torch.testing.assert_close(own.particles, plain.particles)
    torch.testing.assert_close(own.log_evidence, plain.log_evidence)
    # Without noise copies of one ancestor have gone the same way, and only they.
    for way, ancestors in zip(WAYS[-1].way, WAYS[-1].ancestors, strict=True):
        assert len(way.unique()) == len(ancestors.unique()) < 6


@dataclass(frozen=True, repr=False)
class Shifted(Sampler):
    """Draws the clean point itself at every time: uniforms, a table and a start of its own, and no score at all."""

    steps: int = 3

    def draws(self, q):
        return {"coins": Draw((self.particles, *q.event), normal=False)}

    def tables(self, q, times, like):
        return {"weights": torch.arange(len(times)).to(like)}

    def step(self, plan, state, i, noise):
        x = state.x + row(plan.tables["weights"], i + 1) * (noise["coins"] - 0.5)
        return evaluate(plan, state, x, i + 1)


def test_own_tables_and_draws_reach_the_step():
    """Three steps add uniforms of variance 1/12 times 1, 4 and 9, whatever the start: 20,000 swarms, variances within 5
    standard errors of 1.4 %: 1 in 10^6."""
    sampler = Shifted()
    run = sampler.sample(Q, 20_000, seed=1)
    start = replace(sampler, steps=1).sample(Q, 20_000, seed=1)
    assert run.samples.isfinite().all() and not torch.equal(run.samples, start.samples)
    alone = ps.Family({"a": ps.Gaussian(cov=1e-6)})["a"]
    alpha = alone.schedule.alpha(sampler_times(sampler, alone)[-1]).item()
    got = sampler.sample(alone, 20_000, seed=1).samples.var(0) * alpha**2
    start_variance = alone.schedule.sigma(sampler_times(sampler, alone)[0]).item() ** 2
    assert got.tolist() == pytest.approx([start_variance + 14 / 12] * 2, rel=0.07)


def sampler_times(sampler, q):
    return make_plan(q, sampler, 0, torch.empty(0)).times


@dataclass(frozen=True, repr=False)
class Geometric(ps.FeynmanKac):
    """Another path: scores of the first condition alone, as a field of one's own gives them."""

    def prepare(self, q, times, like):
        return super().prepare(q.family["a"], times, like)


def test_a_field_of_ones_own_is_what_moves_and_weighs():
    run = Geometric(4, 60, start="noise").sample(Q, 4000, seed=1)
    mean, cov, _ = closed_form(Q.family["a"])
    error = torch.tensor(cov.diagonal().copy()).sqrt() / math.sqrt(4000)
    assert bool(((run.samples.double().mean(0) - torch.tensor(mean)).abs() < 5 * error + 0.02).all())


@dataclass(frozen=True, repr=False)
class Picky(Sampler):
    least: float = setting(0.5, replace(Sampler.__dataclass_fields__["threshold"].metadata["domain"]))

    def check(self, q):
        if q.total < self.least:
            raise ArgumentError(f"W must be at least {self.least}; got {q.total}. Raise an exponent.")


def test_a_sampler_may_refuse_and_is_checked_as_a_value():
    with pytest.raises(ArgumentError, match=r"W must be at least 0\.9; got 0\.6"):
        Picky(least=0.9).sample(Q.family["a"] ** 0.6, 3)
    with pytest.raises(ArgumentError, match="least must be a share"):
        Picky(least=2)
    with pytest.raises(ArgumentError, match=r"must be registered.*Picky"):
        describe(Picky())
    assert Picky().sample(Q, 3).samples.shape == (3, 2)
    assert repr(Picky(least=0.25)) == "Picky(steps=100, churn=1.0, least=0.25)"


@pytest.mark.parametrize("sampler", [
    ps.Denoise(), ps.Denoise(30, churn=0, order=2), ps.FeynmanKac(), ps.FeynmanKac.published(4),
    ps.FeynmanKac(3, 9, 1.5, 0.5, "residual", 0.4, (0.1, 0.9), "unbalanced", True, "equal", "euler", "right", "noise"),
])  # fmt: skip
def test_a_sampler_survives_being_written_down(sampler):
    written = describe(sampler)
    assert build_sampler(written) == sampler
    options = [field.name for field in type(sampler).__dataclass_fields__.values() if field.init]
    older = [name for name in options if name != "pooled"]  # which came after keys were stored, and is False here
    assert list(written) == ["kind", *older]  # nothing else is left to a default


def test_names_of_samplers():
    assert build_sampler("denoise") == ps.Denoise()
    assert build_sampler({"kind": "feynman-kac", "particles": 4, "window": [0.2, 0.7]}).window == (0.2, 0.7)
    assert build_sampler({"kind": "published", "particles": 4}) == ps.FeynmanKac.published(4)
    assert {"denoise", "feynman-kac", "published"} <= set(SAMPLERS)


@pytest.mark.parametrize("description, words", [
    ({"kind": "feynman-kac", "partcles": 4}, "an option of feynman-kac must be one of .*Did you mean 'particles'"),
    ({"kind": "feynmankac"}, "a sampler's kind must be one of .*Did you mean 'feynman-kac'"),
    ({"kind": "published", "churn": 0}, "an option of published must be one of particles, steps, clip; got 'churn'"),
    ({"particles": 4}, "a sampler must be a kind or a mapping with one; got"),
    (3, "a sampler must be a kind or a mapping with one; got 3"),
    ({"kind": "denoise", "grid": "snrr"}, "grid must be one of .*Did you mean 'snr'"),
    ({"kind": "denoise", "steps": "ten"}, "steps must be a whole number"),
    ({"kind": ["denoise"]}, "a sampler's kind must be one of"),
])  # fmt: skip
def test_descriptions_that_describe_no_sampler(description, words):
    with pytest.raises(ArgumentError, match=words):
        build_sampler(description)


def test_what_is_asked_before_a_run_is_asked_once(monkeypatch):
    asked = []
    validity = ps.Composition.validity
    monkeypatch.setattr(ps.Composition, "validity", lambda self, t=0.0: asked.append(t) or validity(self, t))
    ps.FeynmanKac(4, 20).sample(Q, 10)
    assert asked == [0.0]


@dataclass(frozen=True, repr=False)
class Opened(Sampler):
    """Opens what the base class holds fixed, by defaults alone."""

    particles: int = 8
    resampling: str | None = "systematic"
    clip: float | None = None
    threshold: float = 1.0
    window: tuple[float, float] | None = None
    ancestry: bool = False
    quadrature: str = "noise"
    order: int = 1


BAD = [
    ("particles", 0), ("particles", -3), ("particles", 2.5), ("particles", True), ("clip", 0.0), ("clip", "low"),
    ("resampling", 3), ("threshold", 1.5), ("threshold", math.nan), ("window", (0.7, 0.2)), ("window", 0.5),
    ("ancestry", 1), ("quadrature", 4), ("order", 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_field_that_a_subclass_opens_keeps_the_domain_of_its_base(name, value):
    with pytest.raises(ArgumentError, match=rf"^{name} must be .*; got "):
        Opened(**{name: value})


def test_an_opened_sampler_is_the_one_that_opens_the_same():
    runs = [kind(particles=6, steps=10).sample(Q, 5, seed=1) for kind in (Opened, ps.FeynmanKac)]
    assert torch.equal(runs[0].particles, runs[1].particles)
    assert Opened(window=[0, 1]).window == (0.0, 1.0) and not Opened(resampling=None).weighted
    with pytest.raises(ArgumentError, match="resampling must be a registered name or a Resampler; got None"):
        ps.FeynmanKac(resampling=None)
