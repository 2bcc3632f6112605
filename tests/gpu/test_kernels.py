"""Fused kernels against their eager float32 oracle, on fresh random weights and inputs."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch.nn.functional import silu

from polyscore.devices import matmul_precision
from polyscore.fields.evaluators import Case, EagerHalf, LayeredKernels, ladder
from polyscore.nn import Perceptron, StackedMLP
from training.networks import twin

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
if torch.cuda.get_device_capability()[0] < 9:
    pytest.skip("the fused kernels need a GPU of compute capability 9.0 or newer", allow_module_level=True)

BATCHES, CONDITIONS, DIMS = (1, 7, 64, 129, 1000, 5001), (1, 2, 3, 4, 5), (1, 2, 3, 5, 16, 64)
WIDTHS, DEPTHS = (64, 128, 512), (2, 3, 4, 5)


def network(conditions, dim, width, depth, shared, seed) -> Perceptron:
    inputs = 1 + dim + (conditions if shared else 0)
    seeds = [seed] if shared else range(seed, seed + conditions)
    stack = StackedMLP(inputs, dim, seeds, width, depth).cuda()
    return Perceptron(list(stack.weights), list(stack.biases), dim, "silu")


def draw(count, seed=0):
    """So many of the 4,320 shapes, every value of every axis among them."""
    grid = list(itertools.product(BATCHES, CONDITIONS, DIMS, WIDTHS, DEPTHS, (True, False)))
    chosen = random.Random(seed).sample(grid, count)
    assert all({shape[axis] for shape in chosen} == {shape[axis] for shape in grid} for axis in range(6))
    return chosen


def layered(net):
    """Triton's kernels, one a layer."""
    from polyscore.nn.fast.layered import FusedNetwork, supports

    assert supports(net, net.device)
    return FusedNetwork(net)


def way(net):
    """How samplers would evaluate it in fp16."""
    return ladder(Case(net, torch.tensor([0.5]), "fp16"))[0]


def chosen(net):
    """Whatever kernels samplers would choose: one for all layers at width 512 on Hopper."""
    return way(net).kernels


every_kernel = pytest.mark.parametrize("kernel", [layered, chosen])


def in_halves(net, x, offset):
    """The eager network on operands rounded as the kernels round them, and the norm that an output of independent
    weights would have on average."""
    x, offset = x.double(), offset.double()
    h = silu(x @ net.first.double() + offset[:, None]).half().double()
    for weight, bias in zip(net.hidden, net.hidden_biases, strict=True):
        h = silu(h @ weight.half().double() + bias).half().double()
    usual = (h.square() @ net.last.double().square()).sum().sqrt().item()
    return h @ net.last.half().double() + net.last_bias, usual


def compare(kernel, batch, conditions, dim, width, depth, shared, seed=0):
    """To 1e-3 of the output's norm, exactly of what halves can say; of float32's norm, or the usual one if larger.

    A single output column may cancel: perfect arithmetic on fp16 operands is then off by up to 5e-3 of what is left,
    beyond 1e-3 in 2 to 12 of 100 fresh networks of one column, and by less than 1e-3 of the usual norm in all.
    """
    net = network(conditions, dim, width, depth, shared, seed)
    source = torch.Generator("cuda").manual_seed(seed)
    x = 3 * torch.randn(batch, dim, generator=source, device="cuda")
    offsets = net.offsets(torch.rand(3, generator=source, device="cuda"))
    fused = kernel(net)
    for offset, half in zip(offsets, fused.half_offsets(offsets), strict=True):
        with matmul_precision("highest", torch.device("cuda")):
            exact = net.noise(x, (offset,))
        got = fused.noise(x, half)
        assert got.shape == exact.shape == (conditions, batch, dim)
        assert got.dtype == torch.float32
        assert bool(got.isfinite().all())
        halves, usual = in_halves(net, x, offset)
        assert (got - halves).norm().item() <= 1e-3 * halves.norm().item()
        assert (got - exact).norm().item() <= 1e-3 * max(exact.norm().item(), usual)
        assert torch.equal(got, fused.noise(x, half))  # the same bytes again


SHAPES = draw(90)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_layered_kernels_are_the_eager_network(shape):
    compare(layered, *shape, seed=hash(shape) % 1000)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[3] == 512], ids=str)
def test_the_chosen_kernels_are_the_eager_network(shape):
    compare(chosen, *shape, seed=hash(shape) % 1000)


@every_kernel
@pytest.mark.parametrize("batch", [1, 2, 63, 65, 127, 128, 255, 257, 511, 513])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
def test_edges_of_tiles(kernel, batch, shared):
    for width in (64, 192, 256, 512):
        compare(kernel, batch, 3, 2, width, 4, shared)


@every_kernel
@pytest.mark.parametrize("width", [128, 512])
def test_a_view_with_strides_is_read_right(kernel, width):
    net = network(3, 2, width, 3, True, 0)
    wide, fused = torch.randn(300, 5, device="cuda"), kernel(net)
    half = fused.half_offsets(net.offsets(torch.tensor([0.4], device="cuda")))[0]
    assert torch.equal(fused.noise(wide[:, 1:3], half), fused.noise(wide[:, 1:3].contiguous(), half))


@every_kernel
@pytest.mark.parametrize("width", [128, 512])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
def test_picked_conditions_go_through_the_kernels(kernel, shared, width):
    net = network(4, 3, width, 3, shared, 0)
    x, time = torch.randn(200, 3, device="cuda"), torch.tensor([0.4], device="cuda")
    whole = net.noise(x, (net.offsets(time)[0],))
    for which in ([2], [3, 1], [0, 2, 3]):
        picked = net.pick(which)
        fused = kernel(picked)
        got = fused.noise(x, fused.half_offsets(picked.offsets(time))[0])
        assert (got - whole[which]).norm() <= 1e-3 * whole[which].norm()


def test_where_kernels_do_not_serve():
    assert type(way(network(3, 2, 64, 2, True, 0))) is LayeredKernels
    assert way(network(3, 2, 64, 2, True, 0).to("cpu")).arithmetic == "float32"
    for shape in ((3, 2, 96, 2), (3, 2, 64, 1), (3, 65, 64, 2)):
        assert type(way(network(*shape, True, 0))) is EagerHalf


@pytest.mark.parametrize(("networks", "rows", "width"), [(1, 1, 1), (3, 33, 65), (90, 510, 512), (2, 129, 24)])
def test_bias_and_silu_in_one_pass(networks, rows, width):
    from polyscore.nn.fast.activation import bias_silu

    source = torch.Generator("cuda").manual_seed(0)
    z = (4 * torch.randn(networks, rows, width, generator=source, device="cuda")).requires_grad_()
    bias = torch.randn(networks, 1, width, generator=source, device="cuda").requires_grad_()
    pull = torch.randn(networks, rows, width, generator=source, device="cuda")
    got = bias_silu(z, bias)
    gradients = torch.autograd.grad((got * pull).sum(), (z, bias))
    twice, twice_bias = (v.detach().double().requires_grad_() for v in (z, bias))
    exact = torch.nn.functional.silu(twice + twice_bias)
    expected = torch.autograd.grad((exact * pull).sum(), (twice, twice_bias))
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[0].double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[1].double(), expected[1], rtol=1e-4, atol=1e-4 * rows**0.5)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu", "tanh"])
@pytest.mark.parametrize(("width", "batch"), [(24, 7), (64, 129), (512, 510)])
def test_a_stack_on_the_gpu_is_plain_networks(activation, width, batch):
    stack = StackedMLP(6, 2, [0, 1, 2], width, 3, activation)
    x = torch.randn(3, batch, 6, generator=torch.Generator().manual_seed(0))
    models = [twin(stack, g) for g in range(3)]
    expected = [model(x[g]) for g, model in enumerate(models)]
    stack.cuda()
    with matmul_precision("highest", torch.device("cuda")):
        out = stack(x.cuda())
        out.square().sum().backward()
    for g in range(3):
        torch.testing.assert_close(out[g].cpu(), expected[g], rtol=1e-4, atol=1e-5)
        expected[g].square().sum().backward()
        linear = models[g][2]
        scale = linear.weight.grad.abs().max().item()
        torch.testing.assert_close(stack.weights[1].grad[g].T.cpu(), linear.weight.grad, rtol=1e-3, atol=1e-4 * scale)
        scale = linear.bias.grad.abs().max().item()
        torch.testing.assert_close(stack.biases[1].grad[g, 0].cpu(), linear.bias.grad, rtol=1e-3, atol=1e-4 * scale)
