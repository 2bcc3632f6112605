"""Every sampler over one list: shapes, seeds, chunks, and what resampling does."""

import math
import re
import warnings

import numpy as np
import pytest
import torch

import polyscore as ps
from cases import F64, SCHEDULES, closed_form, compose, compositions, gaussian_family, weighted_moments
from polyscore.errors import DegeneracyWarning
from polyscore.samplers.moves import Unbalanced

# With six particles and twenty steps weights degenerate here and there; what that looks like is tested at the end.
pytestmark = pytest.mark.filterwarnings("ignore:weight should", "ignore:swarms should", "ignore:K should be large")

SAMPLERS = {
    "sde": ps.Denoise(steps=20),
    "ode": ps.Denoise(steps=20, churn=0),
    "half churn": ps.Denoise(steps=20, churn=0.5),
    "heun": ps.Denoise(steps=20, churn=0, order=2),
    "fk": ps.FeynmanKac(particles=6, steps=20),
    "fk ode": ps.FeynmanKac(particles=6, steps=20, churn=0),
    "fk one": ps.FeynmanKac(particles=1, steps=20),
    "fk clip": ps.FeynmanKac(particles=6, steps=20, clip=2.0),
    "fk threshold": ps.FeynmanKac(particles=6, steps=20, threshold=0.5),
    "fk window": ps.FeynmanKac(particles=6, steps=20, window=(0.1, 0.6)),
    "fk stratified": ps.FeynmanKac(particles=6, steps=20, resampling="stratified"),
    "fk multinomial": ps.FeynmanKac(particles=6, steps=20, resampling="multinomial", threshold=0.8),
    "fk residual": ps.FeynmanKac(particles=6, steps=20, resampling="residual"),
    "fk right end": ps.FeynmanKac(particles=6, steps=20, quadrature="right"),
    "fk euler": ps.FeynmanKac(particles=6, steps=20, grid="equal", integrator="euler", quadrature="trapezoid"),
    "fk frozen": ps.FeynmanKac(particles=6, steps=20, integrator="frozen", start="noise"),
    "fk unbalanced": ps.FeynmanKac(particles=6, steps=20, move=Unbalanced()),
    "fk published": ps.FeynmanKac.published(particles=6, steps=20),
    "fk mala": ps.FeynmanKac(particles=6, steps=20, kernels=("mala",)),
    "annealed": ps.AnnealedLangevin(steps=20, repeats=2),
    "annealed unadjusted": ps.AnnealedLangevin(steps=20, repeats=2, adjusted=False),
}
QS = compositions()
every = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
SOME = ["gaussians-2d-1,1,-1", "gaussians-3d-2,-.5", "shared-3d-1.3,.4,-.6", "own-2d-1,1,-1"]
some = pytest.mark.parametrize("name", SOME)
FIELDS = ("samples", "particles", "log_weights", "log_evidence", "ess", "ancestors")


def particles_of(sampler):
    return getattr(sampler, "particles", 1)


def same(one, other, exactly=True):
    for field in FIELDS:
        a, b = getattr(one, field), getattr(other, field)
        if exactly:
            assert torch.equal(a.nan_to_num(nan=-1e9), b.nan_to_num(nan=-1e9)), field
        else:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True, msg=field)


@every
@some
def test_shapes_and_kinds(sampler, name):
    q, k = QS[name], particles_of(sampler)
    run = sampler.sample(q, 5, seed=0)
    assert run.samples.shape == (5, *q.event)
    assert run.particles.shape == (5, k, *q.event)
    assert run.log_weights.shape == (5, k)
    assert run.log_evidence.shape == (5,)
    assert run.ess.shape == (20, 5)
    assert run.ancestors.shape == (5, k)
    assert run.unique_ancestors.shape == (5,)
    assert run.samples.dtype == torch.float32
    assert bool(run.samples.isfinite().all())
    assert 0 <= run.clipped_fraction <= 1
    assert bool((run.ess >= 1 - 1e-4).all())
    assert bool((run.ess <= k + 1e-3).all())
    assert bool(((run.ancestors >= 0) & (run.ancestors < k)).all())
    assert bool(((run.unique_ancestors >= 1) & (run.unique_ancestors <= k)).all())
    if not sampler.weighted:
        assert bool(run.log_evidence.isnan().all())
        assert not run.log_weights.any()
    else:
        assert bool(run.log_evidence.isfinite().all())


@every
def test_the_sample_is_one_of_the_particles(sampler):
    run = sampler.sample(QS["gaussians-3d-2,-.5"], 9, seed=0)
    assert bool((run.particles == run.samples[:, None]).all(-1).any(1).all())


@every
@pytest.mark.parametrize("name", ["gaussians-3d-2,-.5", "own-2d-1,1,-1"])
def test_same_seed_same_bytes_other_seed_other_samples(sampler, name):
    state = torch.random.get_rng_state()
    one, again, other = (sampler.sample(QS[name], 4, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.random.get_rng_state(), state)
    same(one, again)
    assert not torch.isclose(one.samples, other.samples).all(-1).any()


def test_the_global_seed_does_not_matter():
    torch.manual_seed(1)
    one = SAMPLERS["fk"].sample(QS[SOME[0]], 3)
    torch.manual_seed(2)
    np.random.seed(3)
    same(one, SAMPLERS["fk"].sample(QS[SOME[0]], 3))


@pytest.mark.parametrize("schedule", ["VP", "Cosine"])
@pytest.mark.parametrize("churn", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("name", QS)
def test_one_particle_is_plain_denoising_bit_for_bit(name, churn, schedule):
    q = compositions(SCHEDULES[schedule])[name]
    plain = ps.Denoise(steps=25, churn=churn).sample(q, 40, seed=3)
    one = ps.FeynmanKac(particles=1, steps=25, churn=churn).sample(q, 40, seed=3)
    assert torch.equal(plain.samples, one.samples)
    assert torch.equal(plain.particles, one.particles)


def test_one_particle_of_the_published_sampler_is_its_own_move():
    """Published at W != 1 starts and moves otherwise; at W = 1 its single particle is plain denoising."""
    q = QS["gaussians-2d-1,1,-1"]
    one = ps.FeynmanKac.published(particles=1, steps=25).sample(q, 40, seed=3)
    plain = ps.Denoise(steps=25, grid="equal", integrator="euler", start="noise")
    assert torch.equal(one.samples, plain.sample(q, 40, seed=3).samples)


@every
@pytest.mark.parametrize("n, bound", [(300, 1), (600, 3000)])
def test_chunks_change_no_number(sampler, n, bound):
    """Blocks are of 256 swarms here; in float64, so that reduction order cannot tip a resampling decision."""
    q = QS["gaussians-2d-1,1,-1"]
    whole = sampler.sample(q, n, seed=2, dtype=F64)
    parts = sampler.sample(q, n, seed=2, dtype=F64, max_particles=bound)
    same(whole, parts, exactly=False)
    assert parts.clipped_fraction == pytest.approx(whole.clipped_fraction, rel=1e-6)


@every
@pytest.mark.parametrize("n", [1, 300])
def test_fewer_swarms_are_a_prefix(sampler, n):
    q = QS["own-2d-1,1,-1"]
    long, short = (sampler.sample(q, count, seed=2, dtype=F64) for count in (400, n))
    for field in FIELDS:
        a, b = getattr(long, field), getattr(short, field)
        a = a[:, :n] if field == "ess" else a[:n]
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True, msg=field)


def test_large_swarms_have_other_blocks_and_still_chunk():
    q = QS["gaussians-4d-.5,.5"]
    sampler = ps.FeynmanKac(particles=3000, steps=5)  # 12,000 numbers a swarm: blocks of 2
    same(sampler.sample(q, 5, dtype=F64), sampler.sample(q, 5, dtype=F64, max_particles=3000), exactly=False)


@every
def test_float64(sampler):
    q = QS["gaussians-3d-2,-.5"]
    run = sampler.sample(q, 3, dtype=F64)
    assert run.samples.dtype == run.particles.dtype == run.log_weights.dtype == F64


def test_float64_and_float32_agree_in_law():
    """Different random numbers, the same moments: 5 standard errors of the difference, 6e-7 each."""
    q = QS["gaussians-2d-1,1,-1"]
    one, two = (
        ps.FeynmanKac(particles=8, steps=100).sample(q, 4000, dtype=d).samples.double() for d in (torch.float32, F64)
    )
    error = (one.var(0) / 4000 + two.var(0) / 4000).sqrt()
    assert bool(((one.mean(0) - two.mean(0)).abs() < 5 * error).all())


# weights, thresholds, windows
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8])
def test_a_threshold_carries_weights_and_keeps_evidence_and_moments(threshold):
    """4 swarms of 1024. Root mean square errors over six other seeds: log Z up to 0.068, moments up to 0.092; limits of
    0.25 and 0.3 are more than three of these, under 1e-3 each if the seed were free."""
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    run = ps.FeynmanKac(particles=1024, steps=400, threshold=threshold).sample(q, 4, seed=1)
    assert bool((run.log_weights != 0).any())
    mean, cov, log_z = closed_form(q)
    assert run.total_log_evidence == pytest.approx(log_z, abs=0.25)
    got_mean, got_cov = weighted_moments(run)
    scale = np.sqrt(np.diag(cov))
    assert np.abs((got_mean - mean) / scale).max() < 0.3
    assert np.abs((got_cov - cov) / np.outer(scale, scale)).max() < 0.3


def test_threshold_zero_never_resamples_and_ess_only_tells():
    q = QS["gaussians-2d-1,1,-1"]
    run = ps.FeynmanKac(particles=16, steps=50, threshold=0, start="noise").sample(q, 20)
    assert torch.equal(run.ancestors, torch.arange(16).expand(20, 16))
    torch.testing.assert_close(run.log_evidence.double(), torch.logsumexp(run.log_weights.double(), 1) - math.log(16))
    weights = torch.softmax(run.log_weights.double(), 1)
    torch.testing.assert_close(run.ess[-1].double(), 1 / weights.square().sum(1), rtol=1e-4, atol=1e-4)


def test_threshold_one_resets_weights_every_step():
    run = ps.FeynmanKac(particles=16, steps=50).sample(QS["gaussians-2d-1,1,-1"], 20)
    assert not run.log_weights.any()
    assert bool((run.unique_ancestors < 16).all())


def test_swarms_resample_by_their_own_ess():
    run = ps.FeynmanKac(particles=16, steps=50, threshold=0.5).sample(QS["gaussians-2d-1,1,-1"], 200)
    changed = (run.ancestors != torch.arange(16)).any(1)
    low = (run.ess <= 8).any(0)
    assert torch.equal(changed, low)  # resampled 16 with ESS <= 8 cannot be the identity
    assert bool(changed.any())
    assert not bool(changed.all())


def test_resampling_keeps_out_of_the_window():
    q = QS["gaussians-2d-1,1,-1"]
    never = ps.FeynmanKac(particles=16, steps=50, threshold=0).sample(q, 20)
    # (0.9905, 0.995) holds no time of the grid of 50 steps
    outside = ps.FeynmanKac(particles=16, steps=50, window=(0.9905, 0.995)).sample(q, 20)
    same(never, outside)
    early = ps.FeynmanKac(particles=16, steps=50, window=(0.5, 1.0)).sample(q, 20)
    assert bool((early.log_weights != 0).any())
    full = ps.FeynmanKac(particles=16, steps=50, window=(0.0, 1.0)).sample(q, 20)
    same(full, ps.FeynmanKac(particles=16, steps=50).sample(q, 20))


def test_a_window_keeps_the_evidence():
    """0.15 is eight times the root mean square error over six other seeds (0.018)."""
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    run = ps.FeynmanKac(particles=1024, steps=400, window=(0.1, 0.7)).sample(q, 4, seed=1)
    assert run.total_log_evidence == pytest.approx(closed_form(q)[2], abs=0.15)


@pytest.mark.parametrize("resampling", ["systematic", "stratified", "multinomial", "residual"])
def test_every_resampling_scheme_gives_the_moments(resampling):
    """8 swarms of 1024. Root mean square errors over six other seeds (log Z, mean, covariance): systematic 0.02, 0.03,
    0.02; multinomial, the noisiest, 0.05, 0.11, 0.16. The limits are three of multinomial's: under 1e-2 if seeds were
    free, far less for the others."""
    q = compose(gaussian_family(2), a=2, base=-0.5)
    run = ps.FeynmanKac(particles=1024, steps=300, resampling=resampling).sample(q, 8, seed=1)
    mean, cov, log_z = closed_form(q)
    got_mean, got_cov = weighted_moments(run)
    scale = np.sqrt(np.diag(cov))
    assert run.total_log_evidence == pytest.approx(log_z, abs=0.2)
    assert np.abs((got_mean - mean) / scale).max() < 0.35
    assert np.abs((got_cov - cov) / np.outer(scale, scale)).max() < 0.5


def test_the_kept_sample_is_not_biased_by_slot_order():
    """Systematic resampling sorts ancestors; the sample must still follow the swarm. Mean of `samples` against the
    mean of all particles over 6000 swarms: 5 standard errors, 6e-7 each."""
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    run = ps.FeynmanKac(particles=8, steps=100).sample(q, 6000, seed=1)
    gap = run.samples.double() - run.particles.double().mean(1)
    assert bool((gap.mean(0).abs() < 5 * gap.std(0) / math.sqrt(6000)).all())
    slot = (run.particles == run.samples[:, None]).all(-1).double()
    slot = (slot / slot.sum(1, keepdim=True)).mean(0)
    assert (slot - 1 / 8).abs().max().item() < 0.03


def test_the_sample_follows_the_carried_weights():
    """Without resampling the kept particle is drawn by weight: its mean against the weighted mean, 5 standard errors
    (6e-7 each)."""
    q = compose(gaussian_family(2), a=0.5, b=0.5)
    run = ps.FeynmanKac(particles=8, steps=60, threshold=0).sample(q, 6000, seed=1)
    weights = torch.softmax(run.log_weights.double(), 1)
    gap = run.samples.double() - (weights[..., None] * run.particles.double()).sum(1)
    assert bool((gap.mean(0).abs() < 5 * gap.std(0) / math.sqrt(6000)).all())
    unweighted = (run.samples.double() - run.particles.double().mean(1)).square().sum()
    assert gap.square().sum() < unweighted


# clip
def test_the_clip_is_reported_and_bounds_the_weights():
    q = QS["gaussians-2d-1,1,-1"]
    free = ps.FeynmanKac(particles=8, steps=100, threshold=0).sample(q, 50)
    assert free.clipped_fraction == 0
    tight = ps.FeynmanKac(particles=8, steps=100, threshold=0, clip=0.5).sample(q, 50)
    assert 0.05 < tight.clipped_fraction <= 1
    assert tight.log_weights.abs().max().item() <= 0.5 + 1e-5  # |g| <= 0.5 over one unit of time
    assert free.log_weights.abs().max().item() > 0.5
    wide = ps.FeynmanKac(particles=8, steps=100, threshold=0, clip=1e6).sample(q, 50)
    assert wide.clipped_fraction == 0
    same(wide, free)


@pytest.mark.filterwarnings("ignore:the last step")
def test_the_clipped_fraction_counts_rates():
    """One step to t = 0 with one particle: the fraction is the share of swarms whose |g| there exceeds the clip."""
    q = QS["gaussians-2d-1,1,-1"]
    run = ps.FeynmanKac(particles=1, steps=1, clip=0.3).sample(q, 500, dtype=F64)
    rates = q.residual(run.particles[:, 0], 1e-5)
    assert run.clipped_fraction == pytest.approx((rates.abs() > 0.3).double().mean().item(), abs=1e-6)


# ancestors
def test_the_ode_loses_diversity_and_the_sde_does_not():
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    ode, sde = (ps.FeynmanKac(particles=64, steps=100, churn=churn).sample(q, 20, seed=1) for churn in (0.0, 1.0))

    def distinct(run):
        return sum(len(swarm.unique(dim=0)) for swarm in run.particles) / 20

    assert distinct(ode) < 50  # copies never part again
    assert distinct(ode) == pytest.approx(ode.unique_ancestors.double().mean().item(), abs=1e-9)
    assert distinct(sde) > 60  # copies part at every step; only those of the last resampling coincide
    assert sde.unique_ancestors.double().mean().item() < 64


def test_ancestors_of_the_ode_name_the_start():
    """With churn 0, equal ancestors are equal points, and a swarm's points are those of the unweighted run."""
    q = compose(gaussian_family(2), a=1, b=1, base=-1)
    free = ps.FeynmanKac(particles=16, steps=50, churn=0, threshold=0).sample(q, 10, seed=1, dtype=F64)
    resampled = ps.FeynmanKac(particles=16, steps=50, churn=0).sample(q, 10, seed=1, dtype=F64)
    expected = torch.gather(free.particles, 1, resampled.ancestors.long()[..., None].expand(-1, -1, 2))
    torch.testing.assert_close(resampled.particles, expected, rtol=1e-9, atol=1e-9)


# progress
@pytest.mark.parametrize("name", ["sde", "fk", "fk threshold"])
@pytest.mark.parametrize("bound", [None, 256])
def test_progress_is_monotone_and_complete(name, bound):
    sampler, q, seen = SAMPLERS[name], QS["gaussians-2d-1,1,-1"], []
    run = sampler.sample(q, 600, max_particles=bound, progress=lambda *counts: seen.append(counts))
    dones, totals = zip(*seen)
    assert len(set(totals)) == 1
    assert list(dones) == sorted(dones)
    assert dones[-1] == totals[-1]
    same(run, sampler.sample(q, 600, max_particles=bound))


def test_samplers_are_values():
    assert ps.FeynmanKac(particles=4) == ps.FeynmanKac(particles=4)
    assert ps.FeynmanKac(particles=4) != ps.FeynmanKac(particles=5)
    assert ps.FeynmanKac.published(particles=4) != ps.FeynmanKac(particles=4)
    assert ps.FeynmanKac.published().clip == 15
    assert hash(ps.Denoise()) == hash(ps.Denoise())
    run = ps.FeynmanKac(particles=2, steps=12).sample(QS["single"], 2)
    with pytest.raises((AttributeError, TypeError)):
        run.samples = 0


def narrow(deviation, **others):
    return ps.Family({"a": ps.Gaussian(cov=[deviation**2, 1.0]), "b": ps.Gaussian(cov=1.0)} | others)


OLD = {"grid": "equal", "integrator": "euler", "start": "noise"}


@pytest.mark.parametrize(
    "how", [{}, OLD, {"integrator": "frozen"}, {"churn": 0.0}], ids=["default", "0.2.0", "frozen", "ode"]
)
@pytest.mark.parametrize("deviation", [1.0, 0.056, 0.008])
@pytest.mark.parametrize("schedule", ["VP", "Cosine", "LinearFlow", "DDPM-zero-snr"])
def test_steps_that_are_too_coarse_are_warned_of_and_the_warning_says_by_how_much(schedule, deviation, how):
    """4000 samples: the variance ratio has a standard error of 2.2 %; the limits are beyond four of them, 1 in 10^4."""
    q = ps.Family({"a": ps.Gaussian(cov=[deviation**2])}, SCHEDULES[schedule])["a"]

    def ratio(steps):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            samples = ps.Denoise(steps=steps, **how).sample(q, 4000, seed=0).samples.double()
        found = [str(w.message) for w in caught if "fine enough" in str(w.message)]
        return samples.var().item() / deviation**2, found

    for steps in (10, 40, 160):
        got, told = ratio(steps)
        if told:
            said = float(re.search(r"with ([\d.e+-]+) times its variance", told[0]).group(1))
            assert got == pytest.approx(said, rel=0.1)
            enough = int(re.search(r"steps=(\d+)", told[0]).group(1))
            if enough <= 1000:
                assert ratio(enough)[0] == pytest.approx(1, abs=0.2) and not ratio(enough)[1]
        else:
            assert got == pytest.approx(1, abs=0.2)


def test_a_hundred_steps_of_the_default_resolve_what_five_hundred_equal_ones_did_not():
    for deviation in (0.028, 0.008, 1e-3, 1e-5):
        q = ps.Family({"a": ps.Gaussian(cov=[deviation**2])})["a"]
        variance = ps.Denoise().sample(q, 4000).samples.double().var().item()
        assert variance / deviation**2 == pytest.approx(1, abs=0.1)  # standard error 2.2 %, bias 1 %: 1 in 10^4
        with pytest.warns(DegeneracyWarning, match="fine enough"):
            ps.Denoise(steps=200, **OLD).sample(q, 4)


def test_the_narrowest_part_is_that_of_the_composition():
    p = narrow(0.02)  # two such factors together are narrower, and a denominator does not widen them
    for q in (p["a"] ** 2, p["a"] ** 2 / p["b"]):
        with pytest.warns(DegeneracyWarning, match=r"deviation 0\.014"):
            ps.Denoise(steps=10).sample(q, 4)


def test_a_deviation_that_numbers_cannot_tell_is_warned_of():
    far = ps.Family({"a": ps.Gaussian([1000.0, 0.0], cov=[1e-8, 1.0])})["a"]
    with pytest.warns(DegeneracyWarning, match="float64"):
        ps.Denoise(steps=50).sample(far, 4)
    samples = ps.Denoise().sample(far, 4000, dtype=torch.float64).samples
    assert samples[:, 0].var().item() == pytest.approx(1e-8, rel=0.15)


def test_a_path_that_is_improper_between_proper_ends_is_warned_of():
    """Precisions at alpha^2 = 1, 0.5, 0: 0.2/0.01 + 1/9 - 0.9/0.05 = 2.1; 0.4 + 0.2 - 1.7 < 0; W = 0.3."""
    p = ps.Family({"a": ps.Gaussian(cov=0.01), "b": ps.Gaussian(cov=9.0), "base": ps.Gaussian(cov=0.05)})
    q = compose(p, a=0.2, b=1, base=-0.9)
    assert q.validity(0.0).proper
    assert q.validity(1.0).proper
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ps.FeynmanKac(particles=2, steps=5).sample(q, 2)
    assert any(issubclass(w.category, DegeneracyWarning) and "improper at t" in str(w.message) for w in caught)


def test_degenerate_weights_are_warned_of():
    q = compose(gaussian_family(6), a=6, b=6)
    with pytest.warns(DegeneracyWarning, match="effective sample size"):
        run = ps.FeynmanKac(particles=16, steps=50, threshold=0).sample(q, 5)
    assert run.ess.amin(0).median().item() < 1.5


def outward(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The score of a standard normal near the data; farther out, as networks may, it points away."""
    return torch.where(x.norm(dim=-1, keepdim=True) < 3.5, -x, 4 * x)


@pytest.mark.filterwarnings("ignore:sources of unknown size")
def test_samples_that_run_away_are_warned_of():
    q = ps.Family({"a": ps.Learned(outward, (2,), ps.VP(), "score")})["a"]
    with pytest.warns(DegeneracyWarning, match=r"\d of 2000 are over 30 times as far from the middle"):
        run = ps.Denoise(steps=100).sample(q, 2000, seed=3)
    far = run.samples.norm(dim=1) > 30 * run.samples.norm(dim=1).median()
    assert run.strays == far.sum() > 0


@pytest.mark.parametrize("count", [2, 3, 19, 5000])
def test_samples_that_stay_are_no_strays(count):
    """A Gaussian of scales 1 and 1000, and a mixture with a part 20 deviations away; too few samples are not judged."""
    wide = ps.Gaussian(torch.zeros(2), torch.diag(torch.tensor([1.0, 1e6])))
    apart = ps.Mixture([[0.0, 0.0], [20.0, 0.0]], cov=1.0, weights=[0.95, 0.05])
    for law in (wide, apart):
        x = law.sample(count, seed=1)
        blank, none = torch.zeros(count, 1), torch.zeros(0)
        run = ps.Run(x, x[:, None], blank, blank[:, 0], blank[:, 0], none, none, blank.int(), 0.0)
        assert run.strays == 0
        run.warn_if_degenerate()


def test_a_far_part_of_a_closed_form_is_no_stray():
    law = ps.Mixture([[0.0, 0.0], [4.0, 0.0]], cov=0.0025, weights=[0.7, 0.3])
    run = ps.Denoise(steps=300).sample(ps.Family({"a": law})["a"], 1000, seed=1)
    assert (run.samples[:, 0] > 2).sum() > 100 and run.arithmetic == "closed form" and run.strays == 0
