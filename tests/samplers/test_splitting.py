"""A model is asked about no more than it takes: a swarm goes in pieces, and points may be images."""

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import compositions, opaque
from polyscore.errors import DegeneracyWarning
from polyscore.fields import prepare
from polyscore.samplers import chunks
from training.networks import families

pytestmark = pytest.mark.filterwarnings(
    "ignore:sources of unknown size", "ignore:weight should", "ignore:swarms should", "ignore:samples must",
    "ignore:K should be large", "ignore:swarms should keep",
)  # fmt: skip

EVENT = (3, 8, 8)
FIELDS = ("samples", "particles", "log_weights", "log_evidence", "ess", "ancestors")


class Group:
    """Gaussians N(m_a, 1) of images behind one call for all conditions, which counts its rows."""

    def __init__(self, most_rows=None):
        self.schedule, self.most_rows, self.asked = ps.VP(), most_rows, []

    def scores(self, x, t, members):
        self.asked.append(x[..., 0, 0, 0].numel() * len(members))
        level = self.schedule.alpha(t)
        return torch.stack([level * member.mean - x for member in members])


class Condition:
    def __init__(self, group, mean):
        self.group, self.mean, self.event, self.schedule = group, mean, EVENT, group.schedule

    def score(self, x, t):
        return self.group.scores(x, t, [self])[0]


def images(most_rows=None):
    """a b / c: N(m_a + m_b - m_c, 1)."""
    group = Group(most_rows)
    p = ps.Family({name: Condition(group, mean) for name, mean in (("a", 1.0), ("b", 0.5), ("c", 0.25))})
    return p["a"] * p["b"] / p["c"], group


def close(one, other, fields=FIELDS):
    for name in fields:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("most", [1, 3, 5, 100])
def test_no_call_is_about_more_than_max_particles(most):
    q, group = images()
    run = ps.FeynmanKac(4, 6).sample(q, 5, seed=1, max_particles=most, device="cpu")
    assert max(group.asked) <= 3 * most
    assert 3 * min(most, 20) in group.asked  # nor about fewer than need be
    close(run, ps.FeynmanKac(4, 6).sample(images()[0], 5, seed=1, device="cpu"))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 60])
@pytest.mark.parametrize("most", [None, 2])
def test_a_group_is_asked_about_as_many_rows_as_it_takes(rows, most):
    q, group = images(rows)
    run = ps.FeynmanKac(4, 6).sample(q, 5, seed=1, max_particles=most, device="cpu")
    assert max(group.asked) <= rows
    assert max(group.asked) == min(rows, 3 * (rows // 3 or 1), 3 * (most or 20))
    close(run, ps.FeynmanKac(4, 6).sample(images()[0], 5, seed=1, device="cpu"))


def test_without_a_bound_a_chunk_is_one_call():
    q, group = images()
    ps.FeynmanKac(4, 6).sample(q, 5, seed=1, device="cpu")
    assert set(group.asked) == {60} and len(group.asked) == 7


def test_images_go_through_everything(tmp_path):
    """The mean of 40 x 192 coordinates within five of its standard errors: 1 in 10^6."""
    q, _ = images()
    run = ps.FeynmanKac(8, 40, ancestry=True).sample(q, 40, seed=2, max_particles=16, device="cpu")
    assert run.samples.shape == (40, *EVENT) and run.particles.shape == (40, 8, *EVENT)
    assert run.ancestry.shape == (40, 40, 8) and run.ess.shape == (40, 40)
    assert run.samples.mean().item() == pytest.approx(1.25, abs=5 / (40 * 192) ** 0.5 + 0.02)
    assert run.samples.var().item() == pytest.approx(1, abs=0.1)
    assert "points of 3 x 8 x 8" in repr(run) and "40 samples" in run.summary()
    assert np.load(run.save(tmp_path / "x.npz"))["samples"].shape == (40, *EVENT)
    assert np.loadtxt(run.save(tmp_path / "x.csv"), delimiter=",", skiprows=1).shape == (40, 192)
    for sampler in (ps.Denoise(10), ps.Denoise(10, churn=0, order=2), ps.FeynmanKac(4, 10, threshold=0.5, clip=1.0)):
        assert sampler.sample(q, 6, seed=1, device="cpu").samples.isfinite().all()


def test_resampled_images_are_whole():
    """With churn 0 a particle at the end is the one that its ancestor would have become alone."""
    q, _ = images()
    free = ps.FeynmanKac(6, 20, churn=0, threshold=0).sample(q, 10, seed=1, dtype=torch.float64, device="cpu")
    resampled = ps.FeynmanKac(6, 20, churn=0).sample(q, 10, seed=1, dtype=torch.float64, device="cpu")
    index = resampled.ancestors.long()[..., None].expand(-1, -1, 192)
    expected = torch.gather(free.particles.flatten(2), 1, index)
    torch.testing.assert_close(resampled.particles.flatten(2), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", compositions())
def test_closed_forms_are_never_split(name):
    q = compositions()[name]
    sampler = ps.FeynmanKac(4, 6)
    one, other = (sampler.sample(q, 12, seed=1, max_particles=most) for most in (None, 1))
    for field in FIELDS:
        assert torch.equal(getattr(one, field), getattr(other, field)), field


def test_networks_are_split_too_and_tables_are_chosen_by_the_piece():
    p = families(3, 2, True)[0]
    q = p["c0"] * p["c1"] / p["c2"]
    one, other = (ps.Denoise(8).sample(q, 40, seed=1, max_particles=most) for most in (None, 7))
    close(one, other, ("samples",))
    field = prepare(q, torch.linspace(1, 0, 5, dtype=torch.float64).clamp(1e-5, 0.999), torch.empty(0))
    pieces = chunks.in_pieces(field, 7)
    x = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(0))
    for whole, part in zip(field(x, 2), pieces(x, 2), strict=True):
        torch.testing.assert_close(whole, part)
    assert pieces(x, 2, want_excess=False)[1] is None
    assert pieces.mend(x, 2, False) is pieces and pieces.arithmetic(20) == field.arithmetic(7)
    assert chunks.in_pieces(pieces, None) is field and chunks.in_pieces(pieces, 3).whole is field


class Scarce:
    """A model of at most `most` particles; more do not fit into a GPU's memory."""

    def __init__(self, part, schedule, most):
        self.part, self.schedule, self.event, self.most, self.asked = part, schedule, part.event, most, []

    def score(self, x, t):
        self.asked.append(x[..., 0].numel())
        if self.asked[-1] > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return self.part.score(x, self.schedule.alpha(t), self.schedule.sigma(t))


def scarce(q, most):
    members = {name: Scarce(member, q.schedule, most) for name, member in q.family.members.items()}
    return ps.Composition(ps.Family(members, q.schedule), q.exponents)


@pytest.mark.parametrize("most", [550, 256, 100, 1])
def test_out_of_memory_halves_chunks_then_pieces_down_to_one_particle(most):
    q = compositions()["gaussians-2d-1,1,-1"]
    short = scarce(q, most)
    with pytest.warns(DegeneracyWarning, match="memory must hold a chunk; going on with chunks of") as caught:
        run = ps.Denoise(2, grid="equal").sample(short, 600, seed=1, max_particles=2000)
    assert len([w for w in caught if "memory" in str(w.message)]) == 1
    whole = ps.Denoise(2, grid="equal").sample(opaque(q), 600, seed=1)
    torch.testing.assert_close(run.samples, whole.samples)
    asked = short.family.members["a"].asked
    failed = [count for count in asked if count > most]
    assert failed == sorted(set(failed), reverse=True)  # a size that failed is not tried again


def test_where_one_particle_does_not_fit_the_error_stands():
    with pytest.raises(torch.cuda.OutOfMemoryError), pytest.warns(DegeneracyWarning, match="memory"):
        ps.Denoise(2).sample(scarce(compositions()["single"], 0), 5)
