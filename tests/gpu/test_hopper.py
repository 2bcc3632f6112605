"""The one-kernel network against its eager float32 oracle."""

from __future__ import annotations

import pytest
import torch

from polyscore.nn import Perceptron, StackedMLP

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

from polyscore.nn.fast.hopper import HopperNetwork, supports  # noqa: E402


def network(conditions: int, dim: int, depth: int, shared: bool, width: int = 512) -> Perceptron:
    inputs = 1 + dim + (conditions if shared else 0)
    stack = StackedMLP(inputs, dim, range(1 if shared else conditions), width, depth).cuda()
    return Perceptron(list(stack.weights), list(stack.biases), dim, "silu")


@pytest.mark.parametrize(
    "rows, conditions, dim, depth, shared",
    [
        (1, 1, 1, 4, True),
        (127, 2, 2, 4, True),
        (5000, 3, 2, 4, True),
        (4097, 5, 3, 4, False),
        (1000, 3, 8, 2, False),
        (300, 4, 17, 4, True),
        (70001, 3, 64, 3, True),
        (20000, 3, 2, 6, False),
    ],
)
def test_agrees_with_eager(rows: int, conditions: int, dim: int, depth: int, shared: bool) -> None:
    net = network(conditions, dim, depth, shared)
    fast = HopperNetwork(net)
    x = 3 * torch.randn(rows, dim, device="cuda")
    offsets = net.offsets(torch.tensor([0.3], device="cuda"))[0]
    torch.full((conditions, rows, dim), float("nan"), device="cuda")  # the next allocation reuses it, poisoned
    answer = fast.noise(x, fast.half_offsets(offsets))
    exact = net.noise(x, (offsets,))
    assert (answer - exact).norm() <= 1e-3 * exact.norm()
    assert torch.equal(answer, fast.noise(x, fast.half_offsets(offsets)))


def test_captured_in_a_graph() -> None:
    net = network(3, 2, 4, True)
    fast = HopperNetwork(net)
    x = torch.randn(777, 2, device="cuda")
    half = fast.half_offsets(net.offsets(torch.tensor([0.5], device="cuda"))[0])
    fast.noise(x, half)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = fast.noise(x, half)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(answer, fast.noise(x, half))


def test_supports_only_what_it_can() -> None:
    cuda = torch.device("cuda")
    assert supports(network(3, 2, 4, True), cuda)
    assert not supports(network(3, 2, 4, True, width=256), cuda)
    assert not supports(network(3, 2, 1, True), cuda)
    assert not supports(network(3, 2, 4, True), torch.device("cpu"))
