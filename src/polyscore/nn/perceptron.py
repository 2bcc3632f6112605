"""Trained perceptrons laid out for evaluation: many conditions share what they can."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyscore.nn.mlp import ACTIVATIONS, IN_PLACE, time_feature
from polyscore.nn.network import At, ScoreNetwork

# Rows that a CPU takes through all layers before the next, and numbers of one layer. Fewer rows were 5 % slower at
# width 64, four times as many 7 % slower at 128; more numbers 6 % slower at 512.
_ROWS, _NUMBERS = 6144, 1 << 20

# The names of the parameters: one of each, and one of each a hidden layer.
_SINGLE, _PAIR = ("time", "first", "constant", "last", "last_bias"), ("hidden", "hidden_bias")


class Perceptron(ScoreNetwork):
    """A trained noise predictor for A conditions, one shared network or one each, prepared for evaluation.

    A shared network takes [1 - t, x, onehot(condition)]: conditions differ only by a constant of the first layer, so
    all of them share x and every later weight. A separate one takes [1 - t, x]. Both become the same thing here:

        h_1 = act(x first + (1 - t) time + constant_a),   h_{l+1} = act(h_l hidden_l + bias_l),   eps = h last + bias,

    with a leading axis of length 1 (shared) or A (separate) on everything but `constant`, which always has A.
    """

    kind = "vanilla"
    has_half = True

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], dim: int, activation: str) -> None:
        first = weights[0].detach()
        conditions = first.shape[1] - 1 - dim
        self.dim, self.activation, self.shared = dim, activation, conditions > 0
        self.conditions = conditions if self.shared else len(first)
        self.time, self.first = first[:, 0], first[:, 1 : 1 + dim]  # (P, width), (P, d, width)
        bias = biases[0].detach()[:, 0]
        self.constant = first[0, 1 + dim :] + bias if self.shared else bias  # (A, width)
        self.hidden = [weight.detach() for weight in weights[1:-1]]
        self.hidden_biases = [bias.detach() for bias in biases[1:-1]]
        self.last, self.last_bias = weights[-1].detach(), biases[-1].detach()

    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter by name; `from_tensors` is the inverse."""
        named = {name: getattr(self, name) for name in _SINGLE}
        layers = zip(self.hidden, self.hidden_biases, strict=True)
        return named | {f"{kind}.{i}": t for i, pair in enumerate(layers) for kind, t in zip(_PAIR, pair, strict=True)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], dim: int, depth: int, shared: bool, activation: str
    ) -> Perceptron:
        """Return the network of named parameters; `ValueError` where they do not fit together."""
        if activation not in ACTIVATIONS or not isinstance(shared, bool):
            raise ValueError(f"activation {activation!r}, shared {shared!r}")
        if type(depth) is not int or depth < 0:
            raise ValueError(f"the number {depth!r:.50}")
        network = object.__new__(cls)
        network.__dict__.update({name: tensors[name] for name in _SINGLE})
        network.hidden = [tensors[f"hidden.{i}"] for i in range(depth)]
        network.hidden_biases = [tensors[f"hidden_bias.{i}"] for i in range(depth)]
        network.dim, network.shared, network.activation = dim, shared, activation
        network.conditions = len(network.constant)
        network._check_shapes()
        return network

    def _check_shapes(self) -> None:
        width, count = self.constant.shape[-1], 1 if self.shared else self.conditions
        expected = {"time": (count, width), "first": (count, self.dim, width), "constant": (self.conditions, width),
                    "last": (count, width, self.dim), "last_bias": (count, 1, self.dim)}  # fmt: skip
        for i in range(len(self.hidden)):
            expected |= {f"hidden.{i}": (count, width, width), f"hidden_bias.{i}": (count, 1, width)}
        for name, tensor in self.tensors().items():
            if tuple(tensor.shape) != expected[name]:
                raise ValueError(f"{name} of shape {tuple(tensor.shape)} instead of {expected[name]}")

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.first.device

    @property
    def width(self) -> int:
        """Size of the hidden layers."""
        return self.first.shape[-1]

    @property
    def numbers_per_row(self) -> int:
        """Two layers of activations."""
        return 2 * self.width

    @property
    def alike(self) -> Hashable:
        """Dimension, depth, sharing and activation, which a file says once for all; and the width."""
        return self.dim, *self.about().values(), self.width

    def about(self) -> dict[str, Any]:
        """Return whether conditions share weights, the activation, and the number of hidden layers."""
        return {"shared": self.shared, "activation": self.activation, "hidden_layers": len(self.hidden)}

    def to(self, device: torch.device | str) -> Perceptron:
        """Move the parameters in place."""
        for name in _SINGLE:
            setattr(self, name, getattr(self, name).to(device))
        self.hidden = [weight.to(device) for weight in self.hidden]
        self.hidden_biases = [bias.to(device) for bias in self.hidden_biases]
        return self

    def pick(self, which: Sequence[int]) -> Perceptron:
        """Return a network for some of the conditions, in that order."""
        picked = object.__new__(Perceptron)
        picked.__dict__.update(self.__dict__)
        rows = torch.tensor(list(which), device=self.device)
        picked.conditions, picked.constant = len(rows), self.constant[rows]
        if not self.shared:
            for name in ("time", "first", "last", "last_bias"):
                setattr(picked, name, getattr(self, name)[rows])
            picked.hidden = [weight[rows] for weight in self.hidden]
            picked.hidden_biases = [bias[rows] for bias in self.hidden_biases]
        return picked

    def side_by_side(self, others: Sequence[ScoreNetwork]) -> Perceptron:
        """Return this and others of one shape and width as one, with weights of its own for every condition."""
        apart = [network._apart() for network in (self, *others) if isinstance(network, Perceptron)]
        tensors = {name: torch.cat([parts[name] for parts in apart]) for name in apart[0]}
        return self.from_tensors(tensors, self.dim, len(self.hidden), False, self.activation)

    def _apart(self) -> dict[str, Tensor]:
        """The parameters with weights of its own for every condition."""
        if not self.shared:
            return self.tensors()
        return {
            name: tensor if name == "constant" else tensor.expand(self.conditions, *tensor.shape[1:])
            for name, tensor in self.tensors().items()
        }

    def offsets(self, times: Tensor) -> Tensor:
        """Return the first layer's constants at `times` `(T,)`, `(T, A, width)`: all that depends on time."""
        return time_feature(times)[:, None, None].to(self.constant) * self.time + self.constant

    def embed(self, times: Tensor) -> At:
        """Return the first layer's constants at `times`: nothing else depends on them."""
        return (self.offsets(times),)

    def noise(self, x: Tensor, at: At, precision: torch.dtype | None = None) -> Tensor:
        """Return the predicted noise of every condition, `(B, d) -> (A, B, d)`.

        Args:
            at: the first layer's constants at one time, `(A, width)`.
            precision: dtype of the hidden layers' operands; sums stay in float32. None is float32 throughout.
        """
        h = self._activate((x @ self.first).add(at[0][:, None]))
        low = precision or h.dtype
        for weight, bias in zip(self.hidden, self.hidden_biases, strict=True):
            h = self._activate(_affine(h.to(low), weight.to(low), bias))
        return _affine(h, self.last, self.last_bias)

    def noise_in_place(self, x: Tensor, at: At) -> Tensor:
        """`noise` for samplers on a CPU: no gradients, and memory kept between calls.

        Fresh pages for each layer would cost a fifth of the time, and the last layer's product by rows of `last`, two
        numbers each in the plane, three to four times what it does by columns.
        """
        act, layers = IN_PLACE[self.activation], list(zip(self.hidden, self.hidden_biases, strict=True))
        offset, first = at[0][:, None], self.first.expand(self.conditions, -1, -1)
        last = self.last.mT.contiguous().mT
        parts = []
        for rows in x.split(self._rows_at_once(len(x))):
            h, spare = _scratch((self.conditions, len(rows), self.width), x.dtype)
            h = act(torch.baddbmm(offset, rows.expand(self.conditions, -1, -1), first, out=h))
            for weight, bias in layers:
                h, spare = act(_affine(h, weight, bias, out=spare)), h
            parts.append(_affine(h, last, self.last_bias))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _rows_at_once(self, points: int) -> int:
        """Points that go through all layers before the next, in even pieces: a few rows alone would round otherwise."""
        most = max(1, min(_ROWS, _NUMBERS // self.width) // self.conditions)
        pieces = max(1, -(-points // most))
        return max(1, -(-points // pieces))

    def _activate(self, z: Tensor) -> Tensor:
        """Return the activation, in place where that is possible."""
        return nn.functional.silu(z, inplace=True) if self.activation == "silu" else ACTIVATIONS[self.activation](z)

    def noise_at(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the predicted noise at one time or a batch of them, `(..., d), () or (...) -> (A, ..., d)`."""
        flat = x.reshape(-1, self.dim)
        if t.ndim == 0:
            return self.noise(flat, (self.offsets(t[None])[0],)).view(self.conditions, *x.shape)
        times = t.expand(x.shape[:-1]).reshape(-1)
        act = ACTIVATIONS[self.activation]
        h = act(flat @ self.first + time_feature(times)[:, None] * self.time[:, None] + self.constant[:, None])
        for weight, bias in zip(self.hidden, self.hidden_biases, strict=True):
            h = act(_affine(h, weight, bias))
        return _affine(h, self.last, self.last_bias).view(self.conditions, *x.shape)

    def __repr__(self) -> str:
        told = "conditional" if self.shared else "separate"
        return f"a {told} network of {len(self.hidden) + 1} x {self.width}, {self.activation}"


_kept = threading.local()


def _scratch(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return two blocks of this thread's own memory, with whatever was left in them."""
    size = math.prod(shape)
    blocks = getattr(_kept, "blocks", None)
    if blocks is None or blocks[0].dtype != dtype or len(blocks[0]) < size:
        with torch.inference_mode(False):  # or later calls outside of that mode could not write to it
            blocks = _kept.blocks = (torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype))
    return blocks[0][:size].view(shape), blocks[1][:size].view(shape)


def _affine(h: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    """h @ weight + bias in float32, whatever the operands; a shared weight makes one tall product of all conditions."""
    if h.dtype != bias.dtype:
        return (h @ weight).float().add_(bias)
    if len(weight) == 1:
        flat = None if out is None else out.view(-1, weight.shape[-1])
        product = torch.addmm(bias[0, 0], h.reshape(-1, h.shape[-1]), weight[0], out=flat)
        return product.view(*h.shape[:-1], weight.shape[-1])
    return torch.baddbmm(bias, h, weight, out=out)
