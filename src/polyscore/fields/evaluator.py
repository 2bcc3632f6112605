"""What a way to evaluate models is: `evaluators` holds those of networks, `scores` the one that asks a family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from polyscore.nn import Perceptron

# Score and excess at some points, of all conditions' values there.
Compose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Case:
    """What is to be evaluated: a network on its device, the times of a grid, the precision that was asked for.

    Attributes:
        network: a `ScoreNetwork`, or what stands for models of another kind.
        compose: score and excess at points of the i-th time, for ways that check themselves at every call.
    """

    network: Any
    times: Tensor
    precision: str
    compose: Callable[..., tuple[Tensor, Tensor | None]] | None = None

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
        used: whether its answers have been its own, and not those of the way below.
    """

    arithmetic: ClassVar[str]
    shortcut: ClassVar[bool] = True
    used: bool = True

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


def ladder_of(kinds: tuple[type[Evaluator], ...], case: Case) -> tuple[Evaluator, ...]:
    """Return the ways that serve a case, quickest first, one an arithmetic; the last is no shortcut."""
    chosen: dict[str, type[Evaluator]] = {}
    for kind in kinds:
        if kind.arithmetic not in chosen and kind.serves(case):
            chosen[kind.arithmetic] = kind
            if not kind.shortcut:
                break
    found: tuple[Evaluator, ...] = ()
    for kind in reversed(chosen.values()):
        found = (kind(case, found[0] if found else None), *found)
    return found


def lengths(parts: Tensor) -> Tensor:
    """The norm of every point's part, `(R, ...) -> (R,)`."""
    return parts.reshape(len(parts), -1).norm(dim=1)


def relative(errors: Tensor, sizes: Tensor) -> Tensor:
    """Quadratic mean of error over size, `(..., R) -> (...)`; sizes below the median count as the median."""
    return (errors / sizes.clamp_min(sizes.median(-1, keepdim=True).values)).square().mean(-1).sqrt()


def relative_error(values: Tensor, exact: Tensor) -> float:
    """The same of the values at points."""
    return relative(lengths(values - exact), lengths(exact)).item()


def worst_error(values: Tensor, exact: Tensor, compose: Compose, x: Tensor) -> float:
    """The larger relative error of score and excess at points x `(B, d)`, of two sets of values there."""
    pairs = zip(compose(values, x), compose(exact, x), strict=True)
    return max(relative_error(a, b) for a, b in pairs if a is not None and b is not None)
