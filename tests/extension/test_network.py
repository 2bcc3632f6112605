"""A network that is none of ours: the noise of one Gaussian a condition, fitted to the data, plus layers that time
modulates one by one. It is trained as a stack, averaged, resumed, saved, read by table and sampled like a built-in."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import polyscore as ps
from polyscore.errors import PolyscoreError
from polyscore.fields import NetworkField, ScoreField, evaluators, prepare
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.nn import NETWORKS, Stack, uniform_start
from polyscore.nn.fast import plane
from polyscore.schema import Checked, count, setting
from polyscore.training.pools import stack_pools
from polyscore.training.trainer import Trainer


# --- the extension
@NETWORKS.register("film")
class Film(Stack):
    """sigma (x - alpha m_a) / (alpha^2 v_a + sigma^2) + alpha sigma f_a(x, t), every layer of f seeing time."""

    @dataclass(frozen=True)
    class Options(Checked):
        waves: int = setting(4, count(1, 64))

    per_condition = ("embedding", "mean", "variance")

    def __init__(self, architecture, seeds):
        super().__init__(architecture, seeds)
        a, d, w = architecture, architecture.dim, architecture.width
        start = lambda name, *shape: nn.Parameter(uniform_start(seeds, shape, shape[-2], name))  # noqa: E731
        self.first, self.last = start("first", 1, d, w), start("last", 1, w, d)
        self.embedding = start("embedding", a.conditions, 1, w)
        self.hidden = nn.ParameterList(start(f"hidden {k}", 1, w, w) for k in range(a.depth))
        self.film = nn.ParameterList(start(f"film {k}", 1, 2 * a.options.waves, 2 * w) for k in range(a.depth))
        self.register_buffer("mean", torch.zeros(len(seeds), a.conditions, 1, d))
        self.register_buffer("variance", torch.ones(len(seeds), a.conditions, 1, d))

    def observe(self, points, sizes):
        inside = torch.arange(points.shape[2], device=points.device) < sizes[..., None]
        number = sizes[..., None, None]
        self.mean.copy_(points.sum(2, keepdim=True) / number)
        self.variance.copy_(((points - self.mean).square() * inside[..., None]).sum(2, keepdim=True) / number)

    def embed(self, t):
        waves = 3 * t * torch.arange(1, 1 + self.architecture.options.waves, device=t.device)
        seen, schedule = torch.cat([waves.sin(), waves.cos()], -1), self.architecture.schedule
        return (schedule.alpha(t), schedule.sigma(t), *(seen @ film for film in self.film))

    def predict(self, x, at):
        (alpha, sigma, *seen), h = at, x @ self.first + self.embedding
        for weight, (gain, shift) in zip(self.hidden, (part.chunk(2, -1) for part in seen)):
            h = h + nn.functional.silu(h @ weight) * (1 + gain) + shift
        base = sigma * (x - alpha * self.mean) / (alpha**2 * self.variance + sigma**2)
        return base + alpha * sigma * (h @ self.last)


# --- end


SMALL = {"kind": "film", "width": 16, "depth": 2, "batch": 60, "device": "cpu"}
models = pytest.mark.parametrize("model", ["conditional", "separate"])


def data(seed=0, sizes=(200, 150, 90), dim=2, scale=1.0):
    source = np.random.default_rng(seed)
    return {f"c{a}": scale * ((1 + a) * source.normal(size=(n, dim)) + a) for a, n in enumerate(sizes)}


def fit(points, **options):
    return ps.fit(points, **{"steps": 30, **SMALL, **options})


def same(one, other):
    pairs = zip(one.groups, other.groups, strict=True)
    for a, b in ((a.network.tensors(), b.network.tensors()) for a, b in pairs):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def by_hand(family, name, waves=4):
    """eps(x, t) of a condition from the numbers of its network alone, written without the extension's own code."""
    group, index = family.members[name].group, family.members[name].index
    shared, tensors = group.network.architecture.shared, group.network.tensors()
    g, c = (0, index) if shared else (index, 0)
    own = {key: tensor[g] for key, tensor in tensors.items()}
    schedule = family.schedule

    def eps(x, t):
        alpha, sigma = schedule.alpha(t)[:, None], schedule.sigma(t)[:, None]
        angles = torch.stack([3 * k * t for k in range(1, waves + 1)], 1)
        seen = torch.cat([torch.sin(angles), torch.cos(angles)], 1)
        h = x @ own["first"][0] + own["embedding"][c, 0]
        for k in range(2):
            modulation = seen @ own[f"film.{k}"][0]
            width = h.shape[1]
            z = h @ own[f"hidden.{k}"][0]
            h = h + z * torch.sigmoid(z) * (1 + modulation[:, :width]) + modulation[:, width:]
        mean, variance = own["mean"][c, 0], own["variance"][c, 0]
        return sigma * (x - alpha * mean) / (alpha**2 * variance + sigma**2) + alpha * sigma * (h @ own["last"][0])

    return eps


@models
def test_it_learns_and_its_scores_are_those_of_its_numbers(model):
    points = data(scale=5.0)
    p = fit(points, model=model, steps=300, learning_rate=1e-2)
    assert "film" in repr(p) and p.training["recipe"]["kind"] == "film" and p.units is not None
    x, t = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.linspace(0.05, 0.95, 40)
    for name in p:
        expected = -by_hand(p, name)(x, t) / p.schedule.sigma(t)[:, None]
        got = p.members[name].standard_score(x, t)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        at_once = p.members[name].standard_score(x, 0.3)
        torch.testing.assert_close(at_once, p.members[name].standard_score(x, torch.full((40,), 0.3)))
        samples = ps.Denoise(steps=60).sample(p[name], 2000, seed=1).samples
        exact = ps.Gaussian(points[name].mean(0), np.cov(points[name].T)).sample(2000, seed=2)
        # Between two draws of 2,000: 0.05 deviations by chance, so 0.3 is never reached by it.
        assert ps.sliced_wasserstein(samples, exact) < 0.3 * points[name].std()


def test_it_starts_from_the_data():
    """Before any step the buffers hold each condition's moments, in the coordinates of the training."""
    points = data(sizes=(50, 20))
    trainer = Trainer(stack_pools([points], False), [1], ps.Recipe(**{k: v for k, v in SMALL.items() if k != "device"}),
                      torch.device("cpu"))  # fmt: skip
    for a, pool in enumerate(points.values()):
        np.testing.assert_allclose(trainer.network.mean[0, a, 0], pool.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(trainer.network.variance[0, a, 0], pool.var(0), rtol=1e-5)


@models
def test_a_stack_trains_each_as_if_alone(model):
    datasets, seeds = [data(1), data(2, (30, 40, 50)), data(3)], [5, 9, 5]
    together = ps.fit_many(datasets, seeds, steps=20, model=model, ema=0.9, **SMALL)
    for points, seed, family in zip(datasets, seeds, together, strict=True):
        alone = fit(points, seed=seed, steps=20, model=model, ema=0.9)
        for name, tensor in alone.groups[0].network.tensors().items():
            torch.testing.assert_close(family.groups[0].network.tensors()[name], tensor, rtol=1e-4, atol=1e-5)


@models
def test_a_training_resumes_with_the_same_bytes(model, tmp_path):
    path, options = tmp_path / "run", {"model": model, "ema": 0.8, "options": {"waves": 3}}
    whole = fit(data(), steps=50, **options)
    for steps in (13, 50):
        resumed = fit(data(), steps=steps, checkpoint=path, **options)
    same(resumed, whole)
    stored, about = read_tensors(path.with_suffix(".safetensors"))
    assert {"buffer.mean", "buffer.variance", "average.0"} <= set(stored) and about["recipe"]["kind"] == "film"
    with pytest.raises(PolyscoreError, match=r"differs in recipe \(options \{'waves': 3\}, asked \{'waves': 4\}\)"):
        fit(data(), steps=60, checkpoint=path, **options | {"options": {"waves": 4}})
    write_tensors(path.with_suffix(".safetensors"), {k: v for k, v in stored.items() if k != "buffer.mean"}, about)
    with pytest.raises(FileError, match="every tensor of its training"):
        fit(data(), steps=60, checkpoint=path, **options)


@models
@pytest.mark.parametrize("members", [1, 3])
def test_it_is_saved_and_loaded(model, members, tmp_path):
    p = fit(data(), model=model, members=members, options={"waves": 2}, schedule=ps.Cosine())
    path = p.save(tmp_path / "model")
    back = ps.load(path)
    same(back, p)
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    for name in p:
        assert torch.equal(back[name].score(x, 0.3), p[name].score(x, 0.3))
    assert back.save(tmp_path / "again").read_bytes() == path.read_bytes()
    assert repr(back) == repr(p) and back.training == p.training
    part = ps.load(ps.Family({"only": p.members["c1"]}).save(tmp_path / "part"))
    assert torch.equal(part["only"].score(x, 0.3), p["c1"].score(x, 0.3))


def test_a_file_of_a_kind_that_is_not_registered(tmp_path):
    """In a process that has not imported this module: refused, with the name of what to import; and nothing was."""
    path = fit(data(), steps=2).save(tmp_path / "model")
    script = "import sys, polyscore as ps\ntry: ps.load(sys.argv[1])\nexcept ValueError as e: print(e)\n"
    script += "print('test_network' in ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert "must hold networks of a kind that is known here; got 'film', known are vanilla" in done.stdout
    assert f"Import the module that registers it first: it was written from {__name__!r}" in done.stdout
    assert done.stdout.endswith("False\n")


FORGED = {
    "a layer more": {"depth": 3}, "other width": {"width": 17}, "endless": {"depth": 10**12}, "wide": {"width": 10**9},
    "text": {"depth": "2"}, "true": {"conditions": True}, "no conditions": {"conditions": 0}, "one more": {"more": 1},
    "other conditions": {"conditions": 2}, "separate": {"shared": False}, "not said": {"shared": None},
    "options": {"options": {"waves": 10**9}}, "no option": {"options": {"layers": 3}}, "no mapping": {"options": [1]},
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_architecture_is_refused(forged, tmp_path):
    path = fit(data(), steps=2).save(tmp_path / "model")
    tensors, about = read_tensors(path)
    write_tensors(path, tensors, {**about, "architecture": {**about["architecture"], **forged}})
    with pytest.raises(FileError, match="every tensor of its network, in shape"):
        ps.load(path)


@pytest.mark.parametrize("change", [
    {"0.mean": torch.zeros(1, 3, 1, 3)}, {"0.mean": torch.zeros(2, 3, 1, 2)}, {"0.first": torch.zeros(())},
    {"0.first": torch.zeros(1, 1, 2, 16, dtype=torch.int64)}, {"0.mean": None}, {"0.hidden.1": None},
    {"0.first": torch.zeros(1, 1, 2, 16, dtype=torch.float64)},
])  # fmt: skip
def test_forged_tensors_are_refused(change, tmp_path):
    path = fit(data(), steps=2).save(tmp_path / "model")
    tensors, about = read_tensors(path)
    write_tensors(path, {k: v for k, v in (tensors | change).items() if v is not None}, about)
    with pytest.raises(FileError, match="every tensor of its network, in shape"):
        ps.load(path)


@pytest.mark.parametrize("kind", ["flim", "forest", 3])
def test_a_kind_that_nobody_registered(kind, tmp_path):
    with pytest.raises(PolyscoreError, match="kind must be one of vanilla, structured, mixture, film"):
        fit(data(), kind=kind)
    path = fit(data(), steps=2).save(tmp_path / "model")
    tensors, about = read_tensors(path)
    write_tensors(path, tensors, {**about, "network": kind})
    with pytest.raises(FileError, match="of a kind that is known here"):
        ps.load(path)


def test_options_are_checked_before_the_work():
    with pytest.raises(PolyscoreError, match=r"must be one of waves; got 'wave'\. Did you mean 'waves'"):
        fit(data(), options={"wave": 3})
    with pytest.raises(PolyscoreError, match="waves must be a whole number of at least 1, and at most 64"):
        fit(data(), options={"waves": 0})
    with pytest.raises(PolyscoreError, match="options of 'vanilla'"):
        fit(data(), kind="vanilla", options={"waves": 3})
    recipe = ps.Recipe(kind="film", options={"waves": np.int64(3)})
    assert ps.Recipe.from_dict(recipe.to_dict()) == recipe and type(recipe.options["waves"]) is int
    assert "kind" not in ps.Recipe(kind="vanilla").to_dict() and hash(recipe) == hash(ps.Recipe(kind="film"))


def learned(p):
    """The same scores by plain functions that share nothing, in the same units."""

    def model(name):
        eps = by_hand(p, name)
        return ps.Learned(lambda x, t: eps(x, t), (2,), p.schedule)

    return ps.Family({name: model(name) for name in p}, units=p.units)


@models
@pytest.mark.parametrize("expression", ["c0 * c1 / c2", "c0^0.8 * c1^0.7", "c2"])
def test_it_is_sampled_like_any_network(model, expression):
    p = fit(data(scale=3.0), model=model, steps=100, learning_rate=3e-3)
    q, reference = ps.parse(expression, p), ps.parse(expression, learned(p))
    times, x = torch.linspace(0.999, 0.01, 12, dtype=torch.float64), torch.randn(5, 4, 2)
    field = prepare(q, times, x)
    assert isinstance(field, NetworkField) and field.graphable and field.arithmetic(20) == "float32"
    for i in (0, 5, 11):
        got, want = field(x, i), prepare(reference, times, x)(x, i)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())
        assert all(torch.equal(a, b) for a, b in zip(field(x, torch.tensor([i])), got, strict=True))
    for sampler in (ps.Denoise(steps=8), ps.FeynmanKac(particles=4, steps=8, clip=3.0)):
        one, other = (sampler.sample(which, 40, seed=3) for which in (q, reference))
        near = torch.isclose(one.samples, other.samples, rtol=1e-2, atol=1e-2).all(-1).float().mean()
        assert near >= 0.9  # a weight on the edge of a resampling slot may fall to the other side
        assert one.samples.shape == (40, 2) and one.arithmetic == "float32"


def test_an_ensemble_is_one_field_and_the_mean_of_its_models():
    for model in ("conditional", "separate"):
        p = fit(data(), members=3, model=model)
        q, x = p["c2"] * p["c0"] ** 0.5, torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
        times = torch.tensor([0.7], dtype=torch.float64)
        field, standard = prepare(q, times, x), p.units.standardise(x)
        assert isinstance(field, NetworkField)
        scores = [torch.stack([m.standard_score(standard, 0.7) for m in p.members[name].models]).mean(0)
                  for name in ("c2", "c0")]  # fmt: skip
        torch.testing.assert_close(field(standard, 0)[0], scores[0] + 0.5 * scores[1], rtol=1e-4, atol=1e-5)
        assert bool((p.members["c0"].spread(x, 0.7) > 0).all())


def test_it_is_read_by_table_in_the_plane():
    p = fit(data(), steps=200, learning_rate=3e-3)
    q, runs = ps.parse("c0^0.8 * c1^0.5 * c2^-0.2", p), {}
    for precision in ("table", "auto", "float32"):
        p.to(precision=precision)
        runs[precision] = ps.Denoise(steps=4).sample(q, plane.WORTHWHILE, seed=2, max_particles=plane.WORTHWHILE)
    assert [run.arithmetic for run in runs.values()] == ["table", "table", "float32"]
    plain = runs.pop("float32").samples
    for run in runs.values():
        assert not torch.equal(run.samples, plain)
        assert (run.samples - plain).abs().max() < 1e-3 * plain.abs().max()
    few = [ps.Denoise(steps=4).sample(q.family.to(precision=one) and q, 100, seed=2) for one in ("auto", "float32")]
    assert few[0].arithmetic == "float32" and torch.equal(few[0].samples, few[1].samples)


def test_it_moves_with_its_family():
    p = fit(data(), members=2)
    picked = p.groups[0].network.pick([0, 2])
    assert p.to("meta") is p and p.device == torch.device("meta")
    assert {group.network.tensors()["mean"].device.type for group in p.groups} == {"meta"}
    assert picked.device == torch.device("cpu")  # and what was picked before stays
    with pytest.raises(PolyscoreError, match="fp8"):
        p.to(precision="fp8")
    assert evaluators.EagerHalf.serves(evaluators.Case(picked, torch.zeros(1), "fp16")) is False


@contextmanager
def registered(kind):
    """Register a kind under its class's name for a while."""
    NETWORKS.register(kind.__name__)(kind)
    try:
        yield
    finally:
        del NETWORKS._entries[kind.__name__]


def test_two_kinds_of_one_architecture_are_two(tmp_path):
    """An ensemble of both is sampled one by one, and no file holds it."""

    class Other(Film):
        pass

    with registered(Other):
        one, other = (fit(data(), kind=kind, standardise=False, steps=5) for kind in ("film", "Other"))
        p = ps.Family({"c0": ps.Ensemble([one.members["c0"], other.members["c0"]])})
        assert isinstance(prepare(p["c0"], torch.tensor([0.5], dtype=torch.float64), torch.zeros(2, 1, 2)), ScoreField)
        assert ps.Denoise(steps=3).sample(p["c0"], 5).samples.shape == (5, 2)
        with pytest.raises(PolyscoreError, match="Save each part by itself"):
            p.save(tmp_path / "model")


def test_a_stack_that_forgot_an_axis_is_refused_before_the_work():
    class Plain(Film):
        def __init__(self, architecture, seeds):
            super().__init__(architecture, seeds)
            self.linear = nn.Linear(3, 3)

    class Untold(Film):
        per_condition = ()

    class Misnamed(Film):
        per_condition = ("embeding",)

    words = {Plain: r"'linear.weight' of Plain must have 2 rows of floats.* Use nn.Parameter\(uniform_start",
             Untold: "Untold must name what differs",
             Misnamed: r"'embeding' in per_condition must name a tensor"}  # fmt: skip
    for kind, word in words.items():
        with registered(kind), pytest.raises(PolyscoreError, match=word):
            fit(data(), kind=kind.__name__, members=2)
    with pytest.raises(PolyscoreError, match="a name of its own; got 'vanilla' again"):
        NETWORKS.register("vanilla")(Film)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_file_in_another_precision_is_refused(dtype, tmp_path):
    """It was read, and failed in the middle of a sampling."""
    tensors, about = read_tensors(ps.fit(data(), **SMALL, steps=2).save(tmp_path / "film"))
    write_tensors(tmp_path / "other.safetensors", {name: t.to(dtype) for name, t in tensors.items()}, about)
    with pytest.raises(FileError, match=rf"in {dtype} instead of torch.float32"):
        ps.load(tmp_path / "other")


@pytest.mark.parametrize("shape", [lambda x: x[..., :1], lambda x: x[:, :, :1], lambda x: x.sum(-1), lambda x: (x,)])
def test_a_network_whose_noise_is_not_like_x_is_refused_before_training(shape, monkeypatch):
    """The loss would broadcast it, and train something else."""
    right = Film.predict
    monkeypatch.setattr(Film, "predict", lambda self, x, at: shape(right(self, x, at)))
    with pytest.raises(PolyscoreError, match=r"Film\.predict must return the noise like x, \(1, 3, 4, 2\); got"):
        ps.fit(data(), **SMALL, steps=2)
