"""Networks as they are trained, many at once; and how any kind of them is evaluated, picked, kept in files."""

from __future__ import annotations

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyscore.errors import require
from polyscore.nn.network import Architecture, At, ScoreNetwork
from polyscore.rng import generator
from polyscore.schedules import Schedule
from polyscore.schema import Checked, count

# A file's counts (layers, widths) are at most its numbers, or this: what they ask for is built before it is compared.
_COUNT = 1 << 16


class Stack(nn.Module, ABC):
    """G networks of one kind as they are trained.

    A subclass begins with `super().__init__(architecture, seeds)` and adds parameters `(G, ...)`, one row a seed; none
    where there are no seeds, which is how files are checked. What differs between the conditions of one network has
    the shape `(G, C, ...)` and is named in `per_condition`. Buffers are kept with the parameters and not trained; one
    that is not persistent is the same for all networks. Sizes are read off tensors when needed: rows and conditions are
    picked from them.

    Attributes:
        Options: the fields of `fit(options=...)`, a `Checked` dataclass; none by default.
        per_condition: names of parameters and buffers with an axis of conditions.
        held_out: the share of every condition's points that is kept from training, for `review` and `settle`.
        suggested: steps, width, depth, learning rate and bend of a recipe that does not say.
    """

    Options: ClassVar[type[Checked]] = Checked
    per_condition: ClassVar[tuple[str, ...]] = ()
    held_out: ClassVar[float] = 0.0
    suggested: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, architecture: Architecture, seeds: Sequence[int]) -> None:
        super().__init__()
        self.architecture = architecture

    def observe(self, points: Tensor, sizes: Tensor) -> None:
        """Set what is taken from the data before training: points `(G, C, n, d)`, the first `sizes` `(G, C)` of each.

        They are standardised where the recipe says so, and on the device of the training.
        """

    def review(self, points: Tensor, sizes: Tensor) -> None:
        """Set buffers from points that were not trained on, once, early in a training; arguments as in `observe`."""

    def settle(self, points: Tensor, sizes: Tensor) -> None:
        """Set what is taken from points that were not trained on, after training; arguments as in `observe`."""

    @property
    def is_finished(self) -> bool:
        """Whether more steps would change nothing, as a review may find."""
        return False

    def embed(self, t: Tensor) -> At:
        """Return all that depends on time and no point, each part with t's leading axes.

        t is `(G, C, b, 1)` in training; `(T, 1, 1, 1, 1)` for a table of times, whose rows then stand for all b.
        """
        return (t,)

    @abstractmethod
    def predict(self, x: Tensor, at: At) -> Tensor:
        """Return the noise in x `(G, C, b, d)`, like x; parts of `at` broadcast against it."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the noise in x `(G, C, b, d)` at times `(G, C, b, 1)`, like x."""
        return self.predict(x, self.embed(t))

    def evaluated(self, tensors: Mapping[str, Tensor]) -> ScoreNetwork:
        """Return networks to evaluate, of some rows of all tensors: the weights, or an average of them."""
        return StackNetwork.of(self, tensors)

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any], kind: str, dim: int, schedule: Schedule
    ) -> ScoreNetwork:
        """Return what a file holds: the inverse of `ScoreNetwork.tensors` and `about`.

        `ValueError` or `KeyError` where they do not fit together: a file may hold anything.
        """
        return StackNetwork.read(cls, tensors, about, kind, dim, schedule)

    @classmethod
    def numbers(cls, architecture: Architecture) -> tuple[int, int]:
        """Return how many weights one network has, and activations a row of its batch; a perceptron's, by default."""
        width, depth, dim = architecture.width, architecture.depth, architecture.dim
        inputs = 1 + dim + (architecture.conditions if architecture.shared else 0)
        return width * (inputs + dim + (depth - 1) * width), 2 * depth * width


class StackNetwork(ScoreNetwork):
    """G networks of a stack with C conditions each, as they are evaluated: G C conditions, in this order."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.architecture = stack, stack.architecture
        self.kind, self.dim = self.architecture.kind, self.architecture.dim
        self.networks = len(next(iter(self.tensors().values())))
        self.conditions = self.networks * self.architecture.conditions

    @classmethod
    def of(cls, stack: Stack, tensors: Mapping[str, Tensor], conditions: int | None = None) -> StackNetwork:
        """Return the network of other tensors; `conditions` are those of one network, where they are others."""
        twin = _with_tensors(stack, lambda name, own: tensors.get(name, own).detach())
        if conditions is not None:
            twin.architecture = dataclasses.replace(stack.architecture, conditions=conditions)
        return cls(twin)

    @classmethod
    def read(
        cls, make: type[Stack], tensors: Mapping[str, Tensor], about: Mapping[str, Any], kind: str, dim: int,
        schedule: Schedule,
    ) -> StackNetwork:  # fmt: skip
        """Return the network of a file, if its tensors are those that its description asks for."""
        written = dict(about["architecture"])
        possible = count(1, max(_COUNT, sum(tensor.numel() for tensor in tensors.values())))
        for name, value in {"dim": dim, **{name: written[name] for name in ("conditions", "width", "depth")}}.items():
            require(possible.holds(value), name, possible.rule, value, "Train and save the model again.")
        if not isinstance(written["shared"], bool) or not isinstance(written["activation"], str):
            raise ValueError(f"shared {written['shared']!r:.50}, activation {written['activation']!r:.50}")
        written["options"] = make.Options.parse(written["options"], "options")
        pattern = make(Architecture(kind, dim, schedule=schedule, **written), [])
        check_stack(pattern, 0)
        _check_tensors(pattern.state_dict(), tensors)
        found = cls.of(pattern, tensors)
        if (found.networks if written["shared"] else written["conditions"]) != 1:
            raise ValueError(f"{found.networks} networks of {written['conditions']} conditions")
        return found

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.tensors().values())).device

    @property
    def numbers_per_row(self) -> int:
        """Two layers of activations."""
        return 2 * self.architecture.width

    def to(self, device: torch.device | str) -> StackNetwork:
        """Move the parameters in place."""
        self.stack = _with_tensors(self.stack, lambda _, tensor: tensor.to(device))
        return self

    def pick(self, which: Sequence[int]) -> StackNetwork:
        """Return a network for some of the conditions: rows of what differs between them, or whole networks."""
        rows, tensors = torch.tensor(list(which), device=self.device), self.tensors()
        if not self.architecture.shared:
            return self.of(self.stack, {name: tensor[rows] for name, tensor in tensors.items()})
        own = {name: tensors[name][:, rows] for name in self.stack.per_condition}
        return self.of(self.stack, {**tensors, **own}, len(rows))

    def side_by_side(self, others: Sequence[ScoreNetwork]) -> StackNetwork:
        """Return all as one stack."""
        every = [network.tensors() for network in (self, *others)]
        return self.of(self.stack, {name: torch.cat([tensors[name] for tensors in every]) for name in every[0]})

    def embed(self, times: Tensor) -> At:
        """Return what the stack makes of `times` `(T,)`, each part `(T, G or 1, C or 1, 1, ...)`."""
        return self.stack.embed(times.to(self.device, torch.float32)[:, None, None, None, None])

    def noise(self, x: Tensor, at: At, precision: torch.dtype | None = None) -> Tensor:
        """Return the noise of every condition, `(B, d) -> (A, B, d)`."""
        wide = x.expand(self.networks, self.architecture.conditions, *x.shape)
        return self.stack.predict(wide, at).flatten(0, 1)

    def noise_at(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the noise at one time or a batch of them, `(..., d), () or (...) -> (A, ..., d)`."""
        times = t.expand(x.shape[:-1]) if t.ndim else t
        at = self.stack.embed(times.reshape(1, 1, -1, 1))
        return self.noise(x.reshape(-1, self.dim), at).view(self.conditions, *x.shape)

    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter and buffer by name, `(G, ...)`."""
        return dict(self.stack.state_dict())

    def about(self) -> dict[str, Any]:
        """Return the architecture."""
        plain = {name: getattr(self.architecture, name) for name in _WRITTEN}
        return {"architecture": {**plain, "options": dataclasses.asdict(self.architecture.options)}}

    def __repr__(self) -> str:
        told = "conditional" if self.architecture.shared else "separate"
        return f"a {told} network of kind {self.kind!r}"


_WRITTEN = ("conditions", "shared", "width", "depth", "activation")


def _with_tensors(module: Any, change: Callable[[str, Tensor], Tensor], prefix: str = "") -> Any:
    """Return a copy of a module in which every tensor is `change(name, tensor)`, and none is trained."""
    twin = copy.copy(module)
    parameters, buffers = (
        {name: None if own is None else change(prefix + name, own.detach()) for name, own in owned.items()}
        for owned in (module._parameters, module._buffers)
    )
    twin._buffers = buffers
    twin._parameters = {
        name: None if tensor is None else nn.Parameter(tensor, requires_grad=False)
        for name, tensor in parameters.items()
    }
    twin._modules = {name: _with_tensors(inner, change, f"{prefix}{name}.") for name, inner in module._modules.items()}
    return twin


def _check_tensors(pattern: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise unless all tensors of a pattern of no networks are there, in shape, with as many rows each."""
    rows = len(tensors[next(iter(pattern))])
    for name, empty in pattern.items():
        expected = (rows, *empty.shape[1:])
        if tuple(tensors[name].shape) != expected or not rows:
            raise ValueError(f"{name} of shape {tuple(tensors[name].shape)} instead of {expected}")
        if tensors[name].dtype != empty.dtype:
            raise ValueError(f"{name} in {tensors[name].dtype} instead of {empty.dtype}")


def uniform_start(seeds: Sequence[int], shape: Sequence[int], fan_in: int, *purpose: object) -> Tensor:
    """Return weights `(G, *shape)` uniform on +-1/sqrt(fan_in), PyTorch's own start of a linear layer.

    A plain tensor, to be wrapped: `self.weight = nn.Parameter(uniform_start(...))`. A network's start depends on its
    own seed and the purpose alone; drawn on the CPU so that devices agree.
    """
    sources = [generator(seed, "init", *purpose) for seed in seeds]
    draws = [torch.rand(*shape, generator=source, dtype=torch.float32) for source in sources]
    stacked = torch.stack(draws) if draws else torch.empty(0, *shape, dtype=torch.float32)
    return (2 * stacked - 1) * (1 / math.sqrt(fan_in))


def check_stack(stack: Stack, networks: int) -> None:
    """Check that every tensor has the axes it must have; a kind from outside may have forgotten one."""
    tensors = stack.state_dict()
    require(tensors, "a stack of networks", "have parameters", "none",
            "Add them in __init__: self.weight = nn.Parameter(uniform_start(...)).")  # fmt: skip
    for name, tensor in tensors.items():
        good = tensor.ndim >= 1 and len(tensor) == networks and tensor.is_floating_point()
        require(good, f"the tensor {name!r} of {type(stack).__name__}", f"have {networks} rows of floats, one a seed",
                f"{tensor.dtype} of shape {tuple(tensor.shape)}", "Use nn.Parameter(uniform_start(...)).")  # fmt: skip
    count = stack.architecture.conditions
    for name in stack.per_condition:
        shape = tuple(tensors[name].shape) if name in tensors else None
        require(shape is not None and len(shape) >= 2 and shape[1] == count, f"{name!r} in per_condition",
                f"name a tensor (G, C, ...) with C = {count}", shape, "Mend the shape, or the name.")  # fmt: skip
    # A kind that overrides `evaluated` picks its conditions in its own way.
    told = not stack.architecture.shared or stack.per_condition or type(stack).evaluated is not Stack.evaluated
    require(told, f"a conditional {type(stack).__name__}", "name what differs between conditions in per_condition",
            "nothing", "Name it, or train with model='separate'.")  # fmt: skip


@torch.no_grad()
def check_prediction(stack: Stack, networks: int) -> None:
    """Check on a few points that the noise is like x: a loss would broadcast another shape without a word."""
    own, conditions = next(iter(stack.state_dict().values())), stack.architecture.conditions
    x = own.new_zeros(networks, conditions, conditions + 1, stack.architecture.dim)
    noise = stack(x, torch.full_like(x[..., :1], 0.5))
    got = tuple(noise.shape) if isinstance(noise, Tensor) else type(noise).__name__
    require(got == tuple(x.shape), f"{type(stack).__name__}.predict", f"return the noise like x, {tuple(x.shape)}", got,
            "Let predict return a tensor of the shape of its first argument.")  # fmt: skip
