"""Theorem 1: Gaussians exactly, mixtures proper, improper with a witness, or an honest None; integrals agree."""

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, compose, gaussian_family, own_mixtures, spd, vector
from polyscore.errors import DegeneracyWarning, ImproperError, PolyscoreError


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


def test_an_average_of_the_denominators_proves_what_none_of_them_does():
    """-min_k is kinder than any single k in some direction: each alone leaves 0.7 - 1 < 0, their average 0.7 - 0.55."""
    p = family(a=ps.Gaussian(cov=1 / 0.7), base=ps.Mixture([[0, 0], [1, 1]], cov=[np.diag([10, 1]), np.diag([1, 10])]))
    q = compose(p, a=1, base=-1)
    assert q.validity().proper is True
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


def corners(power, basis=None):
    """Six dimensions, the k-th component of b wide along axis k alone: the worst direction is (1, ..., 1)."""
    basis = np.eye(6) if basis is None else basis
    covs = [basis @ np.diag([4.0 if i == k else 0.8 for i in range(6)]) @ basis.T for k in range(6)]
    a = ps.Mixture(np.zeros((2, 6)), [np.eye(6), 0.6 * np.eye(6)], [0.02, 0.98])
    return compose(family(a=a, b=ps.Mixture(np.zeros((6, 6)), covs)), a=1, b=-power)


def random_rotation(dim, rng):
    return np.linalg.qr(rng.normal(size=(dim, dim)))[0]


@pytest.mark.parametrize("basis", [np.eye(6), random_rotation(6, np.random.default_rng(0))], ids=["axes", "rotated"])
def test_the_worst_direction_may_be_far_from_every_eigenvector(basis):
    """Along (1, ..., 1) / sqrt 6: 1 - w (5 / 0.8 + 1 / 4) / 6, which is 0 at w = 12 / 13 = 0.923."""
    for power, proper in ((0.95, False), (0.925, False), (0.92, True), (0.8, True)):
        assert corners(power, basis).validity().proper is proper, power
    v = basis.T @ np.array(corners(0.95, basis).validity().direction)
    assert np.abs(v).sum() / math.sqrt(6) == pytest.approx(1, abs=0.02)  # any signs: they are all as bad


def test_both_samplers_and_the_exact_target_refuse_it():
    q = corners(0.95)
    for attempt in (ps.exact, lambda q: ps.Denoise(steps=5).sample(q, 2), lambda q: ps.FeynmanKac(4, 5).sample(q, 2)):
        with pytest.raises(ImproperError, match="grows along"):
            attempt(q)


def sphere(dim):
    """Directions that leave no gap wider than 0.02 (one to three dimensions)."""
    if dim == 1:
        return np.ones((1, 1))
    if dim == 2:
        angles = np.linspace(0, np.pi, 8000, endpoint=False)
        return np.stack([np.cos(angles), np.sin(angles)])
    i = np.arange(20_000) + 0.5
    polar, around = np.arccos(1 - i / 10_000), np.pi * (1 + 5**0.5) * i
    return np.stack([np.cos(around) * np.sin(polar), np.sin(around) * np.sin(polar), np.cos(polar)])


SPHERES = {dim: sphere(dim) for dim in (1, 2, 3)}


def least_rate(covs, exponents, v):
    """min over v of sum w min_k v'P_k v, over the same sum without signs, by brute force."""
    forms = [np.min([((np.linalg.inv(c) @ v) * v).sum(0) for c in each], 0) for each in covs]
    rates, scale = (sum(w * form for w, form in zip(ws, forms)) for ws in (exponents, np.abs(exponents)))
    return (rates / scale).min()


def random_cov(rng, dim):
    values = np.exp(0.7 * rng.normal(size=dim))
    basis = random_rotation(dim, rng) if rng.random() < 0.6 else np.eye(dim)
    cov = (basis * values) @ basis.T
    return 0.5 * (cov + cov.T)


@pytest.mark.parametrize("seed", range(60))
def test_mixtures_against_brute_force_near_the_border(seed):
    """The denominators' exponents are scaled to 3 or 10 % below or above what brute force calls the border."""
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(1, 4))
    covs = [[random_cov(rng, dim) for _ in range(rng.integers(1, 5))] for _ in range(rng.integers(2, 4))]
    signs = np.array([1.0, *rng.choice([-1, -1, 1], size=len(covs) - 2), -1]) * rng.uniform(0.3, 1, size=len(covs))
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        positive = least_rate(covs, np.where(signs < 0, middle * signs, signs), SPHERES[dim]) > 0
        low, high = (middle, high) if positive else (low, middle)
    share = rng.choice([0.9, 0.97, 1.03, 1.1])
    exponents = np.where(signs < 0, share * low * signs, signs)
    parts = {str(i): ps.Mixture(rng.normal(size=(len(each), dim)), list(each)) for i, each in enumerate(covs)}
    answer = compose(family(**parts), **dict(zip(parts, exponents))).validity()
    assert answer.proper is bool(share < 1), answer.reason
    if not answer.proper:
        assert least_rate(covs, exponents, np.array(answer.direction)[:, None]) < 0


@pytest.mark.parametrize("spread", [1e3, 1e6])
def test_a_narrow_tilted_gaussian_is_proper(spread):
    basis = random_rotation(3, np.random.default_rng(3))
    cov = (basis * np.array([1 / spread, 1, spread])) @ basis.T
    p = family(a=ps.Gaussian(cov=0.5 * (cov + cov.T)), b=ps.Gaussian(cov=0.7 * (cov + cov.T)))
    assert p["a"].validity().proper is True
    assert (p["a"] / p["b"] ** 0.5).validity().proper is True
    assert (p["b"] / p["a"]).validity().proper is False


def test_four_thousand_dimensions_need_no_matrix():
    p = family(a=ps.Gaussian(cov=2.0, dim=4000), b=ps.Mixture(torch.zeros(2, 4000), cov=[1.0, 0.5]))
    assert compose(p, b=2, a=-1).validity().proper is True
    assert compose(p, a=1, b=-1).validity().proper is False


def border():
    """Rates that cancel exactly in every direction."""
    a = ps.Mixture([[0.0, 0], [1, 0]], cov=1.0)
    return compose(family(a=a, base=ps.Mixture([[0.0, 0], [0, 2]], cov=0.5)), a=1, base=-0.5)


def test_no_answer_is_warned_of_where_forms_are_closed():
    q = border()
    assert q.validity().proper is None
    for attempt in (
        lambda: q.validity().settle(repr(q)),
        lambda: ps.exact(q, "product importance"),
        lambda: ps.Denoise(steps=5).sample(q, 2),
    ):
        with pytest.warns(
            DegeneracyWarning, match=r"whether a \* base\^-0.5 can be normalised could not be told"
        ) as caught:
            attempt()
        assert Path(caught[0].filename).name == Path(__file__).name


def test_no_answer_is_not_warned_of_where_scores_are_learned():
    class Learned:
        event = (2,)

        def score(self, x, t):
            return -x

    ps.Family({"a": Learned()})["a"].validity().settle("a")  # a warning would be an error here


def whole_path(q):
    return q.path_validity()


PATHS = {
    "narrow": ([1e-6, 1e-4, 1e-5], (0.25, 1, -1), ps.LinearFlow()),
    "narrow, VP": ([1e-6, 1e-4, 1e-5], (0.25, 1, -1), ps.VP()),
    "wide": ([1e2, 1e4, 1e3], (0.25, 1, -1), ps.Cosine()),
    "beyond VP's noise": ([1e6, 1e8, 1e7], (0.25, 1, -1), ps.VP()),
    "proper": ([1.0, 1.0, 2.0], (1, 1, -1), ps.VP()),
}


@pytest.mark.parametrize("variances, exponents, schedule", PATHS.values(), ids=PATHS)
def test_the_whole_path_is_searched(variances, exponents, schedule):
    """The answer of 20,000 noise levels between 1e-12 and the schedule's last, by plain arithmetic."""
    members = {name: ps.Gaussian(cov=v) for name, v in zip("abc", variances)}
    q = ps.Composition(ps.Family(members, schedule), dict(zip("abc", exponents)))
    last = (schedule.sigma(torch.ones((), dtype=F64)) / schedule.alpha(torch.ones((), dtype=F64)).clamp_min(1e-9)) ** 2
    s = np.geomspace(1e-12, last.item(), 20_000)
    improper = bool((sum(w / (v + s) for w, v in zip(exponents, variances)) < 0).any())
    t, answer = whole_path(q)
    assert answer.proper is (not improper)
    assert q.validity(t).proper is answer.proper


@pytest.mark.parametrize("seed", range(30))
def test_paths_of_gaussians_against_numpy_eigenvalues(seed):
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(1, 4))
    covs = [random_cov(rng, dim) * 10 ** rng.uniform(-3, 3) for _ in range(3)]
    exponents = [1.0, rng.uniform(0.2, 1), -rng.uniform(0.2, 1)]
    p = ps.Family({name: ps.Gaussian(cov=cov) for name, cov in zip("abc", covs)}, ps.LinearFlow())
    levels = np.geomspace(1e-9, 1e9, 1500)
    pencils = sum(w * np.linalg.inv(cov + levels[:, None, None] * np.eye(dim)) for w, cov in zip(exponents, covs))
    scale = sum(abs(w) * np.linalg.inv(cov + levels[:, None, None] * np.eye(dim)) for w, cov in zip(exponents, covs))
    root = np.linalg.inv(np.linalg.cholesky(scale))
    least = np.linalg.eigvalsh(root @ pencils @ root.transpose(0, 2, 1)).min()
    if abs(least) > 1e-4:
        assert whole_path(ps.Composition(p, dict(zip("abc", exponents))))[1].proper is bool(least > 0)


def test_an_improper_path_between_the_times_once_looked_at_is_warned_of():
    p = ps.Family({name: ps.Gaussian(cov=v) for name, v in zip("abc", (1e-6, 1e-4, 1e-5))}, ps.LinearFlow())
    q = compose(p, a=0.25, b=1, c=-1)
    assert q.path_validity()[0] < 0.01  # of sources as narrow as these; they are sampled in units of their size
    with pytest.warns(DegeneracyWarning) as caught:
        ps.FeynmanKac(particles=4, steps=5).sample(q, 2)
    found = [w for w in caught if "improper at t = " in str(w.message)]
    assert len(found) == 1
    assert Path(found[0].filename).name == Path(__file__).name


def test_the_paths_of_the_paper_are_proper():
    from polyscore.paper.settings import SETTINGS, setting

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in SETTINGS:
            assert whole_path(ps.base_composition(setting(name)))[1].proper is True
