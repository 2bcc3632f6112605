"""Tables on a GPU: the kernel is the eager interpolation, and sampling by table is sampling."""

from __future__ import annotations

import pytest
import torch

import polyscore as ps
from polyscore.nn.fast import plane
from polyscore.nn.fast.plane import Nodes, interpolate, tabulated
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan
from training.networks import families
from training.test_table import normal, trained

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


@pytest.mark.parametrize("count", [1, 5, 127, 128, 129, 70_001])
@pytest.mark.parametrize("conditions", [1, 2, 3, 5, 12])
def test_the_kernel_is_the_eager_interpolation(count, conditions):
    from polyscore.nn.fast.plane_kernel import interpolate as fused

    x = (normal(count, 2, seed=count) * torch.tensor([3.0, 0.5]) + torch.tensor([10.0, -2.0])).cuda()
    nodes = Nodes.around(torch.cat([x, x.mean(0) + 2.0 * torch.ones(3, 2, device="cuda").cumsum(0)]))
    values = normal(conditions, plane.SIDE**2, 2, seed=conditions).cuda()
    # Neighbouring nodes are unrelated here, so a position's rounding shows; in float64 it would not.
    expected = interpolate(values.double(), Nodes(*(part.double() for part in nodes)), x.double())
    error = (fused(values, nodes, x) - expected).abs()
    assert error.median() < 1e-4
    assert error.max() < 2e-2


def test_smooth_functions_come_back():
    x = normal(300_000, 2).cuda()

    def wave(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.stack([torch.sin(2 * x[:, 0] + x[:, 1]), x[:, 0] * x[:, 1]], -1)] * 3)

    torch.testing.assert_close(tabulated(wave, x), wave(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_visible_and_in_bounds(bad):
    x = normal(1000, 2).cuda()
    x[3, 1] = bad
    result = tabulated(lambda x: x[None], x)
    torch.cuda.synchronize()
    assert not bool(result[:, 3].isfinite().all())


@pytest.mark.parametrize("width", [512, 64, 40])
def test_a_graph_that_reads_tables_is_the_plain_loop(width, monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", 1000)
    q = ps.parse("c0^0.8 * c1^0.5 * c2^-0.2", families(3, 2, True, width=width)[0])
    sampler = ps.FeynmanKac(particles=4, steps=30, clip=2.0)
    with torch.inference_mode():
        plan = make_plan(q, sampler, 5, torch.empty(0, device="cuda"))
        assert plan.field.arithmetic(1600) == "table"
        *_, graph = iterate(plan, 0, 400)
        *_, plain = iterate(plan, 0, 400, graphs=False)
    near = torch.isclose(graph.x, plain.x, rtol=1e-3, atol=1e-3 * plain.x.abs().max().item()).all(-1).all(-1)
    assert near.float().mean() > 0.9


def test_a_sampler_by_table_is_one_by_network(monkeypatch):
    """fp16 products are within 1e-3; the table adds nothing that can be seen beside them."""
    monkeypatch.setattr(plane, "WORTHWHILE", 1000)
    p = trained("silu")
    q = ps.parse("c0^0.8 * c1^0.5 * c2^-0.2", p)
    runs = []
    for precision in ("auto", "fp16"):
        p.to(precision=precision)
        runs.append(ps.Denoise(steps=100).sample(q, 5000, seed=1, device="cuda").samples)
    assert not torch.equal(*runs)
    assert (runs[0] - runs[1]).norm() < 2e-3 * runs[1].norm()


def test_a_table_that_is_too_coarse_is_given_up_on_the_gpu(monkeypatch):
    monkeypatch.setattr(plane, "WORTHWHILE", 1000)
    p = families(3, 2, True, activation="tanh")[0]
    p.members["c0"].group.network.first.mul_(300)
    q = ps.parse("c0 * c1 / c2", p)
    runs = []
    for precision in ("auto", "fp16"):
        p.to(precision=precision)
        runs.append(ps.Denoise(steps=60).sample(q, 1500, seed=1, device="cuda").samples)
    assert torch.equal(*runs)
