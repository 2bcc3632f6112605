"""Modules of a user's on a GPU: by table, compiled and captured, in every precision, and without waiting."""

from __future__ import annotations

import pytest
import torch

import polyscore as ps
from polyscore.errors import DegeneracyWarning
from polyscore.nn.fast import plane
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan
from training.test_modules import Images, Quiet, normal, together
from training.test_refined import NAMES, Sharp, family, q_of, trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:weight should", "ignore:swarms should", "ignore:log Z", "ignore:K should",
                               "ignore:samples must stay", "ignore:scores should"),
]  # fmt: skip

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

SAMPLERS = {"sde": ps.Denoise(steps=20), "fk": ps.FeynmanKac(particles=4, steps=20, clip=3.0)}
samplers = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


@pytest.fixture
def p():
    moved = family(trained()).to("cuda", precision="float32")
    yield moved
    moved.to("cpu", precision="auto", compile=False)


def test_a_table_is_read_from_many_particles_on(p, monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", 1000)
    direct = ps.Denoise(steps=30).sample(q_of(p), 2000, seed=1, device="cuda")
    run = ps.Denoise(steps=30).sample(q_of(p.to(precision="auto")), 2000, seed=1, device="cuda")
    few = ps.Denoise(steps=3).sample(q_of(p), 900, seed=1, device="cuda")
    assert (run.arithmetic, direct.arithmetic, few.arithmetic) == ("table", "model in float32", "model")
    assert 0 < (run.samples - direct.samples).norm() < 1e-3 * direct.samples.norm()


def test_a_table_that_is_too_coarse_is_given_up(monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", 1000)
    monkeypatch.setattr(plane, "SIDE", 64)
    p = family(Sharp()).to("cuda")
    run = ps.Denoise(steps=20).sample(q_of(p), 2000, seed=1, device="cuda")
    direct = ps.Denoise(steps=20).sample(q_of(p.to(precision="float32")), 2000, seed=1, device="cuda")
    p.to("cpu")
    assert run.arithmetic == "model"
    torch.testing.assert_close(run.samples, direct.samples, rtol=1e-3, atol=1e-3)


@samplers
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16", "fp16"])
def test_every_precision_is_near_float32(p, sampler, precision):
    x = normal(2000, 2).cuda()
    with torch.no_grad():
        exact = q_of(p).score(x, 0.4)
        got = q_of(p.to(precision=precision)).score(x, 0.4)
    assert got.dtype == torch.float32
    assert (got - exact).norm() <= (1e-6 if precision == "float32" else 3e-2) * exact.norm()
    run = sampler.sample(q_of(p), 500, seed=0, device="cuda")
    assert run.arithmetic == f"model in {precision}" and bool(run.samples.isfinite().all())


@samplers
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_compiled_and_captured_run_is_the_plain_one(sampler, precision):
    p = together(Quiet(classes=3, width=64), range(3)).to("cuda", precision=precision)
    q = ps.base_composition(p, base="c2")
    plain = sampler.sample(q, 600, seed=1, device="cuda")
    p.to(compile=True)
    with torch.no_grad():
        plan = make_plan(q, sampler, 1, torch.empty(0, device="cuda"))
    assert plan.graphable
    run = sampler.sample(q, 600, seed=1, device="cuda")
    assert run.arithmetic == f"compiled model in {precision}"
    bound = (1e-3 if precision == "float32" else 5e-2) * plain.samples.abs().max()
    near = ((run.samples - plain.samples).abs().amax(-1) <= bound).float().mean()
    assert near > 0.9  # a resampling may fall to the other side
    assert torch.equal(run.samples, sampler.sample(q, 600, seed=1, device="cuda").samples)


def test_a_model_that_decides_on_the_host_goes_step_by_step():
    class Looking(Quiet):
        def forward(self, x, t, c):
            return super().forward(x, t, c) * (1.0 if t[0].item() > 0.5 else 1.1)

    p = together(Looking(classes=3), range(3)).to("cuda", precision="float32")
    expected = ps.Denoise(steps=10).sample(p["c1"], 300, seed=0)
    p.to(compile=True)
    with pytest.warns(DegeneracyWarning, match="that a CUDA graph can hold.*step by step"):
        run = ps.Denoise(steps=10).sample(p["c1"], 300, seed=0)
    torch.testing.assert_close(run.samples, expected.samples, rtol=1e-3, atol=1e-3)


@samplers
@pytest.mark.parametrize("precision", ["auto", "float32", "tf32", "bf16"])
@pytest.mark.parametrize("told", ["classes", "embeddings", "discrete", "table"])
def test_no_step_waits_for_the_device(sampler, precision, told, monkeypatch):
    if told == "table":
        monkeypatch.setattr(plane, "WORTHWHILE", 100)
    schedule, discrete = (ps.DDPM(timesteps=100), True) if told == "discrete" else (ps.VP(), False)
    net = Quiet(classes=None if told == "embeddings" else 3)
    conditions = list(normal(3, 4)) if told == "embeddings" else range(3)
    p = together(net, conditions, schedule=schedule, discrete=discrete).to("cuda", precision=precision)
    q = ps.base_composition(p, base="c2")
    with torch.no_grad():
        plan = make_plan(q, sampler, 0, torch.empty(0, device="cuda"))
        for _ in iterate(plan, 0, 256):  # warms libraries and kernels
            pass
        states = iterate(plan, 0, 256)
        next(states)
        next(states)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                next(states)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@torch.no_grad()
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_convolutional_group_is_compiled(precision):
    group, other = Images(most_rows=24), Images()
    p, plain = (ps.Family({n: g.condition(c) for c, n in enumerate("abc")}).to("cuda") for g in (group, other))
    p.to(precision=precision, compile=True)
    x = normal(20, 3, 8, 8).cuda()
    exact = ps.base_composition(plain.to(precision="float32"), base="c").score(x, 0.5)
    got = ps.base_composition(p, base="c").score(x, 0.5)
    assert group.shapes == [24] * 3 and got.dtype == torch.float32
    assert (got - exact).norm() < (1e-4 if precision == "float32" else 3e-2) * exact.norm()


def test_a_family_of_networks_takes_bf16():
    p = ps.fit(
        {name: source.sample(300, seed=i) for i, (name, source) in enumerate(NAMES.items())}, kind="vanilla", steps=100
    )
    exact = ps.Denoise(steps=20).sample(q_of(p.to(precision="float32", compile=True)), 500, seed=1)
    run = ps.Denoise(steps=20).sample(q_of(p.to(precision="bf16")), 500, seed=1)
    assert (run.arithmetic, exact.arithmetic) == ("bf16", "float32")
    assert (run.samples - exact.samples).norm() < 5e-2 * exact.samples.norm()
