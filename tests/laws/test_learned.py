"""Learned members: what any model predicts becomes the right score, and joins the algebra like a closed form.

The exact predictions are built here from a posterior mean in plain NumPy, so a wrong sign or scale in an adapter shows.
"""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import polyscore as ps
from cases import DISTRIBUTIONS, F64, SCHEDULES, compose
from polyscore.errors import ArgumentError, CompositionError, PolyscoreError, ScoreError
from polyscore.models.learned import PREDICTIONS, ModelError, asking, to_score
from polyscore.models.network import Network
from polyscore.models.units import Units
from training.networks import build

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
every_prediction = pytest.mark.parametrize("prediction", ["eps", "x0", "v", "velocity", "score"])
SOME = [
    "gaussian-1",
    "gaussian-2-diagonal",
    "gaussian-3-full",
    "gaussian-4-full",
    "mixture-1",
    "mixture-2-own",
    "mixture-5-own",
]
every_distribution = pytest.mark.parametrize("part", [DISTRIBUTIONS[name] for name in SOME], ids=SOME)


def posterior_mean(part, x, alpha, sigma):
    """E[x_0 | x_t = x] of a Gaussian or mixture, row by row in NumPy; alpha and sigma (n,)."""
    x, alpha, sigma = (np.asarray(v, dtype=np.float64) for v in (x, alpha, sigma))
    if isinstance(part, ps.Gaussian):
        means, covs, weights = part.mean.numpy()[None], part.cov.numpy()[None], np.ones(1)
    else:
        means, covs, weights = part.means.numpy(), part.components.covariances.numpy(), part.weights.numpy()
    dim, out = x.shape[1], np.empty_like(x)
    for i in range(len(x)):
        logs, centres = [], []
        for mean, cov, weight in zip(means, covs, weights, strict=True):
            marginal = alpha[i] ** 2 * cov + sigma[i] ** 2 * np.eye(dim)
            gap = x[i] - alpha[i] * mean
            solved = np.linalg.solve(marginal, gap)
            logs.append(math.log(weight) - 0.5 * gap @ solved - 0.5 * np.linalg.slogdet(marginal)[1])
            centres.append(mean + alpha[i] * cov @ solved)
        shares = np.exp(np.array(logs) - max(logs))
        out[i] = shares / shares.sum() @ np.array(centres)
    return torch.from_numpy(out)


def slopes(schedule, t):
    """alpha' and sigma' by autograd: the velocity of the path, told by the marginals alone."""
    out = []
    for law in (schedule.alpha, schedule.sigma):
        time = t.clone().requires_grad_()
        out.append(torch.autograd.grad(law(time).sum(), time)[0])
    return out


def exact_prediction(prediction, part, schedule, x, t):
    """What a perfect model returns at flat x (n, d), t (n,)."""
    alpha, sigma = schedule.alpha(t)[:, None], schedule.sigma(t)[:, None]
    x0 = posterior_mean(part, x, alpha[:, 0], sigma[:, 0])
    eps = (x - alpha * x0) / sigma
    rise_alpha, rise_sigma = (slope[:, None] for slope in slopes(schedule, t))
    return {
        "eps": eps,
        "x0": x0,
        "v": alpha * eps - sigma * x0,
        "velocity": rise_alpha * x0 + rise_sigma * eps,
        "score": -eps / sigma,
    }[prediction]


def random_points(n, dim, seed, scale=1.5):
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(n, dim, generator=generator, dtype=F64)
    return x, 0.03 + 0.95 * torch.rand(n, generator=generator, dtype=F64)


@every_prediction
@every_distribution
def test_every_prediction_becomes_the_exact_score(prediction, part):
    dim = part.event[0]
    x, t = random_points(6, dim, seed=1)
    swarms = x.view(2, 3, dim)
    for name, schedule in SCHEDULES.items():

        def model(x, t, schedule=schedule):
            return exact_prediction(prediction, part, schedule, x, t)

        def exact(x, times, schedule=schedule):
            return torch.stack([part.score(a, schedule.alpha(s), schedule.sigma(s)) for a, s in zip(x, times)])

        learned = ps.Learned(model, (dim,), schedule, prediction)

        def check(got, want, name=name):
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-7, msg=lambda text: f"{name}: {text}")

        check(learned.score(x, t), exact(x, t))
        # One time for all, swarms of particles, one point alone, and a time a swarm.
        at_once = exact(x, t[:1].expand(6))
        check(learned.score(x, t[0]), at_once)
        check(learned.score(swarms, t[0]), at_once.view(2, 3, dim))
        check(learned.score(x[0], t[0]), at_once[0])
        check(learned.score(swarms, t[:2, None]), exact(swarms, t[:2]))


@every_schedule
@every_prediction
def test_predictions_of_images_become_scores(schedule, prediction):
    event = (3, 4, 4)
    part = ps.Gaussian(mean=np.linspace(-1, 1, 48), cov=np.linspace(0.3, 2, 48))

    def model(x, t):
        assert x.shape[1:] == event
        assert t.shape == x.shape[:1]
        return exact_prediction(prediction, part, schedule, x.flatten(1), t).view_as(x)

    x, t = random_points(4, 48, seed=2)
    learned = ps.Learned(model, event, schedule, prediction)
    exact = torch.stack([part.score(a, schedule.alpha(s), schedule.sigma(s)) for a, s in zip(x, t, strict=True)])
    torch.testing.assert_close(learned.score(x.view(4, *event), t), exact.view(4, *event), rtol=1e-7, atol=1e-7)
    got = learned.score(x.view(2, 2, *event), t[1])
    exact = part.score(x, schedule.alpha(t[1]), schedule.sigma(t[1]))
    torch.testing.assert_close(got, exact.view(2, 2, *event), rtol=1e-7, atol=1e-7)


def test_image_families_compose_and_sample():
    event, schedule = (3, 4, 4), ps.VP()
    parts = {"a": ps.Gaussian(cov=0.5, dim=48), "b": ps.Gaussian(mean=np.ones(48), cov=1.0)}

    def member(part):
        def x0(x, t):
            flat, time = x.flatten(1).double(), t.double()
            return posterior_mean(part, flat, schedule.alpha(time), schedule.sigma(time)).view_as(x).to(x)

        return ps.Learned(x0, event, schedule, "x0")

    q = compose(ps.Family({name: member(part) for name, part in parts.items()}), a=0.5, b=0.5)
    flat = compose(ps.Family(parts, schedule), a=0.5, b=0.5)
    sampler = ps.FeynmanKac(particles=2, steps=4, grid="equal", start="noise")
    got, want = (sampler.sample(each, 3, seed=0) for each in (q, flat))
    assert got.samples.shape == (3, *event)
    torch.testing.assert_close(got.particles.flatten(2), want.particles, rtol=1e-3, atol=1e-3)


@every_schedule
def test_to_score_agrees_over_predictions_on_any_vectors(schedule):
    """Not only on exact models: the same (x0, eps) told five ways gives one score."""
    x0, eps = (torch.randn(50, 3, generator=torch.Generator().manual_seed(s), dtype=F64) for s in (3, 4))
    t = torch.linspace(0.02, 0.98, 50, dtype=F64)
    alpha, sigma = schedule.alpha(t)[:, None], schedule.sigma(t)[:, None]
    x = alpha * x0 + sigma * eps
    rise_alpha, rise_sigma = (slope[:, None] for slope in slopes(schedule, t))
    told = {
        "eps": eps,
        "x0": x0,
        "v": alpha * eps - sigma * x0,
        "velocity": rise_alpha * x0 + rise_sigma * eps,
        "score": -eps / sigma,
    }
    assert set(told) == set(PREDICTIONS)
    for prediction, value in told.items():
        got = to_score(prediction, value, x, t[:, None], schedule)
        torch.testing.assert_close(got, -eps / sigma, rtol=1e-7, atol=1e-7, msg=prediction)


def test_scores_stay_finite_at_both_ends_of_time():
    for schedule in SCHEDULES.values():
        for prediction in PREDICTIONS:
            model = ps.Learned(lambda x, t: x * 0.5, (2,), schedule, prediction)
            for t in (0.0, 1.0):
                assert bool(model.score(torch.ones(3, 2), torch.tensor(t)).isfinite().all()), (schedule, prediction, t)


@pytest.mark.parametrize("schedule", [ps.DDPM(), ps.DDPM(zero_snr=True), ps.DDPM(timesteps=200, beta_end=0.06)])
def test_a_discrete_model_gets_the_index_of_its_timestep(schedule):
    seen = []

    def model(x, index):
        seen.append(index.clone())
        return torch.zeros_like(x)

    learned = ps.Learned(model, (2,), schedule, discrete=True)
    indices = torch.arange(0, schedule.timesteps, 7)
    learned.score(torch.zeros(len(indices), 2, dtype=F64), (indices.to(F64) + 1) / schedule.timesteps)
    assert torch.equal(seen[-1], indices)
    assert seen[-1].dtype == torch.long
    assert seen[-1].shape == (len(indices),)
    learned.score(torch.zeros(len(indices), 2), ((indices + 1) / schedule.timesteps).float())
    assert torch.equal(seen[-1], indices)
    for t, index in ((0.0, 0), (1.0, schedule.timesteps - 1)):
        learned.score(torch.zeros(3, 2), torch.tensor(t))
        assert seen[-1].tolist() == [index] * 3
    # The index belongs to the noise level: the table's alpha there is the schedule's at t, to the order of a step.
    t = (indices.to(F64) + 1) / schedule.timesteps
    assert (schedule.table()[indices] - schedule.alpha(t)).abs().max() < 0.01


def test_a_continuous_model_on_ddpm_gets_t():
    seen = []
    model = ps.Learned(lambda x, t: seen.append(t) or torch.zeros_like(x), (2,), ps.DDPM())
    model.score(torch.zeros(3, 2, dtype=F64), torch.tensor(0.3, dtype=F64))
    assert seen[0].tolist() == [0.3] * 3


@pytest.mark.parametrize("schedule", [ps.VP(), ps.Cosine(), ps.LinearFlow()], ids=str)
def test_a_discrete_model_needs_a_discrete_schedule(schedule):
    with pytest.raises(PolyscoreError, match="DDPM"):
        ps.Learned(lambda x, t: x, (2,), schedule, discrete=True)


class Analytic(nn.Module):
    """A plain module with a parameter, exact for N(0, c I) in noise prediction."""

    def __init__(self, c, schedule):
        super().__init__()
        self.c, self.schedule = nn.Parameter(torch.tensor(float(c))), schedule

    def forward(self, x, t):
        alpha, sigma = self.schedule.alpha(t)[:, None], self.schedule.sigma(t)[:, None]
        return sigma * x / (alpha**2 * self.c + sigma**2)


def test_a_module_a_function_and_a_discrete_model_join_one_family():
    schedule = ps.DDPM()

    def function(x, t):
        return x / (schedule.alpha(t) ** 2 * 3 + schedule.sigma(t) ** 2)[:, None]

    def discrete(x, index):
        assert index.dtype == torch.long
        alpha = schedule.table().to(x)[index][:, None]
        sigma = (1 - alpha**2).sqrt()
        x0 = alpha * 5 * x / (alpha**2 * 5 + sigma**2)
        return alpha * (x - alpha * x0) / sigma - sigma * x0

    p = ps.Family(
        {
            "module": ps.Learned(Analytic(2, schedule), (2,), schedule),
            "function": ps.Learned(lambda x, t: -function(x, t), (2,), schedule, "score"),
            "discrete": ps.Learned(discrete, (2,), schedule, "v", discrete=True),
            "exact": ps.Gaussian(cov=7.0),
        }
    )
    assert p.schedule == schedule
    same = ps.Family(
        {"module": ps.Gaussian(cov=2.0), "function": ps.Gaussian(cov=3.0), "discrete": ps.Gaussian(cov=5.0),
         "exact": ps.Gaussian(cov=7.0)}, schedule=schedule,
    )  # fmt: skip
    exponents = {"module": 1.0, "function": 0.5, "discrete": 0.5, "exact": -1.0}
    q, reference = ps.Composition(p, exponents), ps.Composition(same, exponents)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    t = torch.tensor(0.4, dtype=F64)
    # The discrete table and its continuous limit differ by the order of one timestep.
    torch.testing.assert_close(q.score(x, t), reference.score(x, t), rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(q.residual(x, t), reference.residual(x, t), rtol=2e-2, atol=2e-2)
    run = ps.FeynmanKac(particles=4, steps=10).sample(q, 8, seed=0)
    assert bool(run.samples.isfinite().all())
    assert not run.samples.requires_grad
    for text in ("module * function / exact", "(module * discrete)^0.5"):
        assert bool(ps.parse(text, p).score(x, t).isfinite().all())


SOME_SCHEDULES = [ps.VP(), ps.VP(0.5, 16.0), ps.Cosine(), ps.LinearFlow(), ps.DDPM(zero_snr=True)]


@pytest.mark.parametrize("one", SOME_SCHEDULES, ids=str)
@pytest.mark.parametrize("two", SOME_SCHEDULES, ids=str)
def test_checkpoints_of_two_schedules_refuse_and_name_both(one, two):
    members = {"first": ps.Learned(lambda x, t: x, (2,), one), "second": ps.Learned(lambda x, t: x, (2,), two)}
    if one == two:
        assert ps.Family(members).schedule == one
        return
    with pytest.raises(CompositionError) as caught:
        ps.Family(members)
    for name in ("second", str(one), str(two)):
        assert name in str(caught.value)
    with pytest.raises(CompositionError) as caught:
        ps.Family({"first": members["first"]}, schedule=two)
    for name in ("first", str(one), str(two)):
        assert name in str(caught.value)
    with pytest.raises(CompositionError) as caught:
        ps.Ensemble(list(members.values()))
    for name in (str(one), str(two)):
        assert name in str(caught.value)


def test_closed_forms_take_the_schedule_of_learned_members():
    p = ps.Family({"exact": ps.Gaussian(), "learned": ps.Learned(lambda x, t: x, (2,), ps.Cosine())})
    assert p.schedule == ps.Cosine()


@pytest.mark.parametrize(
    "model", [lambda x, t: x[:, :1], lambda x, t: torch.cat([x, x], -1), lambda x, t: x.sum(), lambda x, t: x[:-1]]
)
def test_a_model_of_the_wrong_shape_is_told_so(model):
    learned = ps.Learned(model, (2,), ps.VP())
    with pytest.raises(CompositionError, match=r"\(4, 2\)"):
        learned.score(torch.zeros(4, 2), torch.tensor(0.5))
    with pytest.raises(CompositionError, match="like x"):
        ps.Denoise(steps=3).sample(ps.Family({"a": learned})["a"], 4)


def test_a_model_that_returns_no_tensor_is_told_so():
    """diffusers' own U-Nets return an object with `.sample`: the commonest mistake of all."""
    learned = ps.Learned(lambda x, t: (x,), (2,), ps.VP())
    with pytest.raises(PolyscoreError, match=r"must return a tensor; got tuple.*\.sample, or \[0\]"):
        learned.score(torch.zeros(4, 2), torch.tensor(0.5))


def _fails(x, t):
    return x @ torch.ones(3, 3).to(x)


class _Odd:
    """A score model of one's own that answers in another shape."""

    event, schedule = (2,), ps.VP()

    def score(self, x, t):
        return x[..., :1] if self.cut else {}["nothing"]

    def __init__(self, cut):
        self.cut = cut


def test_a_model_that_fails_is_named_with_what_it_was_given():
    p = ps.Family({"fine": ps.Gaussian(), "broken": ps.Learned(_fails, (2,), ps.VP())})
    parts = ["condition 'broken'", r"x \(4, 2\) torch.float32", r"t \(4,\)", r"event \(2,\)", "RuntimeError"]
    for ask in (
        lambda: (p["fine"] * p["broken"]).score(torch.zeros(4, 2), 0.5),
        lambda: p["broken"].residual(torch.zeros(4, 2), 0.5),
        lambda: ps.Denoise(steps=2).sample(p["broken"], 4),
    ):
        with pytest.raises(CompositionError, match=".*".join(parts)) as caught:
            ask()
        assert type(caught.value.__cause__) is RuntimeError
    inside = ps.Family({"several": ps.Ensemble([ps.Learned(_fails, (2,), ps.VP())])})
    with pytest.raises(CompositionError, match="condition 'several'") as caught:
        inside["several"].score(torch.zeros(4, 2), 0.5)
    assert type(caught.value.__cause__) is RuntimeError
    for model in (lambda x, t: x[:, :1], lambda x, t: (x,)):  # no exception of its own: the shape is the news
        wrong = ps.Family({"thin": ps.Learned(model, (2,), ps.VP())})
        with pytest.raises(CompositionError, match=r"condition 'thin': a model must return a tensor.*\(4, 2\)"):
            wrong["thin"].score(torch.zeros(4, 2), 0.5)
    for cut, kind in ((False, KeyError), (True, type(None))):
        with pytest.raises(CompositionError, match="condition 'odd'") as caught:
            ps.Family({"odd": _Odd(cut)})["odd"].score(torch.zeros(4, 2), 0.5)
        assert type(caught.value.__cause__) is kind


def test_memory_that_runs_out_inside_a_model_stays_what_it_is():
    """Samplers halve their chunks on it."""

    def hungry(x, t):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        ps.Family({"a": ps.Learned(hungry, (2,), ps.VP())})["a"].score(torch.zeros(4, 2), 0.5)


def test_a_long_complaint_of_a_model_is_cut():
    def verbose(x, t):
        raise RuntimeError("no " * 10_000)

    with pytest.raises(CompositionError) as caught:
        ps.Family({"a": ps.Learned(verbose, (2,), ps.VP())})["a"].score(torch.zeros(4, 2), 0.5)
    assert len(str(caught.value)) < 1500


def test_bad_arguments_of_learned():
    with pytest.raises(PolyscoreError, match="callable"):
        ps.Learned(3, (2,), ps.VP())
    with pytest.raises(PolyscoreError, match="epsilon"):
        ps.Learned(lambda x, t: x, (2,), ps.VP(), "epsilon")
    with pytest.raises(PolyscoreError, match=r"ps\.Learned"):
        ps.Family({"a": nn.Linear(2, 2)})


def test_a_learned_member_with_a_bad_score_is_named():
    bad = ps.Learned(lambda x, t: torch.where(t[:, None] < 0.5, x / 0, x), (2,), ps.VP())
    p = ps.Family({"good": ps.Learned(lambda x, t: x, (2,), ps.VP()), "broken": bad})
    with pytest.raises(ScoreError, match="broken"):
        ps.FeynmanKac(particles=2, steps=20).sample(p["good"] * p["broken"], 3)


def random_models(count, dim, schedule):
    """Linear noise predictors with a time, as functions and as NumPy twins."""
    maps = [np.random.default_rng(s).normal(size=(dim, dim)) for s in range(count)]
    models = [ps.Learned(lambda x, t, m=m: x @ torch.from_numpy(m).to(x) + t[:, None], (dim,), schedule) for m in maps]

    def twin(x, t):
        sigma = schedule.sigma(torch.tensor(t, dtype=F64)).item()
        return np.stack([-(x @ m + t) / sigma for m in maps])

    return models, twin


@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_ensemble_is_the_mean_and_its_spread(count):
    models, twin = random_models(count, 3, ps.VP())
    ensemble = ps.Ensemble(models)
    x = np.random.default_rng(9).normal(size=(7, 3))
    scores = twin(x, 0.3)
    tensor, t = torch.from_numpy(x), torch.tensor(0.3, dtype=F64)
    np.testing.assert_allclose(ensemble.scores(tensor, t).numpy(), scores, rtol=1e-10)
    np.testing.assert_allclose(ensemble.score(tensor, t).numpy(), scores.mean(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ensemble.spread(tensor, t).numpy(), scores.std(0), rtol=1e-9, atol=1e-12)
    assert ensemble.event == (3,)


@pytest.mark.filterwarnings("ignore:weight should be shared")  # of random networks in five steps
def test_an_ensemble_joins_a_family_and_nests():
    models, twin = random_models(4, 2, ps.Cosine())
    inner = ps.Ensemble([ps.Ensemble(models[:2]), ps.Ensemble(models[2:])])
    p = ps.Family({"a": inner, "b": models[0], "exact": ps.Gaussian()})
    assert p.schedule == ps.Cosine()
    x = np.random.default_rng(9).normal(size=(7, 2))
    t = torch.tensor(0.6, dtype=F64)
    np.testing.assert_allclose(p["a"].score(torch.from_numpy(x), t).numpy(), twin(x, 0.6).mean(0), rtol=1e-9)
    run = ps.FeynmanKac(particles=3, steps=5).sample(p["a"] * p["b"] / p["exact"], 4)
    assert run.samples.shape == (4, 2)


def test_an_ensemble_needs_members_of_one_shape():
    with pytest.raises(PolyscoreError, match="at least one model"):
        ps.Ensemble([])
    one, two = (ps.Learned(lambda x, t: x, (dim,), ps.VP()) for dim in (2, 3))
    with pytest.raises(PolyscoreError, match=r"one shape; got \[\(2,\), \(3,\)\]"):
        ps.Ensemble([one, two])


def test_moving_a_family_moves_its_modules():
    """On the device "meta", which every machine has."""
    plain, inside = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def wrapped(module):
        return ps.Learned(lambda x, t: module(x), (2,), ps.VP())

    own = [ps.Learned(_Timeless(module), (2,), ps.VP()) for module in (plain, inside)]
    p = ps.Family({"a": own[0], "b": ps.Ensemble([own[1]]), "c": wrapped(torch.nn.Linear(2, 2)), "d": ps.Gaussian()})
    assert p.device == torch.device("cpu")
    assert p.to("meta") is p and p.device == torch.device("meta")
    assert plain.weight.device == inside.weight.device == torch.device("meta")


class _Timeless(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, t):
        return self.inner(x)


# ---- Coordinates, precision, discrete timesteps --------------------------------------------------------------------


def _network(units=None, seed=0):
    group = Network(build(1, 2, True, seed=seed)[0], ps.VP(), units=units)
    return group.condition(0)


def test_members_of_other_coordinates_do_not_compose():
    here, there = Units(torch.tensor([100.0, 0.0]), torch.ones(2)), (torch.tensor([40.0, 0.0]), torch.ones(2))
    one, other, raw = _network(here), _network(there), _network()
    for members in ({"a": one, "b": other}, {"a": one, "b": raw}, {"b": raw, "a": one}, {"a": one, "g": ps.Gaussian()}):
        with pytest.raises(CompositionError, match=r"same coordinates.*100"):
            ps.Family(members)
    with pytest.raises(CompositionError, match=r"same coordinates.*40"):
        ps.Ensemble([one, other])
    with pytest.raises(CompositionError, match=r"the family has shift.*40"):
        ps.Family({"a": one}, units=there)
    assert ps.Family({"a": one, "b": _network(here, seed=1)}).units is here
    assert ps.Family({"a": ps.Ensemble([one, _network(here, seed=1)])}).units is here
    assert ps.Family({"a": one, "g": ps.Gaussian()}, units=here).units is here
    assert ps.Family({"a": raw, "g": ps.Gaussian()}).units is None


@pytest.mark.parametrize(
    "units", [([0.0, 0.0], [1.0, 1.0]), (torch.zeros(3), torch.ones(3)), (torch.zeros(2), torch.zeros(2)),
              (torch.zeros(2),)], ids=["lists", "length", "scale", "one"])  # fmt: skip
def test_units_are_checked_at_the_door(units):
    with pytest.raises(CompositionError, match="units must be"):
        ps.Family({"g": ps.Gaussian()}, units=units)


@pytest.mark.parametrize("prediction", ["eps", "x0", "v", "score"])
@pytest.mark.parametrize("zero_snr", [False, True])
def test_a_discrete_model_is_converted_at_the_level_it_was_asked_about(prediction, zero_snr):
    """A model exact at every timestep gives the exact score of the nearest timestep, at every t."""
    schedule, source = ps.DDPM(timesteps=50, zero_snr=zero_snr), ps.Gaussian(mean=[0.5, -1.0], cov=[2.0, 0.3])
    table = schedule.table()

    def level(index):
        alpha = table[index]
        return alpha, (1 - alpha**2).sqrt()

    def model(x, index):
        alpha, sigma = (value[:, None] for value in level(index))
        exact = torch.stack([source.score(row.double(), *level(i)) for row, i in zip(x, index, strict=True)])
        eps = -sigma * exact
        x0 = (x + sigma**2 * exact) / alpha
        return {"eps": eps, "x0": x0, "v": alpha * eps - sigma * x0, "score": exact}[prediction].to(x)

    learned = ps.Learned(model, (2,), schedule, prediction, discrete=True)
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for t in (0.0, 1e-3, 0.013, 0.02, 0.031, 0.5, 0.97):
        index = schedule.timestep(torch.tensor(t))
        torch.testing.assert_close(learned.score(x, t), source.score(x, *level(index)), rtol=1e-6, atol=1e-8)


def test_a_module_is_asked_in_its_own_precision():
    module = _Timeless(torch.nn.Linear(2, 2))
    learned = ps.Learned(module, (2,), ps.VP())
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    double = learned.score(x.double(), 0.3)
    assert double.dtype == torch.float64 and learned.score(x, 0.3).dtype == torch.float32
    torch.testing.assert_close(double.float(), learned.score(x, 0.3), rtol=1e-4, atol=1e-5)
    run = ps.Denoise(steps=3).sample(ps.Family({"m": learned})["m"], 5, dtype=torch.float64)
    assert run.samples.dtype == torch.float64
    wide = ps.Learned(lambda x, t: x.double(), (2,), ps.VP())
    assert wide.score(x, 0.3).dtype == torch.float32


def test_what_a_learned_member_cannot_be():
    with pytest.raises(ArgumentError, match="schedule must be a Schedule"):
        ps.Learned(lambda x, t: x, (2,), "VP")
    for event in (2, [2], (0,), (2.0,)):
        with pytest.raises(ArgumentError, match="event must be the shape"):
            ps.Learned(lambda x, t: x, event, ps.VP())
    family = ps.Family({"g": ps.Gaussian()})
    for member in (ps.Gaussian(), family, family["g"]):
        with pytest.raises(ArgumentError, match="an ensemble must hold learned members"):
            ps.Ensemble([member])


def test_times_may_be_plain_numbers():
    models = [_network(seed=seed) for seed in (0, 1)]
    x = torch.ones(3, 2)
    for member in (*models, ps.Ensemble(models), ps.Learned(lambda x, t: x, (2,), ps.VP())):
        assert torch.equal(member.score(x, 0.3), member.score(x, torch.tensor(0.3)))
    assert torch.equal(ps.Ensemble(models).spread(x, 0.3), ps.Ensemble(models).spread(x, torch.tensor(0.3)))


class Failing(ps.Density):
    """Raises what it is told to, by score and by density alike."""

    event = (2,)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def score(self, x, alpha, sigma):
        raise self.error

    def log_prob(self, x, alpha, sigma):
        raise self.error


def doors(error):
    """All ways by which a model of a user's is asked, the model raising `error`."""

    def model(x, t):
        raise error

    x, closed = torch.zeros(3, 2), ps.Family({"a": Failing(error)})
    learned = ps.Learned(model, (2,), ps.VP())
    return [
        (partial(learned.score, x, 0.5), r"^a model must take x \(3, 2\) .*; got {}\. Check event="),
        (partial(ps.Family({"a": learned})["a"].score, x, 0.5), "^condition 'a': a model must take .*; got {}. Check"),
        (partial(closed["a"].score, x, 0.5), "^condition 'a' must have a score at x .*; got {}. Mend Failing.$"),
        (
            partial(closed["a"].log_density, x, 0.5),
            "^condition 'a' must have a log-density at .*; got {}. Mend Failing",
        ),
        (lambda: _asked(error), "^a thing; got {}.$"),
    ]


def _asked(error):
    with asking(lambda got: f"a thing; got {got}."):
        raise error


@pytest.mark.parametrize("error", [ValueError("two"), KeyError("x"), StopIteration("end"), RuntimeError("r" * 900)])
def test_what_a_model_raises_becomes_a_model_error_at_every_door(error):
    for ask, words in doors(error):
        said = re.escape(f"{type(error).__name__}: {str(error)[:500]}")
        with pytest.raises(ModelError, match=words.format(said)) as raised:
            ask()
        assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), MemoryError(), ScoreError("ours"), KeyboardInterrupt()], ids=repr
)
def test_errors_of_ours_and_of_memory_pass_every_door(error):
    for ask, _ in doors(error):
        with pytest.raises(type(error)) as raised:
            ask()
        assert raised.value is error
