"""Training: one program or many, killed or not, the numbers are the same, and they are the right ones."""

import json
import math
import os
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import polyscore as ps
from polyscore.errors import DegeneracyWarning, PolyscoreError
from polyscore.training import DivergenceError
from polyscore.training.pools import stack_pools
from polyscore.training.trainer import Trainer
from training.networks import twin

SMALL = {"kind": "vanilla", "width": 24, "depth": 2, "batch": 48}
models = pytest.mark.parametrize("model", ["conditional", "separate"])


def data(seed, sizes=(60, 35), dim=2, shift=0.0, scale=1.0):
    rng = np.random.default_rng(seed)
    return {f"c{a}": (rng.normal(size=(n, dim)) + a) * scale + shift for a, n in enumerate(sizes)}


def tensors(family):
    network = family.groups[0].network
    return [network.time, network.first, network.constant, *network.hidden, *network.hidden_biases, network.last,
            network.last_bias]  # fmt: skip


def same(one, other, exactly=True, rtol=1e-4, atol=1e-5):
    for a, b in zip(tensors(one), tensors(other), strict=True):
        if exactly:
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def batch_at(trainer, step):
    """Clean points, times and noise of one step, `(G, C, b, d)`, `(G, C, b, 1)`, `(G, C, b, d)`."""
    trainer._load(step)
    return [value.clone() for value in trainer._batch()]


def fit(data, **options):
    return ps.fit(data, device="cpu", **{**SMALL, **options})


def fit_many(datasets, seeds, **options):
    return ps.fit_many(datasets, seeds, device="cpu", **{**SMALL, **options})


@models
def test_stacked_training_is_one_by_one(model):
    datasets = [data(1), data(2, sizes=(10, 200)), data(3, sizes=(2, 3))]
    seeds = [5, 9, 5]
    together = fit_many(datasets, seeds, model=model, steps=200)
    for i, family in enumerate(together):
        same(family, fit(datasets[i], seed=seeds[i], model=model, steps=200), exactly=False)
        assert family.training["train_sizes"] == [len(v) for v in datasets[i].values()]
        assert family.training["seed"] == seeds[i]
        assert family.training["steps"] == 200
    for other, i in zip(fit_many(datasets[::-1], seeds[::-1], model=model, steps=200), (2, 1, 0), strict=True):
        same(other, together[i], exactly=False)
    # Seeds and pools do make a difference, well beyond the tolerance.
    assert (tensors(together[0])[1] - tensors(together[2])[1]).abs().max() > 1e-3
    assert (tensors(together[0])[1] - tensors(together[1])[1]).abs().max() > 1e-3


def test_a_separate_condition_does_not_know_the_others():
    both = data(1)
    alone = fit({"c1": both["c1"]}, model="separate", steps=60, standardise=False)  # units are common to all
    among = fit(both, model="separate", steps=60, standardise=False)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(alone["c1"].score(x, 0.3), among["c1"].score(x, 0.3), rtol=1e-4, atol=1e-4)


@models
def test_training_is_adam_on_the_denoising_loss(model):
    """Three steps against `nn.Sequential`, `torch.optim.Adam` and the loss as the paper writes it."""
    points = data(4)
    recipe = ps.Recipe(model=model, steps=3, learning_rate=1e-3, **SMALL)
    trainer = Trainer(stack_pools([points], False), [3], recipe, torch.device("cpu"))
    networks = [twin(trainer.network.mlp, g) for g in range(trainer.network.mlp.count)]
    assert len(networks) == (1 if model == "conditional" else 2)
    optimisers = [torch.optim.Adam(network.parameters(), lr=1e-3) for network in networks]
    for step in range(3):
        x0, t, eps = batch_at(trainer, step)
        assert x0.shape == eps.shape == (*t.shape[:3], 2)
        assert x0.shape[:3] == ((1, 2, 24) if model == "conditional" else (2, 1, 48))
        losses = trainer.advance()
        for g, (network, optimiser) in enumerate(zip(networks, optimisers, strict=True)):
            beta = 0.1 * t[g] + 0.5 * 19.9 * t[g] ** 2
            noisy = torch.exp(-0.5 * beta) * x0[g] + torch.sqrt(1 - torch.exp(-beta)) * eps[g]
            total, count = 0.0, 0
            for c in range(noisy.shape[0]):
                parts = [1 - t[g, c], noisy[c]]
                if model == "conditional":
                    parts.append(torch.eye(2)[c].repeat(noisy.shape[1], 1))
                total = total + (network(torch.cat(parts, -1)) - eps[g, c]).square().sum()
                count += noisy.shape[1]
            loss = total / count
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            assert losses[g].item() == pytest.approx(loss.item(), rel=1e-4)
            for layer, linear in enumerate(m for m in network if isinstance(m, nn.Linear)):
                torch.testing.assert_close(trainer.network.mlp.weights[layer][g].T, linear.weight, rtol=1e-4, atol=2e-5)
                torch.testing.assert_close(trainer.network.mlp.biases[layer][g, 0], linear.bias, rtol=1e-4, atol=2e-5)


@models
def test_batches_come_from_the_right_pools(model):
    """Points are drawn with replacement, evenly, from each condition's own pool and never from the padding.

    20,000 draws from pools of 7 and 3: a count off by six of its standard deviations, false alarm below 1e-7.
    """
    pools = {"a": np.arange(1, 8.0)[:, None], "b": -np.arange(1, 4.0)[:, None]}
    recipe = ps.Recipe(kind="vanilla", model=model, width=4, depth=1, batch=400)
    trainer = Trainer(stack_pools([pools, {"a": pools["a"], "b": np.full((90, 1), 50.0)}], False), [0, 1], recipe,
                      torch.device("cpu"))  # fmt: skip
    draws = [batch_at(trainer, step) for step in range(60)]
    x0 = torch.cat([batch[0].reshape(2, 2, -1) for batch in draws], -1)  # (model, condition, draws)
    for m, c, support in ((0, 0, range(1, 8)), (0, 1, (-1, -2, -3)), (1, 0, range(1, 8)), (1, 1, (50,))):
        values, counts = x0[m, c].unique(return_counts=True)
        assert set(values.tolist()) == set(map(float, support))
        n, share = x0.shape[-1], 1 / len(values)
        assert (counts - n * share).abs().max() <= 6 * math.sqrt(n * share * (1 - share)) + 1e-9
    t = torch.cat([batch[1].flatten() for batch in draws])
    eps = torch.cat([batch[2].flatten() for batch in draws])
    assert 0 <= t.min() < 0.001
    assert 0.999 < t.max() < 1
    assert t.mean().item() == pytest.approx(0.5, abs=6 * math.sqrt(1 / 12 / len(t)))
    assert eps.mean().item() == pytest.approx(0, abs=6 / math.sqrt(len(eps)))
    assert eps.var().item() == pytest.approx(1, abs=6 * math.sqrt(2 / len(eps)))
    # No two steps, pages or models share numbers.
    assert len({batch[2].flatten()[0].item() for batch in draws}) == 60
    assert not torch.equal(draws[0][2][0], draws[0][2][-1])
    assert len({batch_at(trainer, step)[2].flatten()[0].item() for step in range(0, 2000, 25)}) == 80


def test_the_papers_recipe_is_one_word_away_on_standardised_data():
    recipe = ps.Recipe(kind="vanilla")
    assert (recipe.model, recipe.steps, recipe.batch, recipe.learning_rate) == ("conditional", 20_000, 512, 2e-4)
    assert (recipe.width, recipe.depth, recipe.activation) == (512, 4, "silu")
    assert recipe.schedule == ps.VP(0.1, 20.0)
    assert recipe.standardise  # the paper's data need none; others' do, and nothing outside shows it
    assert recipe.ema is None
    pools = stack_pools([dict.fromkeys("abc", np.zeros((4, 2)))], False)
    trainer = Trainer(pools, [0], recipe, torch.device("cpu"))
    assert batch_at(trainer, 0)[0].shape == (1, 3, 170, 2)
    assert 0.78e6 < sum(p.numel() for p in trainer.network.parameters()) < 0.80e6
    assert ps.Recipe.from_dict(recipe.to_dict()) == recipe


@models
def test_the_average_of_weights_is_a_hand_loop(model):
    recipe = ps.Recipe(model=model, steps=20, ema=0.8, **SMALL)
    trainer = Trainer(stack_pools([data(6)], True), [2], recipe, torch.device("cpu"))
    shares = [0.8**age for age in reversed(range(20))]
    average = [torch.zeros_like(p) for p in trainer.network.parameters()]
    for share in shares:
        trainer.advance()
        average = [a + share / sum(shares) * p.detach() for a, p in zip(average, trainer.network.parameters())]
    tensors = trainer.tensors()
    assert list(tensors) == [name for name, _ in trainer.network.named_parameters()]
    for got, want in zip(tensors.values(), average, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    # It is the average that `fit` hands out, and the training itself does not feel it.
    family = fit(data(6), seed=2, model=model, steps=20, ema=0.8)
    torch.testing.assert_close(family.groups[0].network.last, tensors["mlp.weights.2"])
    plain = fit(data(6), seed=2, model=model, steps=20)
    torch.testing.assert_close(plain.groups[0].network.last, trainer.network.mlp.weights[-1].detach())


@pytest.fixture(scope="module")
def line():
    """A model of N(1, 4) in one dimension."""
    rng = np.random.default_rng(0)
    points = 1 + 2 * rng.normal(size=(4000, 1))
    options = {"steps": 2000, "width": 48, "depth": 2, "batch": 256, "learning_rate": 2e-3, "ema": 0.99, "seed": 1}
    return points, ps.fit({"a": points}, device="cpu", standardise=False, **options)


def test_the_optimum_is_the_analytic_score(line):
    points, p = line
    exact = ps.Gaussian(mean=[float(points.mean())], cov=[float(points.var())])
    schedule = ps.VP()
    x0 = torch.from_numpy(points[:1000]).float()
    for t in (0.05, 0.2, 0.5, 0.9):
        time = torch.tensor(t)
        alpha, sigma = schedule.alpha(time), schedule.sigma(time)
        x = alpha * x0 + sigma * torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
        # As noise, where the loss measures it: root mean square error against an output of order 1.
        error = (sigma * (p["a"].score(x, time) - exact.score(x, alpha, sigma))).square().mean().sqrt().item()
        assert error < 0.15, t
    samples = ps.Denoise(steps=100).sample(p["a"], 3000, seed=0).samples
    # Two draws of 3000 from N(1, 4) lie 0.08 apart; five times that covers the training's own error at this seed.
    assert ps.sliced_wasserstein(samples, torch.from_numpy(points[:3000]).float()) < 0.4


def test_standardised_training_speaks_the_datas_units():
    rng = np.random.default_rng(3)
    points = {"a": 1000 + 100 * rng.normal(size=(3000, 2)), "b": 1050 + 80 * rng.normal(size=(3000, 2))}
    options = {"kind": "vanilla", "steps": 1500, "width": 48, "depth": 2, "batch": 256, "learning_rate": 2e-3,
               "seed": 0, "ema": 0.99}  # fmt: skip
    p = ps.fit(points, device="cpu", **options)
    every = np.concatenate([points["a"], points["b"]])
    np.testing.assert_allclose(p.units[0].numpy(), every.mean(0), rtol=1e-5)
    np.testing.assert_allclose(p.units[1].numpy(), every.std(0), rtol=1e-3)
    assert p.log_volume(torch.zeros(1, 2)) == pytest.approx(np.log(every.std(0)).sum(), rel=1e-3)
    # The same training on data standardised by hand: same numbers inside, and outside up to the change of units.
    shift, scale = p.units[0].numpy(), p.units[1].numpy()
    plain = ps.fit(
        {name: (v - shift) / scale for name, v in points.items()}, device="cpu", standardise=False, **options
    )
    same(p, plain, exactly=False, rtol=1e-2, atol=1e-3)
    for exponents in ({"a": 1.0}, {"a": 0.5, "b": 0.5}, {"a": 0.6, "b": 0.2}):
        sampler = ps.FeynmanKac(particles=4, steps=60)
        got, want = (sampler.sample(ps.Composition(f, exponents), 400, seed=2) for f in (p, plain))
        total = sum(exponents.values())
        gap = got.total_log_evidence - want.total_log_evidence
        assert gap == pytest.approx((1 - total) * np.log(scale).sum(), abs=0.1)
    alone = ps.Denoise(steps=100).sample(p["a"], 2000, seed=2).samples.double()
    # 2000 draws: their mean is off by 100 / sqrt(2000) = 2.2; 15 leaves room for the training's own error.
    assert (alone.mean(0) - torch.from_numpy(points["a"].mean(0))).abs().max() < 15
    assert (alone.std(0) - 100).abs().max() < 15


def test_a_constant_column_survives_standardisation():
    points = {"a": np.column_stack([np.random.default_rng(0).normal(size=50), np.full(50, 7.0)])}
    with pytest.warns(DegeneracyWarning, match=r"every column should vary; 1 of 2 .* column 1 first.*Leave them out"):
        p = fit(points, steps=5)
    assert (p.units[0][1], p.units[1][1]) == (7, 1)
    assert bool(p["a"].score(torch.zeros(3, 2), 0.5).isfinite().all())


def test_numbers_that_many_rows_share_are_told_of():
    """Zeros of counts, in one condition alone; 4 % of them, or a column that is constant everywhere, are not meant."""
    draw = np.random.default_rng(0)
    plain, zeros = draw.gamma(2, size=(100, 2)), draw.gamma(2, size=(100, 2))
    zeros[:4, 0] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", DegeneracyWarning)
        fit({"a": plain, "b": zeros}, steps=5)
    zeros[:30, 0] = 0.0
    told = r"should be continuous; 1 of 2 repeat one number in over 5% of .* column 0 of 'b' first.*beyond an edge"
    with pytest.warns(DegeneracyWarning, match=told):
        fit({"a": plain, "b": zeros}, steps=5)


@models
def test_the_same_seed_gives_the_same_bytes_and_leaves_the_world_alone(model):
    torch.manual_seed(11)
    np.random.seed(11)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), torch.get_float32_matmul_precision()
    one = fit(data(1), seed=4, steps=60, model=model)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert torch.get_float32_matmul_precision() == before[2]
    torch.manual_seed(99)
    same(one, fit(data(1), seed=4, steps=60, model=model))
    other = fit(data(1), seed=5, steps=60, model=model)
    assert not torch.equal(tensors(one)[0], tensors(other)[0])


def test_arrays_tensors_and_lists_are_one():
    points = {name: value.astype(np.float32) for name, value in data(1).items()}
    one = fit(points, steps=20)
    same(one, fit({name: torch.from_numpy(v) for name, v in points.items()}, steps=20))
    same(one, fit({name: torch.from_numpy(v).double().requires_grad_() for name, v in points.items()}, steps=20))
    same(one, fit({name: v.tolist() for name, v in points.items()}, steps=20))
    same(one, fit({name: np.asfortranarray(v) for name, v in points.items()}, steps=20))


def test_fit_does_not_touch_its_data():
    points = {name: torch.from_numpy(v).float() for name, v in data(1).items()}
    before = {name: v.clone() for name, v in points.items()}
    fit(points, steps=5, standardise=True)
    for name, value in points.items():
        assert torch.equal(value, before[name])


def test_progress_is_told():
    seen = []
    fit(data(1), steps=250, progress=lambda *told: seen.append(told))
    told = [step for step, _, _ in seen]
    assert set(told) >= {100, 200, 250} and told == sorted(set(told)) and told[-1] == 250  # more where steps are slow
    assert {steps for _, steps, _ in seen} == {250}
    assert all(math.isfinite(loss) and loss > 0 for _, _, loss in seen)
    seen.clear()
    fit(data(1), steps=3, progress=lambda *told: seen.append(told))
    assert [step for step, _, _ in seen] == [3]


def test_the_loss_falls():
    seen = []
    fit(data(1, sizes=(200, 200)), steps=400, learning_rate=5e-3, progress=lambda s, n, loss: seen.append(loss))
    assert seen[-1] < 1.6  # 2 for a network that says nothing; about 1 at the optimum


# ---- Ensembles -----------------------------------------------------------------------------------------------------


def test_members_make_ensembles():
    p = fit(data(1), members=3, steps=30, seed=2, standardise=True)
    assert list(p) == ["c0", "c1"]
    assert all(isinstance(member, ps.Ensemble) for member in p.members.values())
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    time = torch.tensor(0.4)
    scores = np.stack([member.score(x, time).numpy() for member in p.members["c0"].models])
    assert len(scores) == 3
    np.testing.assert_allclose(p["c0"].score(x, 0.4).numpy(), scores.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(p.members["c0"].spread(x, time).numpy(), scores.std(0), rtol=1e-4, atol=1e-6)
    assert scores.std(0).min() > 0
    assert p.units is not None
    assert ps.FeynmanKac(particles=2, steps=4).sample(p["c0"] / p["c1"] * p["c0"], 3).samples.shape == (3, 2)


def test_members_have_seeds_of_their_own():
    three, two = fit(data(1), members=3, steps=30, seed=2), fit(data(1), members=2, steps=30, seed=2)
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    for m in range(2):
        a, b = (p.members["c0"].models[m].score(x, torch.tensor(0.4)) for p in (three, two))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# ---- Checkpoints ---------------------------------------------------------------------------------------------------


def step_of(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["polyscore"])["step"]


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import torch; torch.set_num_threads(1)
from training.test_training import data, fit_many
def progress(step, steps, loss):
    print(step, flush=True)
fit_many([data(1), data(2)], [3, 4], steps=100_000, checkpoint={path!r}, checkpoint_every=30, progress=progress,
         **{options!r})
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"model": "conditional", "ema": 0.9}, id="conditional with ema"),
        pytest.param({"model": "separate"}, id="separate", marks=pytest.mark.slow),
    ],
)
def test_a_killed_training_resumes_to_the_same_bytes(tmp_path, options):
    path = tmp_path / "run.safetensors"
    tests = os.path.dirname(os.path.dirname(__file__))
    script = KILLED.format(tests=tests, path=str(path), options=options)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        for told in process.stdout:
            if int(told) >= 200:
                break
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    from polyscore.files.tensors import read_tensors

    reached = read_tensors(path)[1]["step"]  # whole, whenever the kill came
    assert reached >= 180
    assert reached % 30 == 0
    steps = reached + 77
    told = []
    resumed = fit_many([data(1), data(2)], [3, 4], steps=steps, checkpoint=path, checkpoint_every=30,
                       progress=lambda step, *_: told.append(step), **options)  # fmt: skip
    assert told[0] > reached  # it did go on from there
    whole = fit_many([data(1), data(2)], [3, 4], steps=steps, **options)
    for one, other in zip(resumed, whole, strict=True):
        same(one, other)
        assert one.training == other.training
    leftovers = [p.name for p in tmp_path.iterdir() if p != path and not p.name.startswith(".")]
    assert not leftovers


@models
def test_pauses_anywhere_change_nothing(tmp_path, model):
    path, points = tmp_path / "run.safetensors", data(1)
    whole = fit(points, steps=130, model=model, ema=0.9)
    for steps in (1, 49, 50, 51, 130):
        paused = fit(points, steps=steps, model=model, ema=0.9, checkpoint=path)
    same(paused, whole)
    same(fit(points, steps=130, model=model, ema=0.9, checkpoint=path), whole)  # finished: nothing left to do


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1}, {"learning_rate": 1e-3}, {"width": 32}, {"model": "separate"}, {"ema": 0.9}, {"batch": 20},
        {"schedule": ps.Cosine()}, {"standardise": False}, {"activation": "relu"}, {"data": data(2)}, {"members": 2},
        {"data": data(1, sizes=(60, 36))}, {"data": dict(reversed(data(1).items()))},
        {"data": {"x": data(1)["c0"], "c1": data(1)["c1"]}},
    ],
    ids=lambda changed: str(list(changed)),
)  # fmt: skip
def test_a_checkpoint_of_another_training_is_refused(tmp_path, changed):
    path = tmp_path / "run.safetensors"
    fit(data(1), steps=10, checkpoint=path)
    before = path.read_bytes()
    options = {"data": data(1), "steps": 20, **changed}
    with pytest.raises(PolyscoreError, match=r"run\.safetensors"):
        fit(options.pop("data"), checkpoint=path, **options)
    assert path.read_bytes() == before


def test_pools_that_differ_in_size_alone_are_other_data(tmp_path):
    """A zero point at the end looks like padding, but is drawn."""
    path, points = tmp_path / "run.safetensors", data(1, sizes=(10, 12))
    fit(points, steps=10, checkpoint=path)
    longer = {"c0": np.concatenate([points["c0"], np.zeros((1, 2))]), "c1": points["c1"]}
    with pytest.raises(PolyscoreError, match="data"):
        fit(longer, steps=20, checkpoint=path)


def test_fewer_steps_than_the_checkpoint_has_are_not_silently_more(tmp_path):
    path = tmp_path / "run.safetensors"
    fit(data(1), steps=60, checkpoint=path)
    with pytest.raises(PolyscoreError, match=r"is of step 60, steps is 20\. Raise steps"):
        fit(data(1), steps=20, checkpoint=path)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    fit(data(1), steps=10, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(PolyscoreError, match="damaged"):
        fit(data(1), steps=20, checkpoint=path)
    fit(data(1), steps=2).save(path)
    with pytest.raises(PolyscoreError, match="belong"):
        fit(data(1), steps=20, checkpoint=path)


def test_the_wall_clock_stops_a_training_that_can_go_on(tmp_path):
    path = tmp_path / "run.safetensors"
    stopped = fit(data(1), steps=5_000_000, seconds=0.2, checkpoint=path)
    reached = stopped.training["steps"]
    assert 0 < reached < 5_000_000
    same(stopped, fit(data(1), steps=reached))
    more = fit(data(1), steps=reached + 50, checkpoint=path)
    same(more, fit(data(1), steps=reached + 50))
    assert fit(data(1), steps=150, seconds=0.0).training["steps"] == 1


def test_a_checkpoint_directory_is_made(tmp_path):
    fit(data(1), steps=3, checkpoint=tmp_path / "deep" / "er" / "run.safetensors")
    assert (tmp_path / "deep" / "er" / "run.safetensors").is_file()


# ---- Bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_numbers_name_condition_and_row(bad):
    points = data(1)
    points["c1"][17, 1] = bad
    points["c1"][30, 0] = bad
    with pytest.raises(PolyscoreError, match=r"'c1'.*2 rows.*row 17, column 1"):
        fit(points, steps=5)


@pytest.mark.parametrize("empty", [np.zeros((0, 2)), np.zeros((1, 2)), np.zeros((5, 0)), [], [[1.0, 2.0]]])
def test_empty_and_one_point_pools(empty):
    with pytest.raises(PolyscoreError, match="'small'"):
        fit({"fine": np.zeros((5, 2)), "small": empty}, steps=5)


def test_shapes_and_kinds_of_data():
    with pytest.raises(PolyscoreError, match=r"'a'.*data\[:, None\]"):
        fit({"a": np.zeros(5)}, steps=5)
    with pytest.raises(PolyscoreError, match="'a'"):
        fit({"a": np.zeros((5, 2, 2))}, steps=5)
    with pytest.raises(PolyscoreError, match="'a'"):
        fit({"a": "points.csv"}, steps=5)
    with pytest.raises(PolyscoreError, match="'a'"):
        fit({"a": [["x", "y"], ["z", "w"]]}, steps=5)
    with pytest.raises(PolyscoreError, match=r"'a': 2.*'b': 3"):
        fit({"a": np.zeros((5, 2)), "b": np.zeros((5, 3))}, steps=5)
    with pytest.raises(PolyscoreError, match="at least one condition"):
        fit({}, steps=5)
    for data_ in (np.zeros((5, 2)), [np.zeros((5, 2))], "points.csv", None):
        with pytest.raises(PolyscoreError, match="data must map conditions to points"):
            fit(data_, steps=5)


@pytest.mark.parametrize("dims", [(2, 3), (1, 3), (3, 1)])
def test_models_of_different_dimension_do_not_stack(dims):
    """One column broadcasts into three on the way: only a check says what is wrong."""
    datasets = [{"a": np.ones((5, dim)), "b": np.ones((5, dim))} for dim in dims]
    with pytest.raises(PolyscoreError, match="dimension"):
        fit_many(datasets, [0, 1], steps=2)


def test_models_of_different_conditions_do_not_stack():
    with pytest.raises(PolyscoreError, match="conditions"):
        fit_many([{"a": np.zeros((5, 2))}, {"b": np.zeros((5, 2))}], [0, 1], steps=2)
    with pytest.raises(PolyscoreError, match="equally many"):
        fit_many([data(1)], [0, 1], steps=2)
    with pytest.raises(PolyscoreError, match="datasets must hold at least one"):
        fit_many([], [], steps=2)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"model": "foo"}, "foo"), ({"ensemble": 0}, "ensemble"), ({"members": -1}, "ensemble"),
        ({"members": 3, "ensemble": 5}, "members"), ({"lr": 1e-3}, "lr"),
        ({"steps": 0}, "steps"), ({"steps": 10**20}, "steps"), ({"batch": 0}, "batch"), ({"width": 0}, "width"),
        ({"depth": 0}, "depth"), ({"recipe": {"steps": 3}}, "recipe"), ({"recipe": 0}, "recipe"),
        ({"checkpoint": 3}, "model's file"), ({"checkpoint": b"x"}, "model's file"),
        ({"learning_rate": 0.0}, "learning_rate"), ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"), ({"activation": "swish"}, "swish"), ({"ema": 1.0}, "ema"),
        ({"ema": 0.0}, "ema"), ({"ema": math.nan}, "ema"), ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"checkpoint_every": -5}, "checkpoint_every"), ({"steps": 2.5}, "steps"), ({"width": 8.5}, "width"),
        ({"ensemble": 1.5}, "ensemble"), ({"ensemble": 10**9}, "ensemble"), ({"seed": 1.7}, "seed"),
        ({"seed": "a"}, "seed"),
        ({"seed": True}, "seed"), ({"learning_rate": "fast"}, "learning_rate"), ({"ema": "long"}, "ema"),
        ({"standardise": "no"}, "standardise"), ({"activation": []}, "activation"), ({"seconds": "a"}, "seconds"),
        ({"checkpoint_seconds": None}, "checkpoint_seconds"), ({"width": 10**6, "depth": 9}, "fit into the .* GB"),
        ({"batch": 10**10}, "fit into the .* GB"), ({"depth": 10**9}, "fit into the .* GB"),
        ({"steps": "many"}, "steps"), ({"learning_rate": math.inf}, "learning_rate"), ({"schedule": "VP"}, "schedule"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options(options, word):
    with pytest.raises(PolyscoreError, match=word):
        fit(data(1), **{"steps": 3, **options})


def test_a_bad_condition_name_is_refused_before_the_training():
    told = []
    for name in ('say "hi"', "", 3, None):
        with pytest.raises(PolyscoreError, match="a condition must be a non-empty string"):
            fit({name: np.ones((5, 2))}, steps=100, progress=lambda *_: told.append(1))
    assert not told


def test_a_diverging_loss_says_so():
    with pytest.raises(DivergenceError, match=r"step \d+.*learning_rate"):
        fit(data(1), steps=300, learning_rate=1e30)
    assert issubclass(DivergenceError, ValueError)


def explode_at(step, monkeypatch):
    """From a step on, train at a rate that no network survives."""
    advance = Trainer.advance

    def explode(self):
        for group in self.optimiser.param_groups:
            group["lr"] = 2e-4 if self.step < step else 1e30
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", explode)


@models
def test_a_diverging_loss_keeps_the_last_good_checkpoint(tmp_path, model, monkeypatch):
    """The rate explodes at step 250, long after good checkpoints."""
    path, points = tmp_path / "run.safetensors", data(1)
    explode_at(250, monkeypatch)
    with pytest.raises(DivergenceError) as caught:
        fit(points, steps=5000, model=model, checkpoint=path, checkpoint_every=100)
    assert "step 300" in str(caught.value)
    assert "200" in str(caught.value)
    assert str(path) in str(caught.value)
    monkeypatch.undo()
    same(fit(points, steps=240, model=model, checkpoint=path), fit(points, steps=240, model=model))


def test_a_checkpoint_written_at_the_moment_of_divergence_is_good(tmp_path, monkeypatch):
    """The loss of a step is that of the weights *before* it; what is saved are those after it."""
    path, points = tmp_path / "run.safetensors", data(1)
    explode_at(199, monkeypatch)
    with pytest.raises(DivergenceError):
        fit(points, steps=5000, checkpoint=path, checkpoint_every=100)
    monkeypatch.undo()
    resumed = fit(points, steps=210, checkpoint=path)
    assert bool(resumed["c0"].score(torch.zeros(2, 2), 0.5).isfinite().all())


def test_the_result_of_a_last_step_that_diverges_is_refused():
    with pytest.raises(DivergenceError, match="by step 1"):
        fit(data(1), steps=1, learning_rate=1e38)


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")  # data of 1e30 is warned of, as it should be
def test_one_diverging_model_is_named_among_many(monkeypatch):
    good, bad = data(1), data(2, scale=1e30)
    with pytest.raises(DivergenceError, match=r"dataset 1 \(seed 0\)"):
        fit_many([good, bad], [0, 0], steps=100, standardise=False)


def test_a_loss_that_explodes_without_becoming_infinite_stops():
    with pytest.raises(DivergenceError, match="loss must not diverge"):
        fit(data(1), steps=300, learning_rate=1e3)


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")
def test_large_data_alone_is_no_divergence():
    assert fit(data(1, scale=1e4), steps=100, learning_rate=1e-4, standardise=False).training["steps"] == 100


@pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")
def test_a_diverging_condition_is_named():
    bad = data(2)
    bad["c1"] = bad["c1"] * 1e30
    with pytest.raises(DivergenceError, match=r"dataset 1 \(seed 4\), condition 'c1'"):
        fit_many([data(1), bad], [3, 4], steps=100, model="separate", standardise=False)


def test_an_average_of_few_steps_forgets_the_random_start():
    options = {"steps": 600, "width": 32, "depth": 2, "batch": 128, "learning_rate": 2e-3}
    points = {"c0": np.random.default_rng(0).normal(size=(2000, 2)) + 1}
    for decay in (0.99, 0.9999):
        p = ps.fit(points, seed=1, device="cpu", ema=decay, **options)
        samples = ps.Denoise(steps=60).sample(p["c0"], 1500, seed=0).samples
        distance = ps.sliced_wasserstein(samples, torch.tensor(points["c0"], dtype=torch.float32))
        assert distance < 0.5, decay  # 0.15 to 0.3 over other seeds; 8 and 150 when the start had its share


@pytest.mark.parametrize("size", [1e41, 1e-50])
def test_standardising_reaches_beyond_float32(size):
    points = {name: size * values.astype(np.float64) for name, values in data(1).items()}
    p, plain = fit(points, steps=20, standardise=True), fit(data(1), steps=20, standardise=True)
    np.testing.assert_allclose(p.units[1].numpy(), size * plain.units[1].numpy(), rtol=1e-6)
    y = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(size * p["c0"].score(size * y, 0.4), plain["c0"].score(y, 0.4), rtol=1e-3, atol=1e-4)
    with pytest.raises(PolyscoreError, match=r"fit float32.*standardise=True"):
        fit(points, steps=20, standardise=False)


def test_a_far_offset_is_standardised_exactly():
    rng = np.random.default_rng(0)
    p = fit({"c0": 1e6 + 0.01 * rng.normal(size=(500, 1))}, steps=20, standardise=True)
    assert p.units[1].item() == pytest.approx(0.01, rel=0.1)


def test_data_as_people_have_it():
    """Reversed views, other byte orders, lists, integers, frames: all numbers, all the same model as plain arrays."""
    points = data(1)
    expected = fit(points, steps=5)
    forms = {
        "reversed view": lambda v: v[::-1].copy()[::-1],
        "big-endian": lambda v: v.astype(">f8"),
        "list": lambda v: v.tolist(),
        "columns first": np.asfortranarray,
        "strided": lambda v: np.repeat(v, 2, axis=0)[::2],
        "read-only": lambda v: np.frombuffer(v.tobytes(), v.dtype).reshape(v.shape),
        "tensor": torch.tensor,
        "unmasked": np.ma.masked_array,
    }
    for form in forms.values():
        same(fit({condition: form(values) for condition, values in points.items()}, steps=5), expected)


NOT_NUMBERS = {
    "complex": (lambda v: v + 1j, "complex128.*real and imaginary parts"),
    "dates": (lambda v: v.astype("datetime64[s]"), r"datetime64\[s\].*Subtract a date"),
    "durations": (lambda v: v.astype("timedelta64[ms]"), r"timedelta64\[ms\].*unit of time"),
    "truth": (lambda v: v > 0, "bool.*astype"),
    "text": (lambda v: v.astype(str), "text"),
    "bytes": (lambda v: v.astype("S8"), "text"),
    "objects": (lambda v: v.astype(object), "object"),
    "with None": (lambda v: [[None, 1.0], *v.tolist()], "object"),
    "records": (lambda v: np.zeros(5, dtype=[("a", float), ("b", float)]), r"\[\('a'"),
    "complex tensor": (lambda v: torch.tensor(v + 1j), "complex128"),
    "truth tensor": (lambda v: torch.tensor(v > 0), r"torch\.bool"),
}


@pytest.mark.parametrize(("form", "word"), NOT_NUMBERS.values(), ids=NOT_NUMBERS)
def test_what_is_no_number_is_no_data(form, word):
    """NumPy turns dates, truth values and digits in text into numbers when asked; nobody asked."""
    points = data(1)
    with pytest.raises(PolyscoreError, match=f"'c1' must be real numbers; got .*{word}"):
        fit({**points, "c1": form(points["c1"])}, steps=2)


def test_ragged_and_sparse_data_are_refused():
    points = data(1)
    for values in ([[1.0, 2.0], [3.0]], torch.tensor(points["c1"]).to_sparse(), "points.csv"):
        with pytest.raises(PolyscoreError, match="'c1' must be"):
            fit({**points, "c1": values}, steps=2)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, np.int8, np.uint16, np.int64])
def test_every_kind_of_number_is_a_number(kind):
    points = {name: np.round(10 * values) + 50 for name, values in data(1).items()}
    same(fit({name: values.astype(kind) for name, values in points.items()}, steps=3), fit(points, steps=3))
    half = {name: torch.tensor(values).to(torch.bfloat16) for name, values in points.items()}
    same(fit(half, steps=3), fit({name: values.float().numpy() for name, values in half.items()}, steps=3))


def test_whole_numbers_beyond_float32_keep_their_differences():
    """2**24 + 1 is no float32; standardised in float64 its neighbours stay apart."""
    points = {"c0": 2**40 + np.arange(500, dtype=np.int64)[:, None]}
    p = fit(points, steps=3)
    assert p.units[1].item() == pytest.approx(np.arange(500).std(ddof=1), rel=1e-6)
    same(p, fit({"c0": np.arange(500.0)[:, None]}, steps=3))


def test_frames_and_series(tmp_path):
    pandas = pytest.importorskip("pandas")
    points = data(1)
    frames = {name: pandas.DataFrame(values, columns=["height", "width"]) for name, values in points.items()}
    p = fit(frames, steps=3)
    same(p, fit(points, steps=3))
    assert p.variables == ("height", "width")
    back = ps.load(p.save(tmp_path / "model"))
    assert back.variables == ("height", "width") and back.training == p.training
    assert fit(points, steps=3).variables == ("x1", "x2")
    turned = {**frames, "c1": frames["c1"][["width", "height"]]}
    with pytest.raises(PolyscoreError, match=r"same columns in one order.*'c1' has width, height"):
        fit(turned, steps=3)
    nullable = frames["c1"].astype("Float64")
    nullable.iloc[4, 1] = pandas.NA
    with pytest.raises(PolyscoreError, match=r"'c1' must be finite.*row 4, column 'width'"):
        fit({**frames, "c1": nullable}, steps=3)
    for other in (frames["c1"].assign(width="a"), frames["c1"].assign(width=pandas.Timestamp("2020-01-01"))):
        with pytest.raises(PolyscoreError, match=r"'c1' must hold numbers in every column; got .* in 'width'"):
            fit({**frames, "c1": other}, steps=3)
    with pytest.raises(PolyscoreError, match=r"'c1' must be a matrix.*data\[:, None\]"):
        fit({**frames, "c1": frames["c1"]["width"]}, steps=3)


def test_masked_entries_are_missing_ones():
    points = data(1)
    masked = np.ma.masked_array(points["c1"], mask=False)
    masked[3, 1] = np.ma.masked
    with pytest.raises(PolyscoreError, match=r"'c1' must be finite.*row 3, column 1"):
        fit({**points, "c1": masked}, steps=2)


def test_a_bad_row_names_its_dataset():
    bad = data(2)
    bad["c1"][7, 0] = math.nan
    with pytest.raises(PolyscoreError, match=r"'c1' in dataset 2 must be finite.*row 7"):
        fit_many([data(0), data(1), bad], [0, 1, 2], steps=2)


def test_numpys_numbers_are_numbers(tmp_path):
    options = {"steps": np.int64(4), "learning_rate": np.float32(1e-3), "standardise": np.bool_(True)}
    p = fit(data(1), **options, checkpoint=tmp_path / "run.safetensors", checkpoint_every=np.int64(2))
    p.save(tmp_path / "model")
    same(p, fit(data(1), steps=4, learning_rate=float(np.float32(1e-3)), standardise=True))
    with pytest.raises(PolyscoreError, match="steps must be a whole number"):
        fit(data(1), steps=True)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_a_time_limit_is_a_time(seconds):
    with pytest.raises(PolyscoreError, match="seconds must be at least 0"):
        fit(data(1), steps=3, seconds=seconds)


def test_the_clock_is_looked_at_every_step(monkeypatch):
    """A step of a second must not become a hundred of them."""
    now = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr(sys.modules["polyscore.training.loop"], "time", clock)
    assert fit(data(1), steps=300, seconds=5).training["steps"] == 6


MODES = {
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_inside_any_mode(mode):
    points = {name: torch.tensor(values) for name, values in data(1).items()}
    expected = fit(data(1), steps=5)
    with mode():
        inside = fit(points, steps=5)
    same(inside, expected)
    assert ps.Denoise(steps=2).sample(inside["c0"], 3).samples.shape == (3, 2)


def test_another_default_dtype_or_device_changes_nothing():
    expected = fit(data(1), steps=5)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        same(fit(data(1), steps=5), expected)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_scores_do_not_feel_autocast():
    """Half precision is no float32, whoever asks: networks, closed forms and what is composed of them."""
    p = fit(data(1), steps=20)
    closed = ps.Family({"c0": ps.Gaussian(cov=[[2.0, 0.7], [0.7, 1.0]]), "c1": ps.Mixture([[0.0, 1.0], [1.0, 0.0]])})
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    for family in (p, closed):
        q = family["c0"] * family["c1"] ** 0.5
        plain = q.score(x, 0.3), q.residual(x, 0.3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = q.score(x, 0.3), q.residual(x, 0.3)
        for one, other in zip(plain, inside, strict=True):
            assert torch.equal(one, other) and other.dtype == torch.float32
    member = p.members["c0"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = member.score(x, 0.3)
    assert torch.equal(inside, member.score(x, 0.3))


def test_threads_leave_the_processs_settings_alone():
    before = torch.get_float32_matmul_precision()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda seed: fit(data(1), steps=20, seed=seed), range(6)))
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:swarms should", "ignore:K should", "ignore:weight should")  # and rightly so
def test_the_catastrophe_of_composing_learned_scores():
    """The paper's factorized out-of-distribution setting in small: each condition is learned, their product is not.

    Correcting with K = 16 particles follows the errors of the scores out of the data's support. Fixed seeds; over
    training seeds the ratio below varies by some tens of percent, the bounds leave a factor.
    """
    parts = {
        "a1": ps.Gaussian(cov=[10.0, 1.0]),
        "a2": ps.Gaussian(cov=[1.0, 10.0]),
        "base": ps.Gaussian(cov=[1.0, 1.0]),
    }
    points = {name: part.sample(10_000, seed=i) for i, (name, part) in enumerate(parts.items())}
    p = ps.fit(
        points, kind="vanilla", device="cpu", steps=3000, width=128, learning_rate=1e-3, seed=1, standardise=False
    )
    for name, part in parts.items():
        samples = ps.Denoise(steps=200).sample(p[name], 3000, seed=0).samples
        distance = ps.sliced_wasserstein(samples, part.sample(3000, seed=50))
        assert distance < 0.5, name  # the sources' scale is 1 to 3.2
    q = p["a1"] * p["a2"] / p["base"]
    target = ps.exact(ps.base_composition(ps.Family(parts))).sample(2000, seed=51)
    distance = {}
    for k in (1, 16):
        samples = ps.FeynmanKac.published(particles=k, steps=300).sample(q, 2000, seed=2).samples
        distance[k] = ps.sliced_wasserstein(samples, target)
    assert distance[16] > 1.5 * distance[1]
