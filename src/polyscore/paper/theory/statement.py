"""A statement: a law, both of its sides computed, and whether they agree."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

Value = float | str | list[float] | list[list[float]]


@dataclass(frozen=True)
class Statement:
    """A law, what it predicts, what a computation independent of it gave, and whether they agree.

    Attributes:
        error: distance between the two sides, in the unit of `tolerance`; `measure` says which.
        holds: whether the error is within the tolerance.
    """

    name: str
    meaning: str
    predicted: Value
    simulated: Value
    measure: str
    error: float
    tolerance: float
    holds: bool

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready copy."""
        return asdict(self)


def compare(name: str, meaning: str, predicted: Tensor, samples: Tensor, steps: int) -> Statement:
    """Compare a covariance with that of samples; tolerance: five standard errors and an Euler error of 10 / steps."""
    simulated = torch.cov(samples.double().cpu().T)
    error = ((simulated - predicted).norm() / predicted.norm()).item()
    tolerance = 5 * math.sqrt(2 / len(samples)) + 10 / steps
    return state(name, meaning, numbers(predicted), numbers(simulated), "relative Frobenius", error, tolerance)


def state(
    name: str, meaning: str, predicted: Value, simulated: Value, measure: str, error: float, tolerance: float
) -> Statement:
    """Return the statement, which holds where the error is within the tolerance."""
    return Statement(name, meaning, predicted, simulated, measure, error, tolerance, error <= tolerance)


def numbers(values: Tensor) -> Any:
    """Return a vector or a matrix as lists, JSON-ready."""
    return values.tolist()
