"""Plain PyTorch twins of the stacked networks, written without any of the package's network code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import polyscore as ps
from polyscore.models.network import Network
from polyscore.nn import Perceptron, StackedMLP

LAYERS = {"silu": nn.SiLU, "gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}


def plain(sizes: list[int], activation: str) -> nn.Sequential:
    """Linear, activation, ..., linear."""
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), LAYERS[activation]()]
    return nn.Sequential(*layers[:-1])


def twin(stack: StackedMLP, g: int) -> nn.Sequential:
    """Network g of a stack as an `nn.Sequential` with its weights copied."""
    sizes = [stack.weights[0].shape[1], *[w.shape[2] for w in stack.weights]]
    model = plain(sizes, stack.activation)
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for linear, weight, bias in zip(linears, stack.weights, stack.biases, strict=True):
            linear.weight.copy_(weight[g].T)
            linear.bias.copy_(bias[g, 0])
    return model


def build(
    conditions: int, dim: int, shared: bool, width: int = 32, depth: int = 3, activation: str = "silu", seed: int = 0
) -> tuple[Perceptron, list]:
    """Return a random `Perceptron` and, per condition, a plain function eps(x (B, d), t (B,)) -> (B, d)."""
    inputs = 1 + dim + (conditions if shared else 0)
    seeds = [seed] if shared else [seed + 10 * a for a in range(conditions)]
    stack = StackedMLP(inputs, dim, seeds, width, depth, activation)
    models = [twin(stack, 0 if shared else a) for a in range(conditions)]

    def function(a: int):
        @torch.no_grad()
        def eps(x: Tensor, t: Tensor) -> Tensor:
            parts = [1 - t[:, None], x]  # networks see 0 for noise and 1 for data
            if shared:
                parts.append(torch.eye(conditions)[a].expand(len(x), -1))
            return models[a](torch.cat(parts, 1))

        return eps

    return Perceptron(list(stack.weights), list(stack.biases), dim, activation), [
        function(a) for a in range(conditions)
    ]


def families(
    conditions: int, dim: int, shared: bool, schedule: ps.Schedule | None = None, **options
) -> tuple[ps.Family, ps.Family]:
    """The same random network twice: as one `Network`, and as plain `Learned` functions that share nothing."""
    schedule = schedule or ps.VP()
    network, functions = build(conditions, dim, shared, **options)
    group = Network(network, schedule)
    names = [f"c{a}" for a in range(conditions)]
    together = ps.Family({name: group.condition(a) for a, name in enumerate(names)})
    apart = ps.Family({name: ps.Learned(f, (dim,), schedule) for name, f in zip(names, functions, strict=True)})
    return together, apart
