"""Ways to evaluate a network at the times of a grid, quickest first; each but the last stands by itself and could go.

`ladder` asks every way whether it serves. The last, float32, stays: it is the oracle of the others, and what a run ends
with. A run begins at the top, and steps down where a shortcut fails it or does not trust itself. To add a way, or to
take one out, is one entry of `EVALUATORS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyscore.devices import has_triton, matmul_precision
from polyscore.fields.field import row
from polyscore.nn import Perceptron, ScoreNetwork
from polyscore.nn.fast import Kernels, plane
from polyscore.nn.network import At

# Score and excess of the noise at some points.
Compose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]

# A table is given up where scores or excesses by it are off by more than this, point by point in the quadratic mean:
# fp16 products, within 1e-3 of the noise, may move excesses by more.
_TABLE_ERROR = 5e-3


@dataclass(frozen=True)
class Case:
    """What is to be evaluated: a network on its device, the times of a grid, the precision that was asked for."""

    network: ScoreNetwork
    times: Tensor
    precision: str

    @property
    def device(self) -> torch.device:
        """Where."""
        return self.network.device

    @property
    def on_gpu(self) -> bool:
        """Whether there are tensor cores to use."""
        return self.device.type == "cuda"

    @property
    def quick(self) -> bool:
        """Whether fp16 products will do."""
        return self.precision in ("auto", "table", "fp16")

    @property
    def perceptron(self) -> Perceptron | None:
        """The network where kernels of our own may serve it: they know perceptrons alone."""
        return self.network if self.quick and self.on_gpu and isinstance(self.network, Perceptron) else None


class Evaluator(ABC):
    """One way to evaluate a network: its noise at points, at the i-th time of a grid.

    Attributes:
        arithmetic: what a run says of it; of ways with one arithmetic the first that serves is taken.
        shortcut: whether another way stands below it, to step down to.
    """

    arithmetic: ClassVar[str]
    shortcut: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, case: Case, below: Evaluator | None) -> None:
        """Prepare a case that it serves; `below` is the next way down, None at the bottom."""

    @staticmethod
    @abstractmethod
    def serves(case: Case) -> bool:
        """Whether it can evaluate a case as it was asked for."""

    @abstractmethod
    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        """Return the noise of every condition, `(B, d) -> (A, B, d)`, in float32."""

    def says(self, particles: int) -> str:
        """Return the arithmetic of a chunk of so many particles."""
        return self.arithmetic

    def trusts(self, x: Tensor, i: int, exact: Evaluator, compose: Compose) -> bool:
        """Whether it is right at particles `(B, d)`, asked now and then; `exact` is the way at the bottom."""
        return True

    @staticmethod
    def numbers_per_row(case: Case) -> int:
        """Return how many numbers it holds for every particle and condition, but for what it returns."""
        return case.network.numbers_per_row


class Float32(Evaluator):
    """In float32."""

    arithmetic, shortcut = "float32", False
    products = "highest"

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        self.network, self.parts = case.network, case.network.embed(case.times.to(case.device))

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve every case."""
        return True

    def at(self, i: int | Tensor) -> At:
        """All that the network needs of one time."""
        return tuple([row(part, i) for part in self.parts])

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        if not x.is_cuda:
            return self.network.noise_in_place(x, self.at(i))
        with matmul_precision(self.products, x.device):
            return self.network.noise(x, self.at(i))


class TF32(Float32):
    """Products in TF32, which a GPU has."""

    arithmetic = "tf32"
    products = "high"

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve where it was asked for, on a GPU."""
        return case.precision == "tf32" and case.on_gpu


class EagerHalf(Float32):
    """fp16 products with float32 sums, by PyTorch."""

    arithmetic, shortcut = "fp16", True

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve networks that know how, on a GPU."""
        return case.quick and case.on_gpu and case.network.has_half

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        with matmul_precision("highest", x.device):
            return self.network.noise(x, self.at(i), torch.float16)


class Fused(Evaluator):
    """A perceptron in fp16, laid out for kernels of its own: those of a module of `polyscore.nn.fast`."""

    arithmetic = "fp16"
    module: ClassVar[str]
    layout: ClassVar[str]
    by_triton: ClassVar[bool] = False

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        self.kernels: Kernels = getattr(self._module(), self.layout)(case.network)
        self.half_offsets = self.kernels.half_offsets(*case.network.embed(case.times.to(case.device)))

    @classmethod
    def serves(cls, case: Case) -> bool:
        """Serve the perceptrons that the kernels support; they are imported only where there is a GPU."""
        if case.perceptron is None or (cls.by_triton and not has_triton()):
            return False
        return bool(cls._module().supports(case.perceptron, case.device))

    @classmethod
    def _module(cls) -> Any:
        return import_module(f"polyscore.nn.fast.{cls.module}")

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        return self.kernels.noise(x, row(self.half_offsets, i))


class LayeredKernels(Fused):
    """One kernel a layer, by Triton: SiLU and widths of whole tiles, on a Hopper or newer."""

    module, layout, by_triton = "layered", "FusedNetwork", True


class OneKernel(Fused):
    """One kernel for all layers: width 512 on a Hopper."""

    module, layout = "hopper", "HopperNetwork"


class ByTable(Evaluator):
    """In the plane, many particles interpolated from few nodes; fewer are evaluated by the way below."""

    arithmetic = "table"

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        assert below is not None, "nodes are evaluated by another way"
        self.below = below

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve the plane: on a CPU only where asked to, so that a swarm has the same bytes in whatever company."""
        return case.network.dim == 2 and case.precision in (("auto", "table") if case.on_gpu else ("table",))

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        if len(x) < plane.WORTHWHILE:
            return self.below(x, i)
        return plane.tabulated(lambda nodes: self.below(nodes, i), x)

    def says(self, particles: int) -> str:
        """Return "table" for those that are interpolated."""
        return self.arithmetic if particles >= plane.WORTHWHILE else self.below.says(particles)

    def trusts(self, x: Tensor, i: int, exact: Evaluator, compose: Compose) -> bool:
        """Whether the table is the network, where there is one: in float32, rounding to fp16 is another matter."""
        if len(x) < plane.WORTHWHILE:
            return True
        points, nodes = plane.some(x), plane.Nodes.around(x)
        read = plane.interpolate(exact(nodes.points(), i), nodes, points)
        by_table, direct = (compose(noise, points) for noise in (read, exact(points, i)))
        # An error that is no number is the alarm's matter, not the table's.
        errors = [_relative(a, b) for a, b in zip(by_table, direct, strict=True) if a is not None and b is not None]
        return not max(errors) > _TABLE_ERROR

    @staticmethod
    def numbers_per_row(case: Case) -> int:
        """Return none on a CPU, where nodes go piece by piece."""
        return case.network.numbers_per_row if case.on_gpu else 0


def _relative(values: Tensor, exact: Tensor) -> float:
    """Quadratic mean over points of error over size; sizes below the median count as the median."""
    error, size = (part.reshape(len(exact), -1).norm(dim=1) for part in (values - exact, exact))
    return (error / size.clamp_min(size.median())).square().mean().sqrt().item()


EVALUATORS: tuple[type[Evaluator], ...] = (ByTable, OneKernel, LayeredKernels, EagerHalf, TF32, Float32)


def ladder(case: Case) -> tuple[Evaluator, ...]:
    """Return the ways that serve a case, quickest first, one an arithmetic; the last is no shortcut."""
    chosen: dict[str, type[Evaluator]] = {}
    for kind in EVALUATORS:
        if kind.arithmetic not in chosen and kind.serves(case):
            chosen[kind.arithmetic] = kind
            if not kind.shortcut:
                break
    found: tuple[Evaluator, ...] = ()
    for kind in reversed(chosen.values()):
        found = (kind(case, found[0] if found else None), *found)
    return found
