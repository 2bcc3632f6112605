"""Mixings: an invertible map x = g(z) from the variables of a causal model to what is seen, with log |det J_g|."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polyscore.distributions.inputs import as_float64
from polyscore.errors import require, shorten
from polyscore.models.asking import ModelError, asking

_WORST_CONDITION = 1e12
_STEP = 1e-4  # of the central differences against which log_det is checked


class InvertibleMap(Protocol):
    """What a model needs of a mixing: x = forward(z), z = inverse(x), log |det J_forward(z)|."""

    def forward(self, z: Tensor, /) -> Tensor: ...
    def inverse(self, x: Tensor, /) -> Tensor: ...
    def log_det(self, z: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Mixing:
    """Any invertible map of R^d onto itself, differentiable almost everywhere.

    Args:
        forward: g, from z `(..., d)` to x `(..., d)`.
        inverse: its inverse.
        log_det: z -> log |det J_g(z)|, `(..., d) -> (...)`.
    """

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]
    log_det: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        for name in ("forward", "inverse", "log_det"):
            require(callable(getattr(self, name)), name, "be a function", shorten(getattr(self, name)),
                    "Pass a callable that takes and returns points (..., d).")  # fmt: skip


class Matrix:
    """x = M z: log |det J| is the same everywhere."""

    def __init__(self, matrix: Any, dim: int) -> None:
        self.matrix = as_float64(matrix, "mixing")
        require(self.matrix.shape == (dim, dim), "mixing", f"be a matrix ({dim}, {dim})",
                f"shape {tuple(self.matrix.shape)}", "Pass one row and one column a variable.")  # fmt: skip
        condition = torch.linalg.cond(self.matrix).item()
        require(condition < _WORST_CONDITION, "mixing", f"be invertible, of condition below {_WORST_CONDITION:g}",
                f"condition {condition:.3g}", "Drop rows that repeat others.")  # fmt: skip
        self._inverse = torch.linalg.inv(self.matrix)
        self._log_det = torch.linalg.slogdet(self.matrix).logabsdet

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.matrix.T.to(z)

    def inverse(self, x: Tensor) -> Tensor:
        return x @ self._inverse.T.to(x)

    def log_det(self, z: Tensor) -> Tensor:
        return self._log_det.to(z).expand(z.shape[:-1])

    def __repr__(self) -> str:
        return f"a matrix {tuple(self.matrix.shape)}"


def mixing_of(value: Any, dim: int) -> InvertibleMap | None:
    """Return the mixing that a user means: none, a `Mixing`, or a matrix."""
    if value is None or isinstance(value, (Mixing, Matrix)):
        return value
    require(not callable(value), "mixing", "be an invertible matrix or a Mixing", shorten(value),
            "Write ps.causal.Mixing(forward, inverse, log_det).")  # fmt: skip
    return Matrix(value, dim)


def check_mixing(mixing: InvertibleMap, z: Tensor) -> None:
    """Check at points z `(n, d)`, float64, that the inverse inverts, and log_det against central differences."""
    x = _asked(mixing, "forward", z, z.shape)
    gap = ((_asked(mixing, "inverse", x, z.shape) - z).abs().max() / (1 + z.abs().max())).item()
    require(gap < 1e-4, "the inverse of a mixing", "give z back from forward(z)", f"an error of {gap:.3g}",
            "Mend inverse or forward; both are asked in float64.")  # fmt: skip
    found, expected = _asked(mixing, "log_det", z, z.shape[:1]), _differences(mixing, z)
    gap = (found - expected).abs().max().item()
    require(gap < 1e-2, "log_det of a mixing", "be log |det J| of forward at z",
            f"{found.flatten()[0].item():.4g} where differences give {expected[0].item():.4g}",
            "That of the inverse has the other sign.")  # fmt: skip


def _differences(mixing: InvertibleMap, z: Tensor) -> Tensor:
    """log |det J| by central differences, `(n, d) -> (n,)`: asks nothing of forward but values."""
    steps = _STEP * torch.eye(z.shape[1], dtype=z.dtype)
    ahead, behind = (mixing.forward((z[:, None] + sign * steps).reshape(-1, z.shape[1])) for sign in (1, -1))
    jacobians = ((ahead - behind) / (2 * _STEP)).reshape(len(z), *steps.shape)
    return torch.linalg.slogdet(jacobians).logabsdet


def _asked(mixing: InvertibleMap, name: str, points: Tensor, shape: torch.Size) -> Tensor:
    """What one of the three maps answers, of the right shape and finite."""
    with asking(lambda got: f"{name} of a mixing must take points {tuple(points.shape)}; got {got}. Mend it."):
        value = getattr(mixing, name)(points)
    return checked(value, shape, f"{name} of a mixing", "Mend it.")


def checked(value: Any, shape: tuple[int, ...], subject: str, remedy: str) -> Tensor:
    """Return what a user's function gave, if it is finite values of that shape."""
    if isinstance(value, Tensor) and value.shape == shape and bool(value.isfinite().all()):
        return value
    got = type(value).__name__ if not isinstance(value, Tensor) else f"shape {tuple(value.shape)}"
    got = "values that are not finite" if isinstance(value, Tensor) and value.shape == shape else got
    raise ModelError(f"{subject} must return finite values {tuple(shape)}; got {got}. {remedy}")
