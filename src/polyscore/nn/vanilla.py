"""The plain network: a perceptron of [1 - t, x], and of the condition where it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polyscore.nn.mlp import StackedMLP, time_feature
from polyscore.nn.network import Architecture, At
from polyscore.nn.perceptron import Perceptron
from polyscore.nn.stack import Stack
from polyscore.schedules import Schedule


class Vanilla(Stack):
    """G perceptrons of [1 - t, x, onehot(condition)], or of [1 - t, x] where each has one condition."""

    onehot: Tensor

    def __init__(self, architecture: Architecture, seeds: Sequence[int]) -> None:
        super().__init__(architecture, seeds)
        dim, told = architecture.dim, architecture.conditions if architecture.shared else 0
        self.mlp = StackedMLP(
            1 + dim + told, dim, seeds, architecture.width, architecture.depth, architecture.activation
        )
        self.register_buffer("onehot", torch.eye(told, dtype=torch.float32), persistent=False)

    def predict(self, x: Tensor, at: At) -> Tensor:
        """Return the noise in x `(G, C, b, d)`, like x."""
        parts = [time_feature(at[0]), x]
        if len(self.onehot):
            parts.append(self.onehot[None, :, None].expand(len(x), -1, x.shape[2], -1))
        return self.mlp(torch.cat(parts, dim=-1).flatten(1, 2)).view(x.shape)

    def evaluated(self, tensors: Mapping[str, Tensor]) -> Perceptron:
        """Return the network with one first layer's constant a condition."""
        layers = range(len(self.mlp.weights))
        weights, biases = ([tensors[f"mlp.{kind}.{k}"] for k in layers] for kind in ("weights", "biases"))
        return Perceptron(weights, biases, self.architecture.dim, self.architecture.activation)

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any], kind: str, dim: int, schedule: Schedule
    ) -> Perceptron:
        """Return what a file holds."""
        return Perceptron.from_tensors(tensors, dim, about["hidden_layers"], about["shared"], about["activation"])
