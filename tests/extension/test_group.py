"""A class-conditional convolutional network of 3 x 64 x 64 images: all conditions of a batch in one model call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polyscore as ps
from polyscore.errors import CompositionError, PolyscoreError
from polyscore.models.group import Group


class TinyNet(nn.Module):
    """eps(x, t, class) of images: two convolutions, the class and the time added between them. It counts its calls."""

    def __init__(self, classes=10, channels=4, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)
            self.classes, self.clock = nn.Embedding(classes, channels), nn.Linear(1, channels)
        self.rows = []

    def forward(self, x, t, classes):
        assert x.shape[1:] == (3, 64, 64) and t.shape == classes.shape == (len(x),)
        self.rows.append(len(x))
        told = self.classes(classes) + self.clock(t[:, None])
        return 0.1 * self.last(torch.tanh(self.first(x) + told[:, :, None, None])) + 0.9 * x


# --- the extension
class Classes(Group):
    """Conditions of a network that is told a class: `group.condition(class)` is a member of a family."""

    def __init__(self, model, schedule, most_rows=None, units=None):
        super().__init__((3, 64, 64), schedule, units)
        self.model, self.most_rows = model, most_rows

    def scores(self, x, t, members):
        points, number = x.reshape(-1, *self.event), len(members)
        times = t.expand(x.shape[: -len(self.event)]).reshape(-1)
        classes = torch.tensor([member.index for member in members], device=x.device).repeat_interleave(len(points))
        eps = self.model(points.repeat(number, 1, 1, 1), times.repeat(number), classes)
        sigma = self.schedule.sigma(times).view(-1, 1, 1, 1)
        return (-eps.view(number, *points.shape) / sigma).view(number, *x.shape)


# --- end

NAMES = {"cat": 3, "dog": 7, "none": 0}
EXPONENTS = [{"cat": 1.0, "dog": 1.0, "none": -1.0}, {"cat": 0.8, "dog": 0.7}, {"dog": 1.0}]
every_composition = pytest.mark.parametrize("exponents", EXPONENTS, ids=str)


def family(model=None, **options):
    group = Classes(model or TinyNet(), ps.VP(), **options)
    return ps.Family({name: group.condition(index) for name, index in NAMES.items()}), group


def apart(model):
    """The same scores by functions that share nothing: a call for every condition."""

    def alone(index):
        return lambda x, t: model(x, t, torch.full((len(x),), index))

    return ps.Family({name: ps.Learned(alone(index), (3, 64, 64), ps.VP()) for name, index in NAMES.items()})


def images(*batch, seed=0):
    return torch.randn(*batch, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


@every_composition
@torch.no_grad()
def test_conditions_share_one_call_and_scores_are_those_of_separate_calls(exponents):
    p, group = family()
    q, reference = ps.Composition(p, exponents), ps.Composition(apart(TinyNet()), exponents)
    x = images(2, 3)
    for t in (0.4, torch.tensor(0.7), torch.linspace(0.1, 0.9, 6).view(2, 3)):
        group.model.rows.clear()
        got = q.score(x, t), q.residual(x, t)
        assert group.model.rows == [6 * len(exponents)] * 2  # points times conditions, one call each
        for one, other in zip(got, (reference.score(x, t), reference.residual(x, t)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())


@every_composition
@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")  # a random network is no density's
def test_both_samplers_ask_for_all_conditions_at_once(exponents):
    p, group = family()
    q, reference = ps.Composition(p, exponents), ps.Composition(apart(TinyNet()), exponents)
    for sampler in (ps.Denoise(steps=4), ps.FeynmanKac(particles=2, steps=4, clip=5.0)):
        group.model.rows.clear()
        run = sampler.sample(q, 3, seed=1)
        particles = 3 * run.particles.shape[1]
        assert run.samples.shape == (3, 3, 64, 64) and run.arithmetic == "model"
        assert sum(group.model.rows) == 5 * particles * len(exponents)  # the start and four steps
        assert all(rows % len(exponents) == 0 for rows in group.model.rows)
        other = sampler.sample(reference, 3, seed=1)
        torch.testing.assert_close(run.samples, other.samples, rtol=1e-3, atol=1e-3)
        if run.particles.shape[1] > 1:
            torch.testing.assert_close(run.log_evidence, other.log_evidence, rtol=1e-3, atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("most", [1, 2, 4, 7, 100])
@pytest.mark.parametrize("t", [0.4, torch.linspace(0.1, 0.9, 5)], ids=["one time", "times"])
def test_no_call_takes_more_rows_than_the_model_can(most, t):
    free, bounded = family()[0], family(most_rows=most)
    p, group = bounded
    x = images(5)
    for exponents in EXPONENTS:
        group.model.rows.clear()
        got = ps.Composition(p, exponents).score(x, t)
        assert max(group.model.rows) <= most and sum(group.model.rows) == 5 * len(exponents)
        torch.testing.assert_close(got, ps.Composition(free, exponents).score(x, t), rtol=1e-4, atol=1e-4)
    group.model.rows.clear()
    alone = ps.Ensemble([p.members["cat"], p.members["dog"]]).score(x, t)
    assert max(group.model.rows) <= most
    both = [free.members[name].score(x, t) for name in ("cat", "dog")]
    torch.testing.assert_close(alone, sum(both) / 2, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_units_and_devices_are_the_familys_affair():
    units = (torch.full((3, 64, 64), 0.5), torch.full((3, 64, 64), 4.0))
    plain, moved = family()[0], family(units=units)[0]
    y = 0.5 + 4 * images(2)
    torch.testing.assert_close(moved["cat"].score(y, 0.3), plain["cat"].score(images(2), 0.3) / 4, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.members["cat"].score(y, 0.3), moved["cat"].score(y, 0.3))
    assert moved.units is not None and torch.equal(moved.units[1], units[1])
    assert plain.device == torch.device("cpu") and len(plain.groups) == 1
    assert plain.to("meta", precision="fp16") is plain and plain.device == torch.device("meta")
    assert plain.members["cat"].group.model.first.weight.device == torch.device("meta")
    assert "condition 3 of Classes" in repr(plain)


def test_a_model_that_fails_or_answers_otherwise_is_named():
    p, group = family(nn.Identity())
    with pytest.raises(
        CompositionError, match=r"conditions 'cat', 'dog' must have a score at .*TypeError.*Mend Classes"
    ):
        (p["cat"] * p["dog"]).score(images(2), 0.3)
    group.scores = lambda x, t, members: x
    with pytest.raises(CompositionError, match=r"must be like x, \(3, 2, 3, 64, 64\); got \(2, 3, 64, 64\)"):
        ps.base_composition(p, base="none").score(images(2), 0.3)


def test_a_group_needs_no_more_than_scores():
    """Anything with `scores(x, t, members)` behind members that have an event and a score."""

    class Least:
        def scores(self, x, t, members):
            return torch.stack([-x * member.factor for member in members])

    class Part:
        event, group = (2,), Least()

        def __init__(self, factor):
            self.factor = factor

        def score(self, x, t):
            return self.group.scores(x, t, [self])[0]

    p = ps.Family({"a": Part(1.0), "b": Part(2.0)})
    assert p.to("cpu", "fp16") is p and p.device == torch.device("cpu")
    x = images(1).view(-1, 2)[:5]
    torch.testing.assert_close((p["a"] * p["b"] ** 0.5).score(x, 0.3), -2 * x)
    assert ps.Denoise(steps=3).sample(p["a"], 4).samples.shape == (4, 2)
    _, group = family(most_rows=0)
    with pytest.raises(PolyscoreError, match="most_rows must be a whole number of at least 1, or None"):
        group.condition(3).score(images(2), 0.3)
