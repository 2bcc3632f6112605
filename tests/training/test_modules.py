"""Modules of a user's in `ps.Learned`: one call for all conditions, every precision, compiled, without waiting."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import polyscore as ps
from polyscore.errors import ArgumentError, DegeneracyWarning, PolyscoreError
from polyscore.models import calls
from polyscore.models.calls import Compiled
from polyscore.models.group import Group
from polyscore.samplers import graph
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan
from training.looks import Looks

# Random networks belong to no densities, so their weights degenerate; here only equality counts.
pytestmark = pytest.mark.filterwarnings("ignore::polyscore.errors.DegeneracyWarning")


class Net(nn.Module):
    """eps(x, t, class or embedding); it notes how many rows it was asked about, and in what dtype it computed."""

    def __init__(self, dim=2, width=16, classes=None, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.told = nn.Embedding(classes, 4) if classes else nn.Identity()
            self.first, self.last = nn.Linear(dim + 1 + 4, width), nn.Linear(width, dim)
        self.rows, self.types = [], set()

    def forward(self, x, t, c):
        self.rows.append(len(x))
        hidden = torch.tanh(self.first(torch.cat([x, t[:, None], self.told(c)], -1)))
        self.types.add(hidden.dtype)
        return 0.9 * x + 0.1 * self.last(hidden)


class Quiet(Net):
    """The same without a notebook, which a compiler would have to trace."""

    def forward(self, x, t, c):
        return 0.9 * x + 0.1 * self.last(torch.tanh(self.first(torch.cat([x, t[:, None], self.told(c)], -1))))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def embeddings(count=3):
    return list(normal(count, 4, seed=7))


def together(net, conditions, dim=2, prediction="eps", schedule=None, **options):
    schedule = schedule or ps.VP()
    return ps.Family({f"c{k}": ps.Learned(net, (dim,), schedule, prediction, condition=c, **options)
                      for k, c in enumerate(conditions)})  # fmt: skip


def apart(net, conditions, dim=2, prediction="eps", schedule=None, **options):
    """The same scores by functions that share nothing, one call a condition."""

    def alone(c):
        told = torch.as_tensor(c)
        return lambda x, t: net(x, t.to(x), told.expand(len(x), *told.shape))

    schedule = schedule or ps.VP()
    members = {f"c{k}": ps.Learned(alone(c), (dim,), schedule, prediction, **options) for k, c in enumerate(conditions)}
    return ps.Family(members)


EXPONENTS = [{"c0": 1.0, "c1": 1.0, "c2": -1.0}, {"c2": 0.8, "c0": 0.7}, {"c1": 1.0}]


@torch.no_grad()
@pytest.mark.parametrize("exponents", EXPONENTS, ids=str)
@pytest.mark.parametrize("told", ["classes", "embeddings"])
@pytest.mark.parametrize(("dim", "prediction"), [(2, "eps"), (3, "v"), (1, "x0"), (3, "score"), (2, "velocity")])
def test_members_that_share_a_module_go_through_it_in_one_batch(exponents, told, dim, prediction):
    conditions = [2, 0, 4] if told == "classes" else embeddings()
    net = Net(dim, classes=5 if told == "classes" else None)
    q = ps.Composition(together(net, conditions, dim, prediction), exponents)
    other = ps.Composition(apart(net, conditions, dim, prediction), exponents)
    x = normal(2, 3, dim, seed=1)
    for t in (0.4, torch.tensor(0.7), torch.linspace(0.1, 0.9, 6).view(2, 3)):
        net.rows.clear()
        got = q.score(x, t), q.residual(x, t)
        assert net.rows == [6 * len(exponents)] * 2
        for one, expected in zip(got, (other.score(x, t), other.residual(x, t)), strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize("zero_snr", [False, True])
def test_discrete_timesteps_and_conditions(zero_snr):
    schedule = ps.DDPM(timesteps=50, zero_snr=zero_snr)

    class Steps(Net):
        def forward(self, x, t, c):
            assert t.dtype == torch.long
            return super().forward(x, t / 50, c)

    net = Steps(classes=3)
    options = {"schedule": schedule, "discrete": True}
    p, other = together(net, [0, 1], **options), apart(net, [0, 1], schedule=schedule, discrete=True)
    # The twin's function casts t to floats, as `Steps` would not have it.
    other = ps.Family({f"c{k}": ps.Learned(lambda x, t, k=k: net(x, t, torch.full_like(t, k)), (2,), schedule,
                                           discrete=True) for k in (0, 1)})  # fmt: skip
    x = normal(5, 2)
    for t in (0.013, 0.5, torch.linspace(0.05, 0.95, 5)):
        torch.testing.assert_close((p["c0"] * p["c1"]).score(x, t), (other["c0"] * other["c1"]).score(x, t))


def test_samplers_ask_for_all_conditions_at_once():
    net = Net(classes=3)
    p, other = together(net, range(3)), apart(net, range(3))
    for sampler in (ps.Denoise(steps=6), ps.FeynmanKac(particles=4, steps=6, clip=5.0)):
        net.rows.clear()
        run = sampler.sample(ps.base_composition(p, base="c2"), 10, seed=1)
        assert net.rows == [3 * 10 * run.particles.shape[1]] * 7  # the start and six steps
        assert run.arithmetic == "model"
        expected = sampler.sample(ps.base_composition(other, base="c2"), 10, seed=1)
        torch.testing.assert_close(run.samples, expected.samples, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("prediction", ["eps", "x0", "v", "velocity", "score"])
@pytest.mark.parametrize("schedule", [ps.VP(), ps.Cosine(), ps.LinearFlow()])
def test_levels_that_are_known_beforehand_are_those_of_each_time(prediction, schedule):
    """What a run asks of one model at the times of its grid is what the family says at each of them."""
    p = together(Net(dim=3), embeddings(), dim=3, prediction=prediction, schedule=schedule)
    q = p["c0"] ** 0.7 * p["c1"] / p["c2"] ** 0.4
    plan, x = make_plan(q, ps.FeynmanKac(4, steps=7), 0, torch.empty(0)), normal(5, 4, 3)
    (asked,) = plan.field.evaluators
    assert (asked.source is not None) == (prediction in ("eps", "x0", "v"))
    for i in (0, 3, 7):
        expected = p.standard_scores(x, plan.times[i].float(), q.conditions)
        torch.testing.assert_close(asked(x, i), expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


def test_levels_are_not_known_beforehand_where_models_differ_or_have_their_own():
    net, vp = Net(), ps.VP()
    alone, shared = together(net, embeddings()), ps.Learned(net, (2,), vp, condition=normal(4))
    other = ps.Learned(Net(seed=1), (2,), vp, condition=normal(4))
    mixed = ps.Family({"a": shared, "b": other}), ps.Family({"a": shared, "b": ps.Gaussian(cov=2.0)})
    discrete = together(net, embeddings(), schedule=ps.DDPM(), discrete=True)
    sources = [
        make_plan(next(iter(p.values())) * list(p.values())[1], ps.Denoise(3), 0, torch.empty(0))
        .field.evaluators[-1]
        .source
        for p in (alone, *mixed, discrete)
    ]
    assert [source is not None for source in sources] == [True, False, False, False]


def test_a_shared_module_lives_as_long_as_its_members():
    """And another with the same address is another."""
    net = Net(classes=3)
    one, two = (ps.Learned(net, (2,), ps.VP(), condition=c) for c in (0, 1))
    assert one.group is two.group and one.group is not None
    assert ps.Learned(net, (2,), ps.Cosine(), condition=1).group is not one.group
    assert ps.Learned(Net(classes=3), (2,), ps.VP(), condition=1).group is not one.group
    assert ps.Learned(lambda x, t: x, (2,), ps.VP()).group is None
    assert "condition=1" in repr(two)


@pytest.mark.parametrize("bad", ["cat", 1.5, True, [1, 2]])
def test_a_condition_is_a_number_or_a_tensor(bad):
    with pytest.raises(ArgumentError, match="condition must be a whole number, a tensor or None"):
        ps.Learned(Net(classes=3), (2,), ps.VP(), condition=bad)


def test_a_model_that_takes_no_condition_is_named():
    p = ps.Family({"a": ps.Learned(lambda x, t: x, (2,), ps.VP(), condition=1)})
    with pytest.raises(
        PolyscoreError, match=r"condition 'a': a model must take x \(3, 2\).*c \(3,\) torch.int64 on cpu"
    ):
        p["a"].score(torch.zeros(3, 2), 0.5)


@torch.no_grad()
@pytest.mark.parametrize(("width", "most"), [(16, 8192), (256, 2048), (512, 1024)])
def test_a_cpu_takes_as_many_rows_as_stay_in_its_cache(width, most):
    net = Net(classes=3, width=width)
    ps.base_composition(together(net, range(3)), base="c2").score(normal(3000, 2), 0.5)
    assert sum(net.rows) == 9000 and most / 2 < max(net.rows) <= most


def test_an_embedding_that_is_learned_is_told_as_it_is_now():
    """Changed in place, as an optimiser does, and with its gradient, though a run without gradients came before."""
    net, told = Net(width=8), normal(4, seed=3).requires_grad_()
    p, x = together(net, [told]), normal(5, 2)
    for _ in range(2):
        with torch.no_grad():
            expected = apart(net, [told])["c0"].score(x, 0.4)
            torch.testing.assert_close(p["c0"].score(x, 0.4), expected)
        (gradient,) = torch.autograd.grad(p["c0"].score(x, 0.4).square().sum(), told)
        assert gradient.norm() > 0
        with torch.no_grad():
            told.sub_(gradient)


# ---- Precision -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_half_precision_is_inside_and_float32_outside():
    net = Net(classes=3, width=64)
    p = together(net, range(3))
    q, x = ps.base_composition(p, base="c2"), normal(50, 2)
    exact = q.score(x, 0.5)
    assert net.types == {torch.float32}
    for precision, inside in (("bf16", torch.bfloat16), ("fp16", torch.float32), ("tf32", torch.float32)):
        net.types.clear()
        got = p.to(precision=precision) and q.score(x, 0.5)
        assert got.dtype == torch.float32 and net.types == {inside}, precision  # a CPU has neither fp16 nor TF32
        assert torch.equal(got, exact) == (inside == torch.float32)
        assert (got - exact).norm() < 2e-2 * exact.norm()
    for precision, said in (("bf16", "bf16"), ("fp16", "float32"), ("tf32", "float32")):
        run = ps.Denoise(steps=4).sample(p.to(precision=precision) and q, 5, seed=0)
        assert run.arithmetic == f"model in {said}" and run.samples.dtype == torch.float32
    assert torch.equal((p.to(precision="float32") and q).score(x, 0.5), exact)


@torch.no_grad()
def test_a_callers_autocast_does_not_reach_a_model_that_was_told():
    net = Net(classes=3)
    q, x = together(net, range(3)).to(precision="float32")["c1"], normal(5, 2)
    with torch.autocast("cpu", torch.bfloat16):
        q.score(x, 0.5)
    assert net.types == {torch.float32}


@pytest.mark.parametrize(("options", "match"), [
    ({"precision": "half"}, "precision must be one of auto, table, fp16, bf16, tf32, float32; got 'half'"),
    ({"compile": "yes"}, "compile must be True, False or None; got 'yes'"),
])  # fmt: skip
def test_what_a_family_cannot_be_told(options, match):
    with pytest.raises(ArgumentError, match=match):
        together(Net(classes=3), range(2)).to(**options)


# ---- Compiled ------------------------------------------------------------------------------------------------------


@pytest.fixture
def uncompiled(monkeypatch):
    """Let the compiler trace, and compile nothing."""
    monkeypatch.setattr(calls, "BACKEND", "eager")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@torch.no_grad()
def test_a_compiled_model_is_the_model(uncompiled):
    p = together(Quiet(classes=3), range(3))
    q, sampler = ps.base_composition(p, base="c2"), ps.FeynmanKac(particles=4, steps=5, clip=3.0)
    expected = sampler.sample(q, 20, seed=1)
    run = sampler.sample(p.to(precision="float32", compile=True) and q, 20, seed=1)
    assert run.arithmetic == "compiled model in float32"
    torch.testing.assert_close(run.samples, expected.samples, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(q.score(normal(5, 2), 0.3), (p.to(compile=False) and q).score(normal(5, 2), 0.3))
    assert sampler.sample(q, 20, seed=1).arithmetic == "model in float32"
    p.to(precision="bf16", compile=True)
    assert (q.score(normal(5, 2), 0.3) - expected.samples.new_tensor(0)).dtype == torch.float32


def test_shapes_are_few_and_others_are_padded_or_go_as_they_are(uncompiled):
    asked = []

    def model(x, t):
        return x * t[:, None]

    compiled = Compiled(model)
    compiled.quick = lambda x, t: asked.append(len(x)) or model(x, t)
    for rows in (100, 60, 50, 49, 100, 10, 3, 2, 1, 400):
        x, t = normal(rows, 2, seed=rows), torch.rand(rows)
        assert torch.equal(compiled(x, t), model(x, t))
    # 60 and 50 as 100; 49, 10, 3 by themselves; 2 as 3; 1 as it is, all shapes being taken; 400 is larger than all.
    assert asked == [100, 100, 100, 49, 100, 10, 3, 3, 400]


class Images(Group):
    """A convolutional network that is told a class, written without any thought of precision."""

    def __init__(self, most_rows=None):
        super().__init__((3, 8, 8), ps.VP())
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1))
        self.most_rows, self.shapes, self.types = most_rows, [], []

    def scores(self, x, t, members):
        points = x.reshape(-1, 3, 8, 8)
        self.shapes.append(len(members) * len(points))
        told = torch.cat([torch.full_like(points[:, :1], member.index) for member in members])
        eps = self.model(torch.cat([points.repeat(len(members), 1, 1, 1), told], 1))
        self.types.append(eps.dtype)
        sigma = self.schedule.sigma(t.expand(x.shape[:-3])).reshape(-1, 1, 1, 1)
        return (-eps.view(len(members), *points.shape) / sigma).view(len(members), *x.shape)


@torch.no_grad()
@pytest.mark.parametrize("t", [torch.tensor(0.4), torch.linspace(0.1, 0.9, 10)], ids=["one time", "times"])
def test_groups_have_precision_and_are_compiled_in_pieces_of_one_shape(uncompiled, t):
    group, bounded = Images(), Images(most_rows=7)
    names = {"a": 0, "b": 2, "base": 5}
    p, small = (ps.Family({name: g.condition(c) for name, c in names.items()}) for g in (group, bounded))
    x = normal(10, 3, 8, 8)
    exact = ps.base_composition(p).score(x, t)
    small.to(precision="float32", compile=True)
    got = ps.base_composition(small).score(x, t)
    torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-4 * exact.abs().max().item())
    assert bounded.shapes == [6] * 5
    assert bounded.model[0].weight.is_contiguous(memory_format=torch.channels_last)
    small.to(precision="bf16")
    half = ps.base_composition(small).score(x, t)
    assert bounded.types[-1] == torch.bfloat16 and half.dtype == torch.float32
    assert 0 < (half - exact).norm() < 3e-2 * exact.norm()
    small.to(precision="float32", compile=False)
    assert bounded.model._compiled_call_impl is None
    bounded.shapes.clear()
    torch.testing.assert_close(ps.base_composition(small).score(x, t), exact, rtol=1e-4, atol=1e-3)
    assert bounded.shapes == [6] * 5  # 2 rows a condition divide 10
    run = ps.Denoise(steps=3).sample(ps.base_composition(small), 4, seed=0)
    assert run.arithmetic == "model in float32" and run.samples.shape == (4, 3, 8, 8)


def test_pieces_that_do_not_divide_are_padded_for_compiled_groups_alone(uncompiled):
    group = Images(most_rows=8)
    p = ps.Family({"a": group.condition(0), "b": group.condition(2)})
    x = normal(10, 3, 8, 8)
    with torch.no_grad():
        plain = (p["a"] * p["b"]).score(x, 0.4)
        assert group.shapes == [8, 8, 4]
        padded = (p.to(compile=True)["a"] * p["b"]).score(x, 0.4)
    assert group.shapes[3:] == [8, 8, 8]
    torch.testing.assert_close(padded, plain, rtol=1e-4, atol=1e-4 * plain.abs().max().item())


# ---- The loop waits for nothing ------------------------------------------------------------------------------------


def looks(q, sampler, swarms=6):
    with torch.no_grad():
        plan = make_plan(q, sampler, 0, torch.empty(0))
        states = iterate(plan, 0, swarms)
        next(states)
        plan.coefficients(0)
        _ = plan.used, plan.ends_alike, plan.scheme
        with Looks() as mode:
            for _ in states:
                pass
    return mode.times


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16", "auto"])
@pytest.mark.parametrize("told", ["classes", "embeddings", "discrete"])
def test_no_step_reads_a_number(precision, told):
    discrete = told == "discrete"
    net = Net(classes=None if told == "embeddings" else 3)
    schedule = ps.DDPM(timesteps=100) if discrete else ps.VP()
    conditions = embeddings() if told == "embeddings" else range(3)
    if discrete:
        net.forward = lambda x, t, c: Net.forward(net, x, t / 100, c)
    p = together(net, conditions, schedule=schedule, discrete=discrete).to(precision=precision)
    for sampler in (ps.Denoise(steps=5), ps.FeynmanKac(particles=3, steps=5, clip=2.0, threshold=0.5)):
        assert looks(ps.base_composition(p, base="c2"), sampler) == 0


def test_a_step_that_reads_a_number_is_counted():
    """The counter sees a model that looks at its time."""
    p = ps.Family({"a": ps.Learned(lambda x, t: x * (1 if t[0].item() > 0.5 else 2), (2,), ps.VP())})
    assert looks(p["a"], ps.Denoise(steps=5)) == 5


def test_a_model_that_no_graph_can_hold_goes_step_by_step(monkeypatch):
    """As on a GPU, whose capture fails; a field of our own that cannot be captured is an error."""
    q = together(Quiet(classes=3), range(3))["c1"]
    plan = make_plan(q, ps.Denoise(steps=3), 0, torch.empty(0))

    def fails(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graph, "capture", fails)
    with pytest.warns(DegeneracyWarning, match="that a CUDA graph can hold.*not permitted.*step by step"):
        assert graph.captured(plan, None, {}) is None
    own = make_plan(ps.Family({"a": ps.Gaussian()})["a"], ps.Denoise(steps=3), 0, torch.empty(0))
    with pytest.raises(RuntimeError, match="capturing"):
        graph.captured(own, None, {})


def test_only_compiled_models_are_captured(uncompiled):
    p = together(Quiet(classes=3), range(3))
    assert not make_plan(p["c0"], ps.Denoise(steps=3), 0, torch.empty(0)).field.graphable
    p.to(compile=True)
    assert make_plan(p["c0"], ps.Denoise(steps=3), 0, torch.empty(0)).field.graphable
    mixed = ps.Family({"a": p.members["c0"], "b": ps.Gaussian()})
    assert not make_plan(mixed["a"] * mixed["b"], ps.Denoise(steps=3), 0, torch.empty(0)).field.graphable


class Odd(nn.Module):
    """A network with a part that may answer otherwise in training."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), part, nn.Linear(6, 2))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([x, t[:, None]], 1))


def asked(part: nn.Module, training: bool, ensemble: bool) -> list[str]:
    """The warnings of the mode in a run of such a network, in a product with a closed form."""
    one = ps.Learned(Odd(part).train(training), (2,), ps.VP())
    p = ps.Family({"odd": ps.Ensemble([one]) if ensemble else one, "wide": ps.Gaussian(cov=2.0)})
    with pytest.warns(DegeneracyWarning) as told:
        warnings.warn("one at least", DegeneracyWarning, stacklevel=1)
        ps.Denoise(steps=3).sample(p["odd"] * p["wide"], 4, seed=1)
    return [str(w.message) for w in told if "evaluation mode" in str(w.message)]


@pytest.mark.parametrize("ensemble", [False, True])
@pytest.mark.parametrize("part", [nn.Dropout(0.3), nn.BatchNorm1d(6)], ids=["dropout", "batch norm"])
def test_a_module_in_training_mode_is_told_of(part, ensemble):
    """Its samples are others at every call."""
    (said,) = asked(part, True, ensemble)
    assert f"Odd is in training mode, in which its {type(part).__name__} makes another answer" in said
    assert asked(part, False, ensemble) == []


@pytest.mark.parametrize("part", [nn.SiLU(), nn.Dropout(0.0), nn.LayerNorm(6)], ids=["plain", "nothing", "layer norm"])
def test_modules_that_have_one_mode_may_be_in_either(part):
    assert asked(part, True, False) == []


class OddGroup(Group):
    """Conditions of one network, asked by a group of one's own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__((2,), ps.VP())
        self.model = model

    def scores(self, x: torch.Tensor, t: torch.Tensor, members: Sequence[Any]) -> torch.Tensor:
        return torch.stack([self.model(x, t.expand(len(x))) for _ in members])


@pytest.mark.parametrize("training", [False, True])
def test_a_group_in_training_mode_is_told_of(training):
    group = OddGroup(Odd(nn.Dropout(0.3)).train(training))
    p = ps.Family({"odd": group.condition(0), "too": group.condition(1)})
    with pytest.warns(DegeneracyWarning) as told:
        warnings.warn("one at least", DegeneracyWarning, stacklevel=1)
        ps.Denoise(steps=3).sample(p["odd"] * p["too"] ** 0.5, 4, seed=1)
    assert sum("Odd is in training mode" in str(w.message) for w in told) == training
