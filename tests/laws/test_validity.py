"""Theorem 1: Gaussians exactly, mixtures proper, improper with a witness, or an honest None; integrals agree."""

import math

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, compose, gaussian_family, own_mixtures, spd, vector
from polyscore.errors import ImproperError, PolyscoreError


def log_mass(q, half_width, count=451, t=0.0):
    """log of the integral of the unnormalised density over a box, by a plain grid sum."""
    dim = q.event[0]
    axis = torch.linspace(-half_width, half_width, count if dim == 2 else 40_001, dtype=F64)
    grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    return torch.logsumexp(q.log_density(grid, t), 0).item() + dim * math.log((axis[1] - axis[0]).item())


def settles(q, t=0.0):
    masses = [log_mass(q, width, t=t) for width in (30, 60, 90)]
    return abs(masses[2] - masses[1]) < 1e-3


def family(**members):
    return ps.Family(members)


@pytest.mark.parametrize("seed", range(40))
def test_gaussians_against_numpy_eigenvalues(seed):
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(1, 6))
    members = {
        name: ps.Gaussian(mean=vector(dim, seed + k), cov=spd(dim, 100 * seed + k)) for k, name in enumerate("abc")
    }
    exponents = dict(zip("abc", rng.uniform(-1, 1.5, size=3)))
    q = compose(ps.Family(members), **exponents)
    precision = sum(w * np.linalg.inv(members[name].cov.numpy()) for name, w in exponents.items())
    smallest = np.linalg.eigvalsh(precision)[0]
    answer = q.validity()
    assert answer.proper is bool(smallest > 0)
    assert bool(answer) is answer.proper
    if not answer.proper:
        v = np.array(answer.direction)
        assert np.linalg.norm(v) == pytest.approx(1)
        assert v @ precision @ v == pytest.approx(smallest, rel=1e-6)


def test_a_borderline_gaussian_is_improper_with_its_direction():
    p = family(a=ps.Gaussian(cov=[2, 1]), b=ps.Gaussian(cov=[2, 1]), base=ps.Gaussian(cov=1))
    answer = compose(p, a=1, b=1, base=-1).validity()  # 1/2 + 1/2 - 1 = 0 along the first axis
    assert answer.proper is False
    assert np.abs(answer.direction) == pytest.approx([1, 0], abs=1e-6)
    assert not settles(compose(p, a=1, b=1, base=-1))


@pytest.mark.parametrize("nudge, proper", [(1e-6, False), (-1e-6, True)])
def test_near_the_border(nudge, proper):
    p = family(a=ps.Gaussian(cov=[2 + nudge, 1]), b=ps.Gaussian(cov=[2, 1]), base=ps.Gaussian(cov=1))
    assert compose(p, a=1, b=1, base=-1).validity().proper is proper


def test_far_means_change_nothing():
    p = family(a=ps.Gaussian(mean=[50, 0], cov=[1, 4]), base=ps.Gaussian(mean=[-50, 9], cov=3))
    assert compose(p, a=1, base=-1).validity().proper is False
    assert compose(p, a=1, base=-0.5).validity().proper is True


GAUSSIANS = {
    "proper": ({"a": 1, "b": 1, "base": -1}, True),
    "improper": ({"a": 0.2, "base": -1}, False),
    "negative alone": ({"a": -1}, False),
}


@pytest.mark.parametrize("exponents, proper", GAUSSIANS.values(), ids=GAUSSIANS)
@pytest.mark.parametrize("dim", [1, 2])
def test_gaussian_answers_against_integrals(exponents, proper, dim):
    q = compose(gaussian_family(dim), **exponents)
    assert q.validity().proper is proper
    assert settles(q) is proper


def over(a, base):
    return compose(family(a=a, base=base), a=1, base=-1)


TRIANGLE = [[0, 0], [1, 0], [0, 2]]
MIXTURES = {
    "product": (compose(own_mixtures(2), a=1, b=1), True),
    "over a wide base": (compose(own_mixtures(2), a=1, b=1, base=-1), True),
    "widest component decides": (over(ps.Mixture(TRIANGLE, cov=[0.3, 5.0, 0.5]), ps.Gaussian(cov=2)), False),
    "widest denominator decides": (over(ps.Gaussian(cov=2), ps.Mixture(TRIANGLE, cov=[0.3, 5.0, 0.5])), True),
    "improper in one direction": (
        over(ps.Mixture([[0, 0], [3, 1], [1, 1]], cov=[spd(2, 1), [0.5, 4.0], 0.7]), ps.Gaussian(cov=2)),
        False,
    ),
    "1-D": (over(ps.Mixture([[-2], [2]], cov=[[[0.5]], [[2.0]]]), ps.Gaussian(cov=[3.0])), True),
    "1-D improper": (over(ps.Mixture([[-2], [2]], cov=[[[0.5]], [[4.0]]]), ps.Gaussian(cov=[3.0])), False),
}


@pytest.mark.parametrize("q, proper", MIXTURES.values(), ids=MIXTURES)
def test_mixture_answers_against_integrals(q, proper):
    answer = q.validity()
    assert answer.proper is proper, answer.reason
    assert settles(q) is proper


@pytest.mark.parametrize("name", [name for name, (_, proper) in MIXTURES.items() if not proper])
def test_the_witness_of_an_improper_mixture_is_one(name):
    """Along the stated direction the log-density grows like r^2."""
    q, _ = MIXTURES[name]
    v = torch.tensor(q.validity().direction, dtype=F64)
    radii = torch.tensor([50.0, 100.0, 200.0], dtype=F64)
    values = q.log_density(radii[:, None] * v)
    assert values[0] < values[1] < values[2]


def test_an_honest_cannot_tell_where_the_bound_is_too_weak():
    """Proper, since -min_k is kinder than any single k in some direction; the proof cannot see it: None, no guess."""
    p = family(a=ps.Gaussian(cov=1 / 0.7), base=ps.Mixture([[0, 0], [1, 1]], cov=[np.diag([10, 1]), np.diag([1, 10])]))
    q = compose(p, a=1, base=-1)
    assert q.validity().proper in (None, True)
    assert q.validity().proper is None
    assert not q.validity()
    assert settles(q)


def test_an_honest_cannot_tell_at_the_border():
    """Equal covariances, exponents that sum to zero: the quadratic tails cancel and the means decide."""
    p = family(a=ps.Mixture([[0, 0], [1, 0]], cov=1.0), base=ps.Mixture([[0, 0], [0, 2]], cov=1.0))
    assert compose(p, a=1, base=-1).validity().proper is None


def test_a_component_of_weight_zero_has_no_tail():
    p = family(a=ps.Mixture([[0, 0], [0, 0], [1, 1]], cov=[1.0, 9.0, 0.5], weights=[1, 0, 1]), base=ps.Gaussian(cov=2))
    q = compose(p, a=1, base=-1)
    assert settles(q)
    assert q.validity().proper is True


def test_learned_members_cannot_be_judged():
    class Learned:
        event = (2,)

        def score(self, x, t):
            return -x

    answer = ps.Family({"a": Learned()})["a"].validity()
    assert answer.proper is None


def test_requiring_validity_names_the_direction_and_a_remedy():
    p = family(a=ps.Gaussian(cov=[1, 4]), base=ps.Gaussian(cov=2))
    q = compose(p, a=1, base=-1)
    with pytest.raises(
        ImproperError, match=r"must be normalisable; got a \* base\^-1.*along \(-?0, -?1\).*Lower"
    ) as info:
        q.validity().require(repr(q))
    assert isinstance(info.value, ValueError)


@pytest.mark.parametrize("t", [0.02, 0.1, 0.5, 1.0])
def test_validity_along_the_path(t):
    """Noising can lose what the ends have; at each t the answer is NumPy's for the noised precisions."""
    q = compose(gaussian_family(3), a=0.9, b=0.7, base=-0.8)
    time = torch.tensor(t, dtype=F64)
    alpha, sigma = q.schedule.alpha(time).item(), q.schedule.sigma(time).item()
    precision = sum(
        w * np.linalg.inv(alpha**2 * q.family.members[name].cov.numpy() + sigma**2 * np.eye(3))
        for name, w in q.exponents.items()
    )
    assert q.validity(t).proper is bool(np.linalg.eigvalsh(precision)[0] > 0)


@pytest.mark.parametrize("t", [-0.1, 1.5, float("nan")])
def test_validity_outside_of_time(t):
    with pytest.raises(PolyscoreError, match="t must"):
        compose(gaussian_family(2), a=1).validity(t)
