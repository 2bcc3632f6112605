"""What is chosen by pilots, whose runs are written down: swarms that agree by so much, outputs that far away."""

import math
from types import SimpleNamespace

import pytest
import torch

import polyscore as ps
from polyscore.samplers import pilots
from polyscore.samplers.pilots import Pilots, by_agreement, by_stand_in
from polyscore.samplers.stand_in import EACH, distance, outputs, some_particles, stand_in

CLOSED = ps.Family({name: ps.Gaussian(cov=1.0, dim=2) for name in ("a", "b", "base")})
ASKED = ps.Family({name: ps.Learned(lambda x, t: x, (2,), ps.VP()) for name in ("a", "b", "base")})


class Written(Pilots):
    """Pilots whose swarms agree by shares that are given for each K, and whose runs are their samplers' names."""

    def __init__(self, family: ps.Family, shares: dict[int, float]) -> None:
        super().__init__(ps.base_composition(family), 100, 0)
        self.shares = shares

    def run(self, sampler):
        share = self.shares.get(getattr(sampler, "particles", 1), math.nan)
        self.runs[sampler] = SimpleNamespace(evidence_share=share, sampler=sampler)
        return self.runs[sampler]


@pytest.fixture(autouse=True)
def nothing_grows(monkeypatch):
    monkeypatch.setattr(pilots, "growth", lambda q, seed: "it may grow")


def test_particles_are_added_until_swarms_agree():
    choice = by_agreement(Written(ASKED, {16: 0.89, 64: 0.9, 256: 1.0}), 300)
    assert choice.sampler == ps.FeynmanKac(64, threshold=0.5) and choice.doubts == ()
    assert by_agreement(Written(ASKED, {16: 0.5, 64: 0.5, 100: 0.5}), 100).sampler.particles == 100
    assert by_agreement(Written(ASKED, {8: 0.5}), 8).sampler.particles == 8


def test_swarms_that_disagree_are_doubted_where_scores_are_learned_alone():
    for share, clip, doubts in ((0.95, None, 0), (0.31, None, 1), (0.29, 15, 2), (math.nan, 15, 2)):
        learned = by_agreement(Written(ASKED, {16: share}), 16)
        assert (learned.sampler.clip, len(learned.doubts)) == (clip, doubts)
    assert "0 % at K = 16" in learned.reason and learned.doubts[0] == "it may grow"


def test_swarms_in_closed_form_are_pooled_unless_few_count():
    """And half of them are enough, where learned scores ask for nine in ten."""
    for share, particles, is_pooled in ((0.6, 16, True), (0.4, 64, True), (0.11, 64, True), (0.09, 64, False)):
        choice = by_agreement(Written(CLOSED, {16: share, 64: share}), 64)
        assert choice.sampler == ps.FeynmanKac(particles, threshold=0.5, pooled=is_pooled) and choice.doubts == ()
        assert ("drawn from all swarms" in choice.reason) is is_pooled
    assert not by_agreement(Written(CLOSED, {16: math.nan}), 16).sampler.pooled


def judged(monkeypatch, shares, away, signal=0.5, own=0.05):
    """The choice where outputs of samplers, by their K and clip, are that far away, and two draws `own`."""
    monkeypatch.setattr(pilots, "stand_in", lambda q, seed: "stand-in")
    monkeypatch.setattr(pilots, "outputs", lambda stand, seed, others: ("expected", "others"))
    monkeypatch.setattr(pilots, "some_particles", lambda run, seed: run.sampler)
    known = {"others": own, ps.Denoise(): away[0], ps.FeynmanKac(16, clip=15.0): away[-1]}
    monkeypatch.setattr(pilots, "distance", lambda q, x, expected: known.get(x, away[min(1, len(away) - 1)]))
    made = Written(ASKED, shares)
    return by_stand_in(made, 64, signal), made


def test_a_clip_is_compared_with_unless_the_first_swarms_agree(monkeypatch):
    clipped = ps.FeynmanKac(16, clip=15.0)
    agreed, made = judged(monkeypatch, {16: 0.95}, (0.2, 0.1))
    assert agreed.sampler == ps.FeynmanKac(16, threshold=0.5) and clipped not in made.runs
    later, made = judged(monkeypatch, {16: 0.5, 64: 0.95}, (0.2, 0.1, 0.06))
    assert later.sampler == clipped and "0.06 of FeynmanKac(16, clip=15)" in later.reason
    torn, made = judged(monkeypatch, {16: 0.1, 64: 0.1}, (0.06, 0.3, 0.2))
    assert torn.sampler == ps.Denoise() and torn.doubts == ()  # those of a clip are not of what was taken


@pytest.mark.parametrize(
    ("own", "nearest", "doubted"), [(0.02, 0.14, False), (0.02, 0.16, True), (0.1, 0.28, False), (0.1, 0.32, True)]
)
def test_networks_are_at_odds_beyond_their_own_draws_and_a_least_distance(monkeypatch, own, nearest, doubted):
    """Three times as far as two draws, and 0.15 deviations."""
    choice, _ = judged(monkeypatch, {16: 0.95}, (1.0, nearest), own=own)
    assert bool(choice.doubts) is doubted


def test_scores_that_are_added_are_doubted_where_there_is_much_to_correct(monkeypatch):
    for signal, count in ((0.9, 0), (1.1, 1)):
        added, _ = judged(monkeypatch, {16: 0.95}, (0.06, 0.1), signal)
        assert added.sampler == ps.Denoise() and len(added.doubts) == count
        assert judged(monkeypatch, {16: 0.95}, (0.2, 0.1), signal)[0].doubts == ()


def test_runs_that_are_compared_give_equally_many_points():
    made, q = Pilots(CLOSED["a"] * CLOSED["b"], 5, 0), CLOSED["a"] * CLOSED["b"]
    counts = {len(some_particles(made.run(s), 0)) for s in (ps.Denoise(), ps.FeynmanKac(16, threshold=0.5))}
    drawn, others = outputs(q, 0, 256)
    assert counts == {256 * EACH} == {len(others)} and len(drawn) == 1000 * EACH
    assert made.run(ps.Denoise()) is made.run(ps.Denoise())
    assert not {tuple(row) for row in drawn.tolist()} & {tuple(row) for row in others.tolist()}


def test_particles_are_looked_at_by_their_weights():
    """Of two swarms of three, the first has all its weight on its last particle."""
    weights = torch.tensor([[-50.0, -60.0, 0.0], [0.0, 0.0, 0.0]])
    run = SimpleNamespace(log_weights=weights, particles=torch.arange(6.0).reshape(2, 3, 1), samples=None)
    found = some_particles(run, 0).reshape(2, EACH)
    assert set(found[0].tolist()) == {2.0} and set(found[1].tolist()) == {3.0, 4.0, 5.0}


def test_a_distance_is_in_deviations_and_hardly_feels_strays():
    """Shifts by one deviation of each column, in whatever units; one sample in a thousand at 1e6 moves it by little."""
    draw = torch.Generator().manual_seed(0)
    x, scale = torch.randn(2000, 2, generator=draw), torch.tensor([1000.0, 0.01])
    found = []
    for units in (None, (torch.tensor([7.0, -3.0]), scale)):
        p = ps.Family(CLOSED.members, units=units)
        back = p.restore if units else (lambda points: points)
        q = ps.base_composition(p)
        found.append(distance(q, back(x + 1), back(x)))
    assert found[0] == pytest.approx(found[1], rel=1e-3) and 0.3 < found[0] < 1.0
    strayed = x + 1
    strayed[::1000] = 1e6
    assert distance(ps.base_composition(CLOSED), strayed, x) == pytest.approx(found[0], rel=0.5)


@pytest.mark.filterwarnings("ignore::polyscore.errors.PolyscoreWarning")
def test_a_stand_in_is_kept_from_being_improper_by_chance():
    """1 + 1 - 1 / 0.49 is half of its error by 2000 draws below 0, in one dimension or the other."""
    schedule = ps.VP()

    def model(variance):
        inside = ps.Gaussian(cov=[variance, variance])
        return ps.Learned(
            lambda x, t: inside.score(x, schedule.alpha(t[0]), schedule.sigma(t[0])), (2,), schedule, prediction="score"
        )

    p = ps.Family({"a": model(1.0), "b": model(1.0), "base": model(0.49)})
    found = stand_in(ps.base_composition(p), 0)
    assert found is not None and found.validity().proper is True
