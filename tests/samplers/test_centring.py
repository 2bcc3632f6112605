"""Compositions far from the origin: at W other than 1, too, what comes out moves with them, and with nothing else."""

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, closed_form, compose, spd, vector, within_standard_errors
from polyscore.algebra.alternatives import alternatives, halves
from polyscore.errors import PolyscoreWarning
from polyscore.samplers import MALA, Kernel
from polyscore.samplers.centring import centred
from polyscore.samplers.starts import pure_noise

PLACE = np.array([170.0, -90.0, 55.0])
EXPONENTS = [{"a": 1, "b": 1, "base": -0.6}, {"a": 0.5, "b": 0.3, "base": -0.2}]
SAMPLERS = [ps.FeynmanKac(8, threshold=0.5), ps.Controlled(4), ps.FeynmanKac(6, 60, quadrature="discrete")]


def family_at(place: np.ndarray) -> ps.Family:
    """Gaussians and a mixture of full covariances about a place."""
    means = np.stack([vector(3, 1), vector(3, 2)]) + place
    return ps.Family(
        {
            "a": ps.Gaussian(mean=vector(3, 3) + place, cov=spd(3, 4)),
            "b": ps.Gaussian(mean=vector(3, 5) + place, cov=spd(3, 6)),
            "mixed": ps.Mixture(means, cov=[spd(3, 7), spd(3, 8)], weights=[1, 3]),
            "base": ps.Gaussian(mean=vector(3, 9) + place, cov=spd(3, 10, 2.0, floor=1.5)),
        }
    )


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=["FeynmanKac", "Controlled"])
def test_far_gaussians_come_out_where_they_are(sampler, exponents):
    """A hundred deviations away, 2000 swarms: evidence and the mean by evidence within 4 standard errors and 1 %, an
    alarm in 10^3 over all cases. Without moving, all of the evidence was in one swarm, and the mean 50 deviations off.
    """
    q = compose(family_at(PLACE), **exponents)
    mean, _, log_z = closed_form(q)
    run = sampler.sample(q, 2000, seed=1)
    ratio = (run.log_evidence.double() - log_z).exp()
    within_standard_errors(ratio, 1.0, 4, slack=0.01)
    within_standard_errors(ratio[:, None] * (run.samples.double() - torch.as_tensor(mean)), 0.0, 4, slack=0.01)


@pytest.mark.filterwarnings("ignore:(K|swarms|weight) should")
@pytest.mark.parametrize(
    "sampler",
    [
        *SAMPLERS,
        ps.Denoise(50),
        ps.Denoise(50, churn=0.0, order=2),
        ps.AnnealedLangevin(20, 2),
        ps.FeynmanKac(3, 30, kernels=(MALA(),)),
    ],
    ids=repr,
)
def test_samples_move_with_the_data(sampler):
    """Two places: the same samples and particles, moved, and the same evidence, to rounding in float64."""
    runs = [
        sampler.sample(compose(family_at(place), mixed=1, a=0.8, base=-0.3), 60, seed=2, dtype=F64)
        for place in (PLACE, -3 * PLACE)
    ]
    for name in ("samples", "particles"):
        near, far = (getattr(run, name) - torch.as_tensor(k * PLACE) for run, k in zip(runs, (1, -3), strict=True))
        assert (near - far).abs().max() < 1e-9
    assert torch.allclose(runs[0].log_evidence, runs[1].log_evidence, rtol=0, atol=1e-9, equal_nan=True)


def family_of_size(size: float) -> ps.Family:
    """Gaussians, a mixture and a Gaussian that hides what it is, so wide, about as far from the origin."""
    return ps.Family(
        {
            "a": ps.Gaussian(mean=size * vector(3, 3), cov=size**2 * spd(3, 4)),
            "b": OwnDensity(size * vector(3, 5), size**2 * spd(3, 6)),
            "mixed": ps.Mixture(
                size * np.stack([vector(3, 1), vector(3, 2)]), cov=[size**2 * spd(3, k) for k in (7, 8)]
            ),
            "base": ps.Gaussian(mean=size * vector(3, 9), cov=size**2 * spd(3, 10, 2.0, floor=1.5)),
        }
    )


@pytest.mark.filterwarnings("ignore:K should")
@pytest.mark.parametrize("exponents", [{"a": 2, "mixed": 0.8, "base": -0.8}, {"a": 0.5, "mixed": 0.3, "base": -0.3}])
@pytest.mark.parametrize("size", [300.0, 2.6, 1e-4])
def test_wide_and_narrow_gaussians_keep_their_weights(size, exponents):
    """W = 2 and 0.5, the mixture drawn as one Gaussian: evidence, mean and covariance by evidence within 4 standard
    errors and 2 %, an alarm in 10^3 over all. Without the division few of 2000 swarms hold the evidence.
    """
    members = dict(family_of_size(size).members)
    mean, cov = members["mixed"].components.moments()
    q = compose(ps.Family({**members, "mixed": ps.Gaussian(mean, cov)}), **exponents)
    mean, cov, log_z = closed_form(q)
    run = ps.FeynmanKac(16, threshold=0.5).sample(q, 2000, seed=1)
    ratio = (run.log_evidence.double() - log_z).exp()
    assert run.effective_swarms > 1000
    within_standard_errors(ratio, 1.0, 4, slack=0.02)
    y = torch.linalg.solve(
        torch.linalg.cholesky(torch.as_tensor(cov)), (run.samples.double() - torch.as_tensor(mean)).T
    ).T
    within_standard_errors(ratio[:, None] * y, 0.0, 4, slack=0.02)
    within_standard_errors(ratio[:, None] * (y**2 - 1), 0.0, 4, slack=0.04)


@pytest.mark.filterwarnings("ignore:(K|swarms|weight|whether) ")
@pytest.mark.parametrize("sampler", [*SAMPLERS[:2], ps.Denoise(50), ps.AnnealedLangevin(20, 2)], ids=repr)
def test_samples_scale_with_the_data(sampler):
    """Two sizes, densities of one's own among them: the same samples, multiplied, and evidence that differs by the
    units' (1 - W) d log, to rounding in float64."""
    sizes, exponents = (300.0, 0.02), {"mixed": 0.9, "a": 0.8, "b": 0.4, "base": -0.3}
    wide, narrow = (sampler.sample(compose(family_of_size(s), **exponents), 60, seed=2, dtype=F64) for s in sizes)
    for name in ("samples", "particles"):
        one, other = (getattr(run, name) / size for run, size in zip((wide, narrow), sizes, strict=True))
        assert (one - other).abs().max() < 1e-8
    gap = (1 - sum(exponents.values())) * 3 * np.log(sizes[0] / sizes[1])
    assert torch.allclose(wide.log_evidence, narrow.log_evidence + gap, rtol=0, atol=1e-8, equal_nan=True)


def test_what_has_a_place_of_its_own_stays():
    """The published sampler to the letter, steps and kernels of one's own; W = 1; and what is near."""

    class Own(Kernel):
        def __call__(self, plan, state, i, z, u):
            return state

    class Steered(ps.FeynmanKac):
        def steer(self, plan, state, x, i):
            return x

    assert ps.FeynmanKac(2).is_movable and ps.Controlled(2).is_movable and ps.AnnealedLangevin().is_movable
    for other in (
        ps.FeynmanKac.published(2),
        Steered(2),
        ps.Denoise(2, start=lambda *asked: pure_noise(*asked)),
        ps.FeynmanKac(2, kernels=(Own(),)),
    ):
        assert not other.is_movable
    assert centred(compose(family_at(PLACE), a=1, b=1, base=-1)) is None
    assert centred(compose(family_at(np.array([-1.5, 2.0, -0.3])), a=0.5, b=0.2, base=-0.1)) is None


def test_digits_are_missed_where_samples_end_up():
    """Moved to the origin a narrow target is easily told apart, and brought back in float32 it is not."""
    narrow = {name: ps.Gaussian(mean=[5e3, 0.0], cov=cov) for name, cov in (("a", 1e-8), ("b", 2e-8))}
    with pytest.warns(PolyscoreWarning, match="numbers must be finer"):
        ps.Denoise(40).sample(compose(ps.Family(narrow), a=1, b=0.5), 30)


def test_fits_move_in_their_own_coordinates():
    """Standardised fits whose composition lies some of its deviations from the middle of the data: as families of
    the same Gaussians without units; and what is known of the fits' error moves with them."""
    means = {"a": [40.0, -1.0], "b": [44.0, -1.2], "low": [-40.0, 1.0]}
    data = {
        name: np.random.default_rng(k).normal(mean, [6, 0.2], (2000, 2)) for k, (name, mean) in enumerate(means.items())
    }
    fitted = ps.fit(data, kind="mixture", progress=False, device="cpu")
    q = compose(fitted, a=1, b=0.8)
    parts = {name: ps.Gaussian(mean=data[name].mean(0), cov=np.cov(data[name].T, bias=True)) for name in ("a", "b")}
    mean, cov, log_z = closed_form(compose(ps.Family(parts), a=1, b=0.8))
    moved = centred(q)
    assert moved is not None and moved.place.norm() > 0.5
    assert len(alternatives(moved.q, 3)) == 3 and len(halves(moved.q)) == 2
    for half, at in zip(halves(q), halves(moved.q), strict=True):
        for one, other in zip(half.factors, at.factors, strict=True):
            assert torch.allclose(one.means - moved.place, other.means)
    run = ps.FeynmanKac(8, threshold=0.5).sample(q, 2000, seed=1)
    within_standard_errors((run.log_evidence.double() - log_z).exp(), 1.0, 4, slack=0.05)
    assert (np.abs(run.samples.double().mean(0).numpy() - mean) < 0.15 * np.sqrt(np.diag(cov))).all()
    standard = fitted.standardise(run.particles).flatten(0, 1).abs().median(0).values.max().item()
    assert run.reach == pytest.approx(standard) and run.reach > 0.4


class OwnScore(ps.Distribution):
    """A Gaussian that hides what it is, but for its size."""

    def __init__(self, mean, cov):
        self.inner = ps.Gaussian(mean, cov)
        self.dim, self.moments = self.inner.dim, self.inner.moments

    def score(self, x, alpha=1.0, sigma=0.0):
        return self.inner.score(x, alpha, sigma)


class OwnDensity(OwnScore, ps.Density):
    def log_prob(self, x, alpha=1.0, sigma=0.0):
        return self.inner.log_prob(x, alpha, sigma)


@pytest.mark.filterwarnings("ignore:whether")
@pytest.mark.parametrize("kind", [OwnScore, OwnDensity])
def test_distributions_of_ones_own_move_as_well(kind):
    """As the Gaussians that they are: evidence within 4 standard errors and 2 %, means within 0.15 deviations."""
    known = family_at(PLACE).members
    own = ps.Family({name: kind(known[name].mean, known[name].cov) for name in ("a", "base")})
    mean, cov, log_z = closed_form(compose(family_at(PLACE), a=1, base=0.5))
    run = ps.FeynmanKac(8, threshold=0.5).sample(compose(own, a=1, base=0.5), 1000, seed=3)
    within_standard_errors((run.log_evidence.double() - log_z).exp(), 1.0, 4, slack=0.02)
    assert (np.abs(run.samples.double().mean(0).numpy() - mean) < 0.15 * np.sqrt(np.diag(cov))).all()
