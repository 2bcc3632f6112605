"""Multilayer perceptrons, many at once: every parameter has a leading model axis.

G independent networks of one shape evaluate as one batched program, `(G, B, in) -> (G, B, out)`; models with other
seeds, other data or other train sizes train side by side without knowing of each other.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor, nn

from polyscore.errors import require
from polyscore.rng import generator

# Rows a CPU takes through all layers before the next: 48 MB of activations at the paper's width.
_ROWS_AT_ONCE = 24576

# The names of a ScoreNetwork's parameters: one of each, and one of each a hidden layer.
_SINGLE, _PAIR = ("time", "first", "constant", "last", "last_bias"), ("hidden", "hidden_bias")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "relu": nn.functional.relu,
    "tanh": torch.tanh,
}


@contextmanager
def matmul_precision(mode: str, device: torch.device) -> Iterator[None]:
    """Set float32 products on a GPU to "highest" (float32) or "high" (TF32) for a while.

    The setting belongs to the whole process, so a CPU, where it changes nothing, leaves it alone.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(mode)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is there; it comes with PyTorch's GPU builds."""
    return importlib.util.find_spec("triton") is not None


class StackedMLP(nn.Module):
    """G perceptrons: `depth` hidden layers of `width`, then a linear layer.

    Args:
        inputs, outputs: sizes of the first and last layer.
        seeds: one per network; a network's start depends on its own seed alone.
        width, depth, activation: the paper's are 512, 4 and SiLU.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        seeds: Sequence[int],
        width: int = 512,
        depth: int = 4,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        require(width >= 1 and depth >= 1, "width and depth", "be at least 1", (width, depth))
        require(activation in ACTIVATIONS, "activation", f"be one of {', '.join(ACTIVATIONS)}", repr(activation))
        self.activation = activation
        sizes = [inputs, *[width] * depth, outputs]
        self.weights = nn.ParameterList(
            nn.Parameter(_stack(seeds, layer, "weight", (a, b), a)) for layer, (a, b) in enumerate(_pairs(sizes))
        )
        self.biases = nn.ParameterList(
            nn.Parameter(_stack(seeds, layer, "bias", (1, b), a)) for layer, (a, b) in enumerate(_pairs(sizes))
        )

    @property
    def count(self) -> int:
        """G, the number of networks."""
        return len(self.weights[0])

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, `(G, B, in) -> (G, B, out)`."""
        layers = list(zip(self.weights, self.biases, strict=True))
        for weight, bias in layers[:-1]:
            x = self._layer(x, weight, bias)
        return torch.baddbmm(layers[-1][1], x, layers[-1][0])

    def _layer(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.is_cuda and self.activation == "silu" and has_triton():
            from polyscore.nn.fast.activation import bias_silu

            return bias_silu(torch.bmm(x, weight), bias)
        return ACTIVATIONS[self.activation](torch.baddbmm(bias, x, weight))


def _pairs(sizes: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(sizes))


def _stack(seeds: Sequence[int], layer: int, kind: str, shape: tuple[int, int], fan_in: int) -> Tensor:
    """Uniform on +-1/sqrt(fan_in), PyTorch's own start of a linear layer; drawn on the CPU so that devices agree."""
    bound = 1 / math.sqrt(fan_in)
    sources = [generator(seed, "init", kind, layer) for seed in seeds]
    draws = [torch.rand(*shape, generator=source, dtype=torch.float32) for source in sources]
    return (2 * torch.stack(draws) - 1) * bound


def time_feature(t: Tensor) -> Tensor:
    """Return what a network sees of the time: 1 - t, which is 0 for noise and 1 for data.

    The paper's networks saw this clock. It matters out of distribution: with t itself, the factorized OOD setting at
    K = 16 gives SW2 1.57 where 1 - t gives 2.17 and the paper has 1.97 (20 runs each; see docs/decisions.md).
    """
    return 1 - t


class ScoreNetwork:
    """A trained noise predictor for A conditions, one shared network or one each, prepared for evaluation.

    A shared network takes [1 - t, x, onehot(condition)]: conditions differ only by a constant of the first layer, so
    all of them share x and every later weight. A separate one takes [1 - t, x]. Both become the same thing here:

        h_1 = act(x first + (1 - t) time + constant_a),   h_{l+1} = act(h_l hidden_l + bias_l),   eps = h last + bias,

    with a leading axis of length 1 (shared) or A (separate) on everything but `constant`, which always has A.
    """

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
        cls, tensors: dict[str, Tensor], dim: int, depth: int, shared: bool, activation: str
    ) -> ScoreNetwork:
        """Return the network of named parameters; `ValueError` where they do not fit together."""
        if activation not in ACTIVATIONS or not isinstance(shared, bool):
            raise ValueError(f"activation {activation!r}, shared {shared!r}")
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
    def shape(self) -> tuple[int, int, bool, str]:
        """Dimension, hidden layers, whether conditions share weights, activation: what a file says once for all."""
        return self.dim, len(self.hidden), self.shared, self.activation

    def to(self, device: torch.device | str) -> ScoreNetwork:
        """Move the parameters in place."""
        for name in _SINGLE:
            setattr(self, name, getattr(self, name).to(device))
        self.hidden = [weight.to(device) for weight in self.hidden]
        self.hidden_biases = [bias.to(device) for bias in self.hidden_biases]
        return self

    def pick(self, which: Sequence[int]) -> ScoreNetwork:
        """Return a network for some of the conditions, in that order."""
        picked = object.__new__(ScoreNetwork)
        picked.__dict__.update(self.__dict__)
        rows = torch.tensor(list(which), device=self.device)
        picked.conditions, picked.constant = len(rows), self.constant[rows]
        if not self.shared:
            for name in ("time", "first", "last", "last_bias"):
                setattr(picked, name, getattr(self, name)[rows])
            picked.hidden = [weight[rows] for weight in self.hidden]
            picked.hidden_biases = [bias[rows] for bias in self.hidden_biases]
        return picked

    @classmethod
    def side_by_side(cls, networks: Sequence[ScoreNetwork]) -> ScoreNetwork:
        """Return networks of one shape and width as one: all conditions of the first, then of the next."""
        if len(networks) == 1:
            return networks[0]
        apart = [network._apart() for network in networks]
        tensors = {name: torch.cat([parts[name] for parts in apart]) for name in apart[0]}
        dim, depth, _, activation = networks[0].shape
        return cls.from_tensors(tensors, dim, depth, False, activation)

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

    def noise(self, x: Tensor, offset: Tensor, precision: torch.dtype | None = None) -> Tensor:
        """Return the predicted noise of every condition, `(B, d), (A, width) -> (A, B, d)`.

        Args:
            precision: dtype of the hidden layers' operands; sums stay in float32. None is float32 throughout.
        """
        h = self._activate((x @ self.first).add(offset[:, None]))
        low = precision or h.dtype
        for weight, bias in zip(self.hidden, self.hidden_biases, strict=True):
            h = self._activate(_affine(h.to(low), weight.to(low), bias))
        return _affine(h, self.last, self.last_bias)

    def noise_in_place(self, x: Tensor, offset: Tensor) -> Tensor:
        """`noise` for samplers on a CPU: no gradients, and memory kept between calls.

        Fresh pages for each layer would cost a fifth of the time.
        """
        out = torch.empty(self.conditions, *x.shape, dtype=x.dtype)
        count = max(1, _ROWS_AT_ONCE // self.conditions)
        for rows, target in zip(x.split(count), out.split(count, dim=1), strict=True):
            h, spare = _scratch((self.conditions, len(rows), self.width), x.dtype)
            first = self.first.expand(self.conditions, -1, -1)
            h = self._activate(torch.baddbmm(offset[:, None], rows.expand(self.conditions, -1, -1), first, out=h))
            for weight, bias in zip(self.hidden, self.hidden_biases, strict=True):
                h, spare = self._activate(_affine(h, weight, bias, out=spare)), h
            target.copy_(_affine(h, self.last, self.last_bias))
        return out

    def _activate(self, z: Tensor) -> Tensor:
        """Return the activation, in place where that is possible."""
        return nn.functional.silu(z, inplace=True) if self.activation == "silu" else ACTIVATIONS[self.activation](z)

    def noise_at(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the predicted noise at one time or a batch of them, `(..., d), () or (...) -> (A, ..., d)`."""
        flat = x.reshape(-1, self.dim)
        if t.ndim == 0:
            return self.noise(flat, self.offsets(t[None])[0]).view(self.conditions, *x.shape)
        times = t.expand(x.shape[:-1]).reshape(-1)
        act = ACTIVATIONS[self.activation]
        h = act(flat @ self.first + time_feature(times)[:, None] * self.time[:, None] + self.constant[:, None])
        for weight, bias in zip(self.hidden, self.hidden_biases, strict=True):
            h = act(_affine(h, weight, bias))
        return _affine(h, self.last, self.last_bias).view(self.conditions, *x.shape)


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
