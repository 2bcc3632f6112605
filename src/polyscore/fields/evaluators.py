"""Ways to evaluate a network at the times of a grid, quickest first; each but the last stands by itself and could go.

`ladder` asks every way whether it serves. The last, float32, stays: it is the oracle of the others, and what a run ends
with. A run begins at the top, and steps down where a shortcut fails it or does not trust itself. To add a way, or to
take one out, is one entry of `EVALUATORS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyscore.devices import has_triton, matmul_precision
from polyscore.fields.by_table import ByTable, RefinedTable
from polyscore.fields.evaluator import Case, Evaluator, ladder_of
from polyscore.fields.field import row
from polyscore.nn.fast import Kernels
from polyscore.nn.network import At

__all__ = ["EVALUATORS", "ByTable", "Case", "Evaluator", "Float32", "RefinedTable", "ladder"]


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
    operands = torch.float16

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve networks that know how, on a GPU."""
        return case.quick and case.on_gpu and case.network.has_half

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        with matmul_precision("highest", x.device):
            return self.network.noise(x, self.at(i), self.operands)


class EagerBFloat(EagerHalf):
    """bf16 products with float32 sums, by PyTorch: coarser than fp16, without its bound."""

    arithmetic = "bf16"
    operands = torch.bfloat16

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve networks that know how, on a GPU, where it was asked for."""
        return case.precision == "bf16" and case.on_gpu and case.network.has_half


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


EVALUATORS: tuple[type[Evaluator], ...] = (
    ByTable, RefinedTable, OneKernel, LayeredKernels, EagerHalf, EagerBFloat, TF32, Float32,
)  # fmt: skip


def ladder(case: Case) -> tuple[Evaluator, ...]:
    """Return the ways that serve a case, quickest first, one an arithmetic; the last is no shortcut."""
    return ladder_of(EVALUATORS, case)
