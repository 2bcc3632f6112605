"""A network from outside the package on a GPU: captured as eager, in training and sampling; read by table."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

import polyscore as ps
from polyscore.fields import NetworkField
from polyscore.nn import NETWORKS
from polyscore.nn.fast import plane
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan
from polyscore.training.pools import stack_pools
from polyscore.training.trainer import _WARM_UP, Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:weight should", "ignore:swarms should", "ignore:log Z", "ignore:K should"),
]

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
if "film" not in NETWORKS:  # the file may have been collected already, under another name
    importlib.import_module("extension.test_network")

SMALL = {"kind": "film", "width": 32, "depth": 2, "batch": 96}
models = pytest.mark.parametrize("model", ["conditional", "separate"])


def data(seed=0, sizes=(200, 150, 90), dim=2):
    source = np.random.default_rng(seed)
    return {f"c{a}": (1 + a) * source.normal(size=(n, dim)) + a for a, n in enumerate(sizes)}


def trainer(model, **options):
    pools = stack_pools([data(1), data(2)], True)
    return Trainer(pools, [3, 4], ps.Recipe(model=model, ema=0.9, **{**SMALL, **options}), torch.device("cuda"))


@models
def test_a_captured_step_is_an_eager_one(model):
    """130 steps, over the end of a page: the same to rounding."""
    captured, eager = trainer(model), trainer(model)
    for _ in range(130):
        captured.advance()
        eager._graph, eager._eager_steps = None, 0
        eager.advance()
    assert captured._graph is not None and eager._graph is None and _WARM_UP < 130
    for (name, one), other in zip(captured.tensors().items(), eager.tensors().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=name)


@models
def test_it_trains_resumes_and_is_loaded(model, tmp_path):
    options, path = {**SMALL, "model": model, "ema": 0.9}, tmp_path / "run.safetensors"
    whole = ps.fit(data(), steps=130, **options)
    for steps in (40, 130):
        resumed = ps.fit(data(), steps=steps, checkpoint=path, **options)
    x = torch.randn(50, 2, device="cuda")
    assert whole.device.type == "cuda"
    torch.testing.assert_close(resumed["c0"].score(x, 0.5), whole["c0"].score(x, 0.5), rtol=1e-5, atol=1e-5)
    back = ps.load(whole.save(tmp_path / "model"), device="cuda")
    assert torch.equal(back["c0"].score(x, 0.5), whole["c0"].score(x, 0.5))
    on_cpu = ps.load(tmp_path / "model")
    torch.testing.assert_close(on_cpu["c0"].score(x.cpu(), 0.5), whole["c0"].score(x, 0.5).cpu(), rtol=1e-3, atol=1e-3)


def last(plan, n, graphs):
    with torch.inference_mode():
        *_, state = iterate(plan, 0, n, graphs=graphs)
        return state


@models
@pytest.mark.parametrize("table", [False, True], ids=["directly", "by table"])
@pytest.mark.parametrize("members", [1, 2])
def test_the_graph_is_the_plain_loop(model, table, members, monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", 1000 if table else 10**9)
    p = ps.fit(data(), steps=100, model=model, members=members, learning_rate=3e-3, **SMALL)
    q = ps.parse("c0^0.8 * c1^0.5 * c2^-0.2", p)
    for sampler in (ps.Denoise(steps=30), ps.FeynmanKac(particles=4, steps=30, clip=2.0)):
        with torch.inference_mode():
            plan = make_plan(q, sampler, 5, torch.empty(0, device="cuda"))
        assert plan.graphable and isinstance(plan.field, NetworkField)
        n = 1500 // sampler.particles
        assert plan.field.arithmetic(n * sampler.particles) == ("table" if table else "float32")
        graph, plain = last(plan, n, True), last(plan, n, False)
        size = 1 + plain.x.abs().flatten(1).amax(1)
        near = ((graph.x - plain.x).abs().flatten(1).amax(1) <= 1e-3 * size).float().mean().item()
        assert near == 1 if sampler.particles == 1 else near > 0.9
        assert torch.equal(graph.x, last(plan, n, True).x)


def test_every_precision_is_near_float32(monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", 1000)
    p = ps.fit(data(), steps=100, learning_rate=3e-3, **SMALL)
    q = ps.parse("c0^0.8 * c1^0.5 * c2^-0.2", p)
    said = dict[str, str]()
    for precision in ("auto", "table", "fp16", "tf32", "float32"):
        p.to(precision=precision)
        run = ps.Denoise(steps=30, churn=0.0).sample(q, 1500, seed=1)
        said[precision] = run.arithmetic
        p.to(precision="float32")
        exact = ps.Denoise(steps=30, churn=0.0).sample(q, 1500, seed=1)
        assert (run.samples - exact.samples).norm() < 5e-3 * exact.samples.norm(), precision
    assert said == {"auto": "table", "table": "table", "fp16": "float32", "tf32": "tf32", "float32": "float32"}
