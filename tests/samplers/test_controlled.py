"""Variance-controlled proposals: nothing left to weigh on Gaussians, unbiased evidence on anything."""

import math

import pytest
import torch

import polyscore as ps
from polyscore.paper.settings import setting
from polyscore.samplers import build_sampler, describe, step
from polyscore.samplers.controlled import _advanced, _best
from polyscore.samplers.plan import Coefficients, make_plan


def rotated(variances, angle):
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=torch.float64)
    return turn @ torch.diag(torch.tensor(variances, dtype=torch.float64)) @ turn.T


def gaussians() -> ps.Family:
    return ps.Family({
        "a": ps.Gaussian(mean=[1.0, -0.5, 0.2], cov=rotated([3.0, 0.5, 1.0], 0.4)),
        "b": ps.Gaussian(mean=[-0.5, 0.3, 0.0], cov=rotated([0.6, 2.0, 0.7], 1.0)),
        "base": ps.Gaussian(mean=[0.2, 0.0, 0.1], cov=rotated([2.5, 2.0, 1.5], 0.1)),
    })  # fmt: skip


@pytest.mark.parametrize("expression", ["a * b / base", "a^0.7 * b^0.5", "a^1.3 * b * base^-0.6"])
def test_gaussian_compositions_leave_nothing_to_weigh(expression):
    """Non-commuting covariances, W = 1, 1.2 and 1.7. Moments of 3000 draws: 5 standard errors, one alarm in 10^5."""
    q = ps.parse(expression, gaussians())
    run = ps.Controlled(particles=4, bumps=0, pilot=1024).sample(q, 3000, seed=1)
    exact = ps.exact(q)
    assert run.lowest_ess.min() > 3.9
    assert abs(run.total_log_evidence - exact.log_evidence) < 0.01
    x, truth = run.samples.double(), exact.sample(200_000, seed=2).double()
    error = truth.std(0) / math.sqrt(3000)
    assert bool(((x.mean(0) - truth.mean(0)).abs() < 5 * error).all())
    torch.testing.assert_close(x.T.cov(), truth.T.cov(), rtol=0.15, atol=0.1 * truth.var().item())


@pytest.mark.parametrize(("deviation", "power"), [(30.0, 2.0), (4.0, 2.0), (1e-3, 0.5)])
def test_wide_and_narrow_gaussians_keep_their_size_at_powers(deviation, power):
    """N(0, v I)^W in three dimensions is N(0, v I / W), in the default steps. 12,000 numbers: 5 standard errors and
    5 %, an alarm in 10^6; log Z to 0.03. By Euler's rule the variance was 0.62 and 0.83 of that, and log Z 0.15 off."""
    q = ps.Family({"a": ps.Gaussian(cov=[deviation**2] * 3)})["a"] ** power
    run = ps.Controlled(4, bumps=0, pilot=1024).sample(q, 4000, seed=1)
    variance = run.samples.double().square().mean().item()
    assert abs(variance * power / deviation**2 - 1) < 5 * math.sqrt(2 / 12_000) + 0.05
    assert abs(run.total_log_evidence - ps.exact(q).log_evidence) < 0.03


# Few particles on purpose.
@pytest.mark.filterwarnings("ignore:(K|swarms|weight) should")
def test_far_mixtures_need_a_quarter_of_the_particles():
    """At K = 4 two in a hundred swarms end in a wrong mode; a control takes most of that away."""
    q = ps.base_composition(setting("mixture-ood"))
    reference = ps.exact(q).sample(2000, seed=1)
    plain, controlled = (
        ps.sliced_wasserstein(sampler.sample(q, 2000, seed=0).samples, reference, projections=200)
        for sampler in (ps.FeynmanKac(4), ps.Controlled(4, pilot=2048))
    )
    assert controlled < 0.5 * plain


@pytest.mark.filterwarnings("ignore:(K|swarms|weight) should")
def test_evidence_stays_unbiased_on_mixtures():
    """Mean of 4000 swarms of 2 within 5 standard errors and the time step's 0.5 %: an alarm in 10^6 by chance."""
    q = ps.parse("a1 * a2 / base", setting("mixture-id"))
    run = ps.Controlled(2, steps=200, bumps=12, pilot=1024).sample(q, 4000, seed=3)
    ratio = (run.log_evidence.double() - ps.exact(q).log_evidence).exp()
    error = ratio.std().item() / math.sqrt(len(ratio))
    assert abs(ratio.mean().item() - 1) < 5 * error + 0.005


def test_swarms_do_not_depend_on_the_others_nor_the_pilot_on_the_seed():
    q = ps.base_composition(gaussians())
    sampler = ps.Controlled(2, steps=20, pilot=64)
    whole, first = sampler.sample(q, 5000, seed=7), sampler.sample(q, 50, seed=7)
    torch.testing.assert_close(whole.samples[:50], first.samples, rtol=1e-4, atol=1e-4)
    assert not torch.equal(sampler.sample(q, 50, seed=8).samples, first.samples)


@pytest.mark.parametrize("basis", ["affine", "diagonal", "scalar"])
def test_every_basis_samples_learned_scores_of_any_shape(basis):
    """Points of shape (2, 2) whose exact scores come from a function: closed-form moments within five errors."""

    def noise(x, t):
        alpha, sigma = ps.VP().alpha(t), ps.VP().sigma(t)
        shape = (-1, *([1] * (x.ndim - 1)))
        alpha, sigma = alpha.reshape(shape), sigma.reshape(shape)
        return sigma * (x - 0.5 * alpha) / (alpha**2 * 0.8 + sigma**2)

    p = ps.Family({"a": ps.Learned(noise, (2, 2), ps.VP())})
    run = ps.Controlled(2, steps=30, basis=basis, bumps=0, pilot=64).sample(p["a"] ** 1.5, 800, seed=0)
    assert run.samples.shape == (800, 2, 2)
    assert abs(run.samples.mean().item() - 0.5) < 5 * math.sqrt(0.8 / 1.5 / 3200)
    assert abs(run.samples.var().item() / (0.8 / 1.5) - 1) < 5 * math.sqrt(2 / 3200) + 0.02


def test_steps_whose_weights_do_not_count_are_not_steered():
    """A drift there would move the target: of learned scores the last steps count for nothing."""
    p = ps.Family({"a": ps.Learned(lambda x, t: x, (2,), ps.VP())})
    plan = make_plan(p["a"] ** 1.5, ps.Controlled(2, steps=20, pilot=64), 0, torch.empty(0), history=False)
    counts = (
        plan.scalars[:-1, Coefficients._fields.index("left")] + plan.scalars[:-1, Coefficients._fields.index("right")]
    )
    sizes = sum(plan.tables[name][:20].abs().flatten(1).sum(1) for name in ("matrix", "shift", "pushes"))
    assert torch.equal(sizes > 0, counts > 0) and 0 < int((counts == 0).sum()) < 10


def test_a_drift_is_held_to_one_deviation_of_the_swarm_a_step():
    q = ps.base_composition(gaussians())
    state = step.begin(make_plan(q, ps.FeynmanKac(256, steps=20), 0, torch.empty(0), history=False), 0, 1)
    x = state.x[0]
    control = _best(state, "affine", 0, 1e6, torch.Generator().manual_seed(0))
    moved = 1e6 * control.drift(x) / x.std(0, correction=0)
    assert moved.square().mean().sqrt().item() == pytest.approx(1.0, rel=1e-3)


def test_the_pilot_pays_for_the_drift_that_it_follows():
    """Of Gaussians nothing is left to weigh in it either; a pilot that moved for nothing would take others for its."""
    plan = make_plan(ps.base_composition(gaussians()), ps.FeynmanKac(256, steps=40, threshold=0.01), 0, torch.empty(0),
                     history=False)  # fmt: skip
    streams = {
        name: plan.stream(name, draw.shape, 0, 1, draw.normal) for name, draw in plan.sampler.draws(plan.q).items()
    }
    state = step.begin(plan, 0, 1)
    for i, length in enumerate(plan.clock.lengths.tolist()):
        control = _best(state, "affine", 0, length, torch.Generator().manual_seed(0))
        state = _advanced(plan, state, control, i, {name: draw(i) for name, draw in streams.items()})
    assert state.log_weights.std() < 0.05 and abs(state.log_weights.mean()) > 0.2


def test_weights_of_the_steps_are_calmed_by_the_control_of_the_rate():
    """Discrete weights have no rate of their own: without one the pilot would find no drift at all."""
    q = ps.base_composition(gaussians())
    plan = make_plan(q, ps.Controlled(2, steps=20, pilot=64, quadrature="discrete"), 0, torch.empty(0), history=False)
    assert bool((plan.tables["matrix"][:20].abs().flatten(1).sum(1) > 0).any())


def test_it_can_be_written_down_and_read():
    sampler = ps.Controlled(8, bumps=5, pilot=128)
    assert build_sampler(describe(sampler)) == sampler
    for bad in ({"basis": "round"}, {"bumps": -1}, {"bumps": 1001}, {"pilot": 3}, {"pilot_seed": 0.5}):
        with pytest.raises(ValueError, match="must"):
            ps.Controlled(8, **bad)


@pytest.mark.parametrize("options", [{"bumps": 1000}, {"basis": "affine"}])
def test_a_drift_that_does_not_fit_into_memory_is_refused_before_its_pilot(options):
    p = ps.Family({name: ps.Gaussian(dim=2000) for name in ("a", "b")})
    with pytest.raises(
        ps.errors.PolyscoreError, match=r"a drift of \d+ numbers, found by 64 particles, must fit into memory"
    ):
        ps.Controlled(4, steps=5, pilot=64, **options).sample(p["a"] * p["b"], 2)


@pytest.mark.filterwarnings("ignore::polyscore.errors.PolyscoreWarning")
def test_conditions_too_far_apart_for_a_number_are_no_crash():
    p = ps.Family({"a": ps.Gaussian(mean=[1e25, 0]), "b": ps.Gaussian(mean=[-1e25, 0]), "base": ps.Gaussian(dim=2)})
    with pytest.raises(ps.errors.PolyscoreError, match="must be finite"):
        ps.FeynmanKac(2, steps=20).sample(p["a"] * p["b"] / p["base"], 4)
