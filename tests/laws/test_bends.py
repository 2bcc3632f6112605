"""Bent coordinates: the map and its derivatives, and that composing commutes with it where W = 1.

References are SciPy's Yeo-Johnson power, autograd, and sums over fine grids of densities written here in NumPy.
"""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import yeojohnson

import polyscore as ps
from cases import F64, spd, vector
from polyscore.errors import ArgumentError, CompositionError, DegeneracyWarning
from polyscore.models.bend import Bend, Bent, log_slope, powered
from polyscore.models.network import Network
from training.networks import build

POWERS = (0.0, 0.3, 1.0, 1.45, 2.0)
# shift, scale, (power, centre, width): no two coordinates alike; powers that compress one side and the other.
COLUMNS = [(2.0, 0.5, 0.3, 1.1, 0.8), (-1.0, 1.5, 1.6, -0.4, 1.3), (10.0, 0.2, 0.0, 1.5, 0.6)]


def bent(dim):
    shift, scale, *bend = (torch.tensor(part, dtype=F64) for part in zip(*COLUMNS[:dim], strict=True))
    return Bent(shift, scale, bend)


@pytest.mark.parametrize(("shift", "told"), [(2e4, False), (1e5, True)])
def test_what_float32_rounds_off_is_told_in_deviations_of_the_column(shift, told):
    """A column that stays straight beside bent ones keeps a scale that is no deviation: here an eighth of it."""
    one = torch.ones(1, dtype=F64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Bent(shift * one, 0.0625 * one, (one, -5.0 * one, 8.0 * one)).check_dtype(torch.float32)
    assert [f"{2**-23 * shift / 0.5:.2g} of their own deviation" in str(w.message) for w in caught] == [True] * told


def members(dim):
    return {
        "a": ps.Gaussian(vector(dim, 1, 0.5), spd(dim, 2)),
        "b": ps.Gaussian(vector(dim, 3, 0.5), spd(dim, 4)),
        "c": ps.Gaussian(cov=spd(dim, 5, 3.0)),
    }


def numpy_map(y):
    """z and log dz/dy, one coordinate a column, by SciPy's power and central differences of it."""
    z, slopes = np.empty_like(y), np.empty_like(y)
    for j in range(y.shape[1]):
        shift, scale, power, centre, width = COLUMNS[j]
        x = (y[:, j] - shift) / scale
        z[:, j] = (yeojohnson(x, power) - centre) / width
        slopes[:, j] = (yeojohnson(x + 1e-6, power) - yeojohnson(x - 1e-6, power)) / (2e-6 * scale * width)
    return z, np.log(slopes).sum(-1)


def log_density(part, y, alpha=1.0, sigma=0.0):
    """log of the density of y whose z is the Gaussian, noised."""
    z, log_slope = numpy_map(y)
    cov = alpha**2 * part.cov.numpy() + sigma**2 * np.eye(y.shape[1])
    gap = z - alpha * part.mean.numpy()
    square = (gap * np.linalg.solve(cov, gap.T).T).sum(-1)
    return log_slope - 0.5 * (square + np.linalg.slogdet(2 * math.pi * cov)[1])


def points(dim, n=9):
    z = torch.tensor(np.random.default_rng(0).normal(size=(n, dim)))
    return bent(dim).restore(z)


@pytest.mark.parametrize("power", POWERS)
def test_the_power_is_scipys_and_its_slope_is_its_derivative(power):
    x = torch.linspace(-9, 11, 42, dtype=F64, requires_grad=True)
    v = powered(x, torch.tensor(power, dtype=F64))
    np.testing.assert_allclose(v.detach().numpy(), yeojohnson(x.detach().numpy(), power), rtol=1e-9)
    slope = torch.autograd.grad(v.sum(), x)[0]
    torch.testing.assert_close(log_slope(x.detach(), torch.tensor(power, dtype=F64)).exp(), slope)


@pytest.mark.parametrize("power", POWERS)
def test_a_bend_has_its_inverse_and_derivatives_everywhere(power):
    """Out to a hundred deviations, where it goes on straight; a power of 1 changes nothing but place and width."""
    bend = Bend(*(torch.tensor([value], dtype=F64) for value in (power, 0.7, 0.4)))
    z = torch.cat([torch.linspace(-12, 12, 97, dtype=F64), torch.tensor([-100.0, 100.0], dtype=F64)])[:, None]
    x = bend.straight(z).requires_grad_(True)
    torch.testing.assert_close(bend.bent(x), z, rtol=1e-9, atol=1e-9)
    assert bool((x[:97].diff(dim=0) > 0).all()) and bool(x.isfinite().all())
    slope = torch.autograd.grad(bend.bent(x).sum(), x, create_graph=True)[0]
    torch.testing.assert_close(bend.log_slope(x).exp(), slope)
    turning = torch.autograd.grad(slope.log().sum(), x)[0] if slope.requires_grad else torch.zeros_like(x)
    kinks = (z.abs() - 8).abs() < 1e-6
    torch.testing.assert_close(bend.turning(x)[~kinks], turning[~kinks], rtol=1e-6, atol=1e-9)
    assert bool((bend.turning(x)[(z.abs() > 8.1)] == 0).all())
    if power == 1:
        torch.testing.assert_close(bend.bent(x), (x - 0.7) / 0.4)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("t", [0.0, 0.3])
@pytest.mark.parametrize("exponents", [{"a": 1.0}, {"a": 1.0, "b": 1.0, "c": -1.0}, {"a": 0.7, "b": 0.9}])
def test_densities_and_scores_are_those_of_the_data(dim, t, exponents):
    """The density of a composition is the product of the members' own in y, whatever W; the score is its gradient."""
    p = ps.Family(members(dim), units=bent(dim))
    q = ps.Composition(p, exponents)
    y = points(dim).requires_grad_(True)
    alpha, sigma = (law(torch.tensor(t, dtype=F64)).item() for law in (q.schedule.alpha, q.schedule.sigma))
    want = sum(w * log_density(p.members[a], y.detach().numpy(), alpha, sigma) for a, w in exponents.items())
    got = q.log_density(y, t)
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-7, atol=1e-7)
    slope = torch.autograd.grad(got.sum(), y)[0]
    torch.testing.assert_close(q.score(y.detach(), t), slope, rtol=1e-8, atol=1e-8)
    singles = torch.stack([torch.autograd.grad(p[a].log_density(y, t).sum(), y)[0] for a in exponents])
    torch.testing.assert_close(q.scores(y.detach(), t), singles, rtol=1e-8, atol=1e-8)
    time = torch.tensor(t, dtype=F64)
    torch.testing.assert_close(p.scores(y.detach(), time, list(exponents)), singles, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dim", [2, 3])
def test_composing_commutes_with_a_bend_where_the_exponents_sum_to_one(dim):
    """The bent image of the composed Gaussian is the composition of bent densities, evidence included."""
    q = ps.parse("a * b / c", ps.Family(members(dim), units=bent(dim)))
    inside = ps.exact(ps.parse("a * b / c", ps.Family(members(dim))))
    y = points(dim).numpy()
    z, slope = numpy_map(y)
    direct = sum(w * log_density(q.family.members[a], y) for a, w in q.exponents.items())
    image = inside.log_prob(torch.tensor(z)).numpy() + slope
    np.testing.assert_allclose(direct - inside.log_evidence, image, rtol=1e-7, atol=1e-7)
    target = ps.exact(q)
    np.testing.assert_allclose(target.log_prob(torch.tensor(y)).numpy(), image, rtol=1e-7, atol=1e-7)
    assert target.log_evidence == inside.log_evidence
    torch.testing.assert_close(target.sample(50, 3), q.family.restore(inside.sample(50, 3)))


def on_a_grid(exponents):
    """log Z and the mean of prod p_a(y)^w_a in the plane, by a sum over a grid of y that is even in z; and nodes."""
    z = torch.cartesian_prod(*[torch.linspace(-7.5, 7.5, 701, dtype=F64)] * 2)
    y = bent(2).restore(z).numpy()
    edges = np.stack([bent(2).restore(torch.tensor([[e, e]]))[0].numpy() for e in np.linspace(-7.5, 7.5, 701)])
    cells = np.gradient(edges[:, 0])[:, None] * np.gradient(edges[:, 1])[None]
    logs = sum(w * log_density(members(2)[a], y) for a, w in exponents.items())
    masses = np.exp(logs) * cells.reshape(-1)
    return math.log(masses.sum()), (masses[:, None] * y).sum(0) / masses.sum()


@pytest.mark.parametrize("exponents", [{"a": 1.0, "b": 1.0, "c": -1.0}, {"a": 0.9, "b": 0.8}, {"a": 0.4, "b": 0.3}])
def test_evidence_and_samples_are_those_of_the_data(exponents):
    """Weighted samplers against sums over a grid in y, W = 1, 1.7 and 0.7; 2,000 swarms of 64.

    Over twenty seeds log Z was off by at most 0.015 and a mean by 0.062 deviations, whose standard error is 0.022: 0.05
    and 0.12 fail less than once in a million. Without the weights for the bend they are off by 0.27 and 0.2, or more.
    """
    q = ps.Composition(ps.Family(members(2), units=bent(2)), exponents)
    log_z, mean = on_a_grid(exponents)
    run = ps.FeynmanKac(64, steps=60, threshold=0.5).sample(q, 2000, seed=0)
    assert run.total_log_evidence == pytest.approx(log_z, abs=0.05)
    deviation = run.samples.std(0).numpy()
    assert bool((np.abs(run.samples.mean(0).numpy() - mean) < 0.12 * deviation).all())
    assert not any("bent coordinates" in finding for finding in run.findings)


def test_samples_without_weights_say_what_a_bend_leaves():
    p = ps.Family(members(2), units=bent(2))
    for sampler in (ps.Denoise(steps=20), ps.FeynmanKac(1, steps=20)):
        with pytest.warns(DegeneracyWarning, match=r"bent coordinates; they sum to 1\.5"):
            run = sampler.sample(p["a"] * p["b"] ** 0.5, 30)
        assert any(r"|dz/dy|^(1 - W)" in finding for finding in run.findings)
    assert not ps.Denoise(steps=40).sample(p["a"] * p["b"] / p["c"], 30).doubts
    with pytest.raises(ArgumentError, match="W = 1"):
        ps.exact(p["a"] ** 2)
    chosen = ps.auto(p["a"] * p["b"] ** 0.5)
    assert type(chosen) is ps.FeynmanKac and chosen.particles >= 16 and "since W is not 1" in chosen.reason
    assert isinstance(ps.auto(p["a"] * p["b"] / p["c"]), ps.Controlled)  # of Gaussians, as without a bend


def test_networks_and_ensembles_speak_the_datas_units():
    """Their scores are s dz/dy + d log|dz/dy| / dy, the map's derivatives by autograd."""
    units = bent(3)
    networks = [Network(build(2, 3, True, seed=s)[0], ps.VP(), units=units).condition(1) for s in (0, 1)]
    y = points(3).requires_grad_(True)
    z = units.standardise(y)
    slope = torch.autograd.grad(z.sum(), y, create_graph=True)[0]
    extra = torch.autograd.grad(slope.log().sum(), y)[0]
    want = [n.standard_score(z.detach(), 0.4) * slope.detach() + extra for n in networks]
    for network, expected in zip(networks, want, strict=True):
        torch.testing.assert_close(network.score(y.detach(), 0.4), expected)
    both = ps.Ensemble(networks)
    torch.testing.assert_close(both.score(y.detach(), 0.4), torch.stack(want).mean(0))
    family = ps.Family({"both": both})
    torch.testing.assert_close(family["both"].score(y.detach(), 0.4), torch.stack(want).mean(0))
    assert family.is_bent and "x1 by 0.3" in repr(family)


def test_bends_are_compared_copied_and_checked():
    units, plain = bent(2), ps.Family({"a": ps.Gaussian()}, units=tuple(bent(2))).units
    other = Bent(*units, units.bend._replace(power=units.bend.power + 0.1))
    for twin in (bent(2), copy.deepcopy(units), pickle.loads(pickle.dumps(units))):
        assert units.same(twin) and twin.same(units)
    for stranger in (other, plain, None):
        assert not units.same(stranger)
    assert not plain.same(units)
    networks = [Network(build(2, 2, True)[0], ps.VP(), units=u).condition(0) for u in (units, other)]
    with pytest.raises(CompositionError, match="same coordinates"):
        ps.Family(dict(zip("ab", networks, strict=True)))
    for power, width in (([0.5, 2.1], [1.0, 1.0]), ([0.5, 1.0], [1.0, 0.0]), ([0.5], [1.0])):
        with pytest.raises(CompositionError, match="powers in"):
            Bent(*units, [torch.tensor(part) for part in (power, [0.0] * len(power), width)])


def test_the_slope_at_the_place_of_a_bend_is_there():
    """At 0 itself, which is a data point, where sign and abs would leave none."""
    from polyscore.models.bend import log_slope, powered

    for power in (0.0, 0.4, 1.7):
        x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        slope = torch.autograd.grad(powered(x, torch.tensor(power, dtype=torch.float64)).sum(), x)[0]
        assert slope.item() == pytest.approx(1) and log_slope(x, torch.tensor(power)).item() == 0
