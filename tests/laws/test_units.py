"""One convention: outside, everything is in the data's units; at noise level t a point means y = shift + scale x_t.

The reference is written in NumPy: the noised density of y itself, N(shift + D alpha m, D (alpha^2 C + sigma^2 I) D),
D = diag(scale), and mixtures of it. Nothing of the package's change of units is used.
"""

import math

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, Opaque
from polyscore.errors import ArgumentError, DegeneracyWarning, PolyscoreError
from polyscore.models.network import Network
from training.networks import build, families

SCALES = {
    "alike": ([3.0, -1.0, 0.5], [1.0, 1.0, 1.0]),
    "unequal": ([1000.0, -2e-3, 0.0], [250.0, 1e-3, 4.0]),
    "tiny": ([1e-3, 2e-3, 0.0], [1e-3, 2e-3, 5e-4]),
    "huge": ([1e4, 0.0, -3e3], [1e3, 5e3, 2e3]),
}
every_scale = pytest.mark.parametrize("units", SCALES.values(), ids=SCALES)
EXPONENTS = [{"a": 1.0}, {"a": 1.0, "b": 1.0, "m": -0.5}, {"a": 0.7, "m": 0.4}, {"m": 2.0, "b": -0.3}]
every_composition = pytest.mark.parametrize("exponents", EXPONENTS, ids=str)


def members():
    rng = np.random.default_rng(0)
    full = rng.normal(size=(3, 3))
    return {
        "a": ps.Gaussian(mean=[0.3, -0.2, 0.1], cov=full @ full.T + np.eye(3)),
        "b": ps.Gaussian(mean=[-0.4, 0.0, 0.6], cov=[0.5, 1.5, 2.0]),
        "m": ps.Mixture([[-1.0, 0.5, 0.0], [1.0, 0.0, -0.5]], [[1.0, 2.0, 1.5], [2.0, 1.0, 1.2]], [0.3, 0.7]),
    }


def as_units(units):
    return tuple(torch.tensor(part, dtype=F64) for part in units)


def log_density(part, y, alpha, sigma, units):
    """log of the density of shift + scale (alpha x + sigma z) at y, by NumPy."""
    shift, scale = (np.asarray(part) for part in units)
    gaussian = isinstance(part, ps.Gaussian)
    means = part.mean.numpy()[None] if gaussian else part.means.numpy()
    covs = part.cov.numpy()[None] if gaussian else part.components.covariances.numpy()
    weights = np.ones(1) if gaussian else part.weights.numpy()
    logs = []
    for mean, cov, weight in zip(means, covs, weights, strict=True):
        noised = scale[:, None] * (alpha**2 * cov + sigma**2 * np.eye(3)) * scale
        gap = y - (shift + scale * alpha * mean)
        log_det = np.linalg.slogdet(noised)[1]
        square = (gap * np.linalg.solve(noised, gap.T).T).sum(-1)
        logs.append(math.log(weight) - 0.5 * square - 0.5 * log_det - 1.5 * math.log(2 * math.pi))
    return np.logaddexp.reduce(logs, axis=0)


def composed(q, y, t):
    alpha, sigma = (law(torch.tensor(t, dtype=F64)).item() for law in (q.schedule.alpha, q.schedule.sigma))
    units = tuple(part.numpy() for part in q.family.units)
    parts = {name: log_density(q.family.members[name], y, alpha, sigma, units) for name in q.conditions}
    return sum(w * parts[name] for name, w in q.exponents.items())


def points(units, n=7, seed=1):
    return np.asarray(units[0]) + np.asarray(units[1]) * np.random.default_rng(seed).normal(size=(n, 3))


@every_scale
@every_composition
@pytest.mark.parametrize("t", [0.0, 0.2, 0.7])
def test_densities_and_scores_are_those_of_the_data(units, exponents, t):
    q = ps.Composition(ps.Family(members(), units=as_units(units)), exponents)
    y = points(units)
    np.testing.assert_allclose(q.log_density(torch.tensor(y), t).numpy(), composed(q, y, t), rtol=1e-9, atol=1e-8)
    # The score is the density's gradient, by central differences of a ten-thousandth of each coordinate's scale.
    steps = 1e-4 * np.asarray(units[1])
    slopes = [(composed(q, y + h, t) - composed(q, y - h, t)) / (2 * h.sum()) for h in np.diag(steps)]
    got = q.score(torch.tensor(y), t).numpy() * np.asarray(units[1])
    np.testing.assert_allclose(got, np.stack(slopes, -1) * np.asarray(units[1]), rtol=1e-5, atol=1e-5)
    # Single factors too, and the same whether the members have a closed form or only a score.
    opaque = ps.Family({k: Opaque(v, q.schedule) for k, v in members().items()}, units=as_units(units))
    if t:
        scores = ps.Composition(opaque, exponents).scores(torch.tensor(y), t)
        torch.testing.assert_close(scores, q.scores(torch.tensor(y), t), rtol=1e-9, atol=0)
        torch.testing.assert_close(opaque.scores(torch.tensor(y), torch.tensor(t, dtype=F64), q.conditions), scores)


@every_scale
@every_composition
def test_a_change_of_variables_leaves_the_residual_alone(units, exponents):
    """The residual is a rate of log-weights: the same number at x as at shift + scale x, W = 1 or not."""
    plain = ps.Composition(ps.Family(members()), exponents)
    moved = ps.Composition(ps.Family(members(), units=as_units(units)), exponents)
    x = torch.tensor(np.random.default_rng(2).normal(size=(9, 3)))
    shift, scale = as_units(units)
    y = shift + scale * x
    for t in (1e-3, 0.3, 0.9):
        torch.testing.assert_close(moved.residual(y, t), plain.residual(x, t), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(moved.score(y, t) * scale, plain.score(x, t), rtol=1e-6, atol=1e-8)


@every_scale
@pytest.mark.parametrize("exponents", [{"a": 1.0, "b": 1.0}, {"a": 0.6, "b": 0.3}, {"a": 1.0, "b": 1.0, "c": -1.0}])
def test_evidence_and_samples_are_in_the_datas_units(units, exponents):
    """log Z in closed form from the data's own Gaussians, against `exact` and a sampler; 1,000 swarms of 8.

    Z is off by less than 0.08 over forty seeds at any of these: 0.25 never fails by chance.
    """
    scale = np.asarray(units[1])
    parts = {k: v for k, v in members().items() if k != "m"} | {"c": ps.Gaussian(cov=6.0, dim=3)}
    family = ps.Family(parts, units=as_units(units))
    direct = ps.Family(
        {k: ps.Gaussian(np.asarray(units[0]) + scale * v.mean.numpy(), scale[:, None] * v.cov.numpy() * scale)
         for k, v in parts.items()}
    )  # fmt: skip
    q, want = ps.Composition(family, exponents), ps.exact(ps.Composition(direct, exponents))
    target = ps.exact(q)
    assert target.log_evidence == pytest.approx(want.log_evidence, abs=1e-6)
    y = torch.tensor(points(units))
    torch.testing.assert_close(target.log_prob(y), want.log_prob(y), rtol=1e-8, atol=1e-6)
    torch.testing.assert_close(target.log_prob(y), q.log_density(y) - target.log_evidence, rtol=1e-8, atol=1e-6)
    draws = target.sample(4000, seed=1).double()
    # 4000 draws: mean and deviation are off by 1.6 and 1.1 % of the deviation; six of these.
    deviation = want.gaussian.cov.diagonal().sqrt()
    assert bool(((draws.mean(0) - want.gaussian.mean).abs() < 0.1 * deviation).all())
    assert bool(((draws.std(0) / deviation - 1).abs() < 0.07).all())
    run = ps.FeynmanKac(particles=8, steps=100).sample(q, 1000, seed=0)
    assert run.total_log_evidence == pytest.approx(want.log_evidence, abs=0.25)
    assert bool(((run.samples.double().mean(0) - want.gaussian.mean).abs() < 0.25 * deviation).all())


@pytest.mark.parametrize("method", [None, "importance"])
def test_an_exact_mixture_has_units_too(method):
    units = (torch.tensor([100.0, -1.0], dtype=F64), torch.tensor([10.0, 0.1], dtype=F64))
    a, b = ps.Mixture([[-1.0, 0.0], [1.0, 1.0]], 0.5), ps.Mixture([[0.0, 0.0], [1.0, -1.0]], 0.8)
    q, plain = (ps.parse("a^0.8 * b^0.6", ps.Family({"a": a, "b": b}, units=u)) for u in (units, None))
    inside, outside = ps.exact(plain, method), ps.exact(q, method)
    assert outside.method == inside.method
    assert outside.log_evidence == pytest.approx(inside.log_evidence - 0.4 * math.log(10 * 0.1), abs=1e-9)
    torch.testing.assert_close(outside.sample(5, 3).double(), units[0] + units[1] * inside.sample(5, 3).double())


@pytest.mark.filterwarnings("ignore:samples should lie", "ignore:sources of unknown size")  # of random networks
@every_scale
def test_networks_and_ensembles_speak_the_datas_units(units):
    """As reached through a family and by themselves: score, every model's score, spread."""
    units = as_units(units)
    plain = [families(2, 3, True, seed=s)[0].members["c0"] for s in (0, 1)]
    inside = [Network(build(2, 3, True, seed=s)[0], ps.VP(), units=units).condition(0) for s in (0, 1)]
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    y, t = units[0] + units[1] * x, 0.4
    for one, other in zip(inside, plain, strict=True):
        torch.testing.assert_close(one.score(y, t) * units[1], other.score(x, t), rtol=1e-4, atol=1e-5)
    several, alike = ps.Ensemble(inside), ps.Ensemble(plain)
    for ask in ("score", "scores", "spread"):
        got, want = getattr(several, ask)(y, t), getattr(alike, ask)(x, t)
        torch.testing.assert_close(got * units[1], want, rtol=1e-4, atol=1e-5)
    p = ps.Family({"one": inside[0], "both": several, "exact": ps.Gaussian(cov=2.0, dim=3)}, units=units)
    for name, member in (("one", plain[0]), ("both", alike)):
        torch.testing.assert_close(p[name].score(y, t) * units[1], member.score(x, t), rtol=1e-4, atol=1e-5)
    # Samplers reach the same networks in their own coordinates, one by one or as one field.
    bare = ps.Family({"one": plain[0], "both": alike, "exact": ps.Gaussian(cov=2.0, dim=3)})
    for text in ("one", "both", "one * both / exact"):
        got, want = (ps.Denoise(steps=4).sample(ps.parse(text, f), 6, dtype=F64).samples for f in (p, bare))
        torch.testing.assert_close((got - units[0]) / units[1], want, rtol=1e-4, atol=1e-5)


def test_a_learned_function_in_a_family_with_units_sees_standardised_points():
    seen, units = [], (torch.tensor([50.0, 0.0]), torch.tensor([10.0, 0.1]))
    member = ps.Learned(lambda x, t: seen.append(x) or torch.zeros_like(x), (2,), ps.VP())
    ps.Family({"a": member}, units=units)["a"].score(torch.tensor([[70.0, 0.3]]), 0.5)
    torch.testing.assert_close(seen[0], torch.tensor([[2.0, 3.0]]))


def test_a_far_offset_costs_no_digits_that_a_point_has():
    """float32 holds 1e6 + 0.25 exactly: the difference to the shift must not be rounded away by the scale."""
    units = (torch.tensor([1e6], dtype=F64), torch.tensor([0.3], dtype=F64))
    p = ps.Family({"a": ps.Gaussian(cov=1.0, dim=1)}, units=units)
    y = torch.tensor([[1e6 + 0.25]])
    expected = -(0.25 / 0.3) / 0.3
    assert p["a"].score(y, 0.0).item() == pytest.approx(expected, rel=1e-5)
    assert p.standardise(p.restore(torch.tensor([[0.5]]))).item() == pytest.approx(0.5, abs=0.2)


def test_samples_that_the_dtype_cannot_hold_are_told_of():
    far = ps.Family({"a": ps.Gaussian(dim=1)}, units=(torch.tensor([1e8], dtype=F64), torch.tensor([1.0], dtype=F64)))
    with pytest.warns(DegeneracyWarning, match=r"dtype=torch\.float64") as told:
        ps.Denoise(steps=20).sample(far["a"], 5)
    assert {warning.filename for warning in told} == {__file__}
    exact = ps.Denoise(steps=20).sample(far["a"], 50, dtype=F64).samples
    assert len(exact.unique()) == 50
    for size in (1e60, 1e-60):
        units = (torch.zeros(1, dtype=F64), torch.tensor([size], dtype=F64))
        beyond = ps.Family({"a": ps.Gaussian(dim=1)}, units=units)
        with pytest.raises(ArgumentError, match=r"dtype=torch\.float64"):
            ps.Denoise(steps=20).sample(beyond["a"], 5)
        assert bool((ps.Denoise(steps=20).sample(beyond["a"], 5, dtype=F64).samples != 0).all())


def test_units_may_be_of_any_kind_of_tensor():
    for dtype in (torch.float16, torch.float32, F64, torch.int64):
        units = (torch.tensor([2, 3]).to(dtype), torch.tensor([4, 5]).to(dtype))
        y = torch.tensor([[6.0, -2.0]], dtype=F64)
        got = ps.Family({"a": ps.Gaussian()}, units=units)["a"].score(y, 0.0)
        torch.testing.assert_close(got, torch.tensor([[-0.25, 0.2]], dtype=F64))


def test_a_composition_cannot_be_changed_in_place():
    p = ps.Family({"a": ps.Gaussian(), "b": ps.Gaussian()})
    q = p["a"]
    with pytest.raises(PolyscoreError, match="must stay as they are"):
        q.exponents["b"] = 3.0
    assert q.exponents == {"a": 1.0} and q.total == 1
    with pytest.raises(AttributeError):
        q.exponents = {}
    with pytest.raises(PolyscoreError, match="schedule must be a schedule"):
        ps.Family({"a": ps.Gaussian()}, schedule="VP")
