"""Training U-Nets on a GPU: own kernels against PyTorch's, a captured step against an eager one."""

import pytest
import torch

import polyscore as ps
from images.flat import MIXTURES, RECIPE, flat
from polyscore.images import PRESETS, train
from polyscore.images.program import program
from polyscore.images.unet import build, scheduler
from polyscore.pipelines.fast.norm import added, norm, plain, plain_added

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SHAPES = [((5, 64, 32, 32), 32), ((3, 96, 7, 9), 32), ((2, 160, 33), 32), ((1, 512, 64, 64), 32), ((300, 48, 4, 4), 8)]


@pytest.mark.parametrize("act", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_the_norm_is_pytorchs(shape, groups, dtype, act):
    source = torch.Generator("cuda").manual_seed(0)
    x = (2 * torch.randn(shape, generator=source, device="cuda") + 1).to(dtype)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    weight, bias = (torch.randn(shape[1], generator=source, device="cuda") for _ in range(2))
    dy = torch.randn(shape, generator=source, device="cuda").to(dtype)

    def answers(function, *given):
        leaves = [value.detach().requires_grad_() for value in given]
        y = function(*leaves, groups, 1e-5, act)
        return [y, *torch.autograd.grad(y, leaves, dy.to(y.dtype))]

    found = answers(norm, x, weight, bias)
    expected = answers(plain, x.double(), weight.double(), bias.double())
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() <= (1e-5 if dtype == torch.float32 else 6e-3) * b.norm()


def layouts(shape, dtype, source):
    x = (2 * torch.randn(shape, generator=source, device="cuda") + 1).to(dtype)
    return [x] if x.dim() == 3 else [x, x.to(memory_format=torch.channels_last)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
@torch.no_grad()
def test_shifts_and_sums_are_pytorchs(shape, groups, dtype):
    """Shifts of several deviations, which the kernel takes out of sums that know nothing of them."""
    source = torch.Generator("cuda").manual_seed(1)
    weight, bias = (torch.randn(shape[1], generator=source, device="cuda") for _ in range(2))
    shift = 3 * torch.randn(shape[:2], generator=source, device="cuda")
    for x in layouts(shape, dtype, source):
        expected = plain(x.double(), weight.double(), bias.double(), groups, 1e-5, True, shift.double())
        found = norm(x, weight, bias, groups, 1e-5, True, shift)
        assert found.shape == x.shape and found.dtype == dtype
        assert (found.double() - expected).norm() <= (1e-5 if dtype == torch.float32 else 6e-3) * expected.norm()
        h = x.flip(0).contiguous()
        expected = plain_added(x.double(), h.double(), bias.double())
        assert (added(x, h, bias).double() - expected).norm() <= (
            1e-6 if dtype == torch.float32 else 4e-3
        ) * expected.norm()


@pytest.mark.parametrize("name", ["32", "64"])
def test_kernels_serve_the_presets(name):
    """The program compares itself with diffusers' own blocks, and warns (an error here) where they differ."""
    assert program(PRESETS[name].unet, 3, torch.device("cuda"), "auto", "kernels").form == "kernels"


def test_a_captured_step_is_an_eager_one(tmp_path):
    data = flat(tmp_path / "data").path
    losses = [
        train(data, MIXTURES, tmp_path / f"{graph}", recipe=RECIPE, device="cuda", steps=60, graph=graph).held_out
        for graph in (True, False)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_a_quick_and_captured_sample_is_that_of_diffusers_blocks(precision):
    """The same noise, through diffusers' own blocks step by step and through own kernels in a graph."""
    network = build(PRESETS["32"].unet, 3).cuda()
    p = ps.from_diffusers(network, scheduler=scheduler(), conditions={"base": 0, "couch": 1, "table": 2})
    q = p["couch"] * p["table"] / p["base"]
    sampler = ps.Denoise(steps=12, grid="timesteps", integrator="ancestral")
    plain = sampler.sample(q, 8, seed=0, device="cuda").samples
    p.to("cuda", precision=precision, compile=True)
    run = sampler.sample(q, 8, seed=0, device="cuda")
    assert p.groups[0].compiled and run.arithmetic == f"compiled model in {precision}"
    assert not hasattr(network, "_compiled_call_impl") or network._compiled_call_impl is None  # by kernels
    assert 0 < (run.samples - plain).norm() < 0.05 * plain.norm()
    p.to(compile=False, precision="auto")
    again = sampler.sample(q, 8, seed=0, device="cuda").samples  # cuDNN may sum in another order
    assert (again - plain).norm() < 0.01 * plain.norm()
