"""What every exact target offers, and the small things they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.devices import on_cpu
from polyscore.distributions.components import Components
from polyscore.errors import require, shorten
from polyscore.notices import warn
from polyscore.rng import as_seed

_TOLD = 0.1  # of the narrowest deviation, from which rounding is told of


class Target(ABC):
    """The exact distribution of a composition at t = 0."""

    method: str
    ess: float = math.inf

    def __init__(self, q: Composition) -> None:
        self.q = q

    def __repr__(self) -> str:
        return f"exact target of {self.q!r} in {self.q.event[0]} dimensions, by {self.method}"

    @property
    @abstractmethod
    def log_evidence(self) -> float:
        """log Z of the composition."""

    @on_cpu
    def sample(self, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return `n` draws, `(n, d)`; the same for the same seed."""
        good = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        require(good, "dtype", "be a floating-point type of torch", shorten(dtype),
                "Use torch.float32 or torch.float64.")  # fmt: skip
        drawn = self.drawn(n, seed)
        if _rounding(self.q, drawn, dtype) > _TOLD:
            warn(
                f"draws must be finer than the target's narrowest part; {dtype} rounds those of {self.q!r} about "
                f"{drawn.abs().max().item():.3g}. Pass dtype=torch.float64, or shift the data to 0."
            )
        return drawn.to(dtype)

    @abstractmethod
    def drawn(self, n: int, seed: int) -> Tensor:
        """Return `n` draws, `(n, d)`, float64."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the normalised log-density, `(..., d) -> (...)`."""
        return self.q.log_density(x) - self.log_evidence


def _rounding(q: Composition, x: Tensor, dtype: torch.dtype) -> float:
    """Return by how many of the narrowest deviations that `q` can have its draws x, `(n, d)`, are rounded at most.

    Positive exponents alone narrow: no precision is above the sum of w times the largest of each factor's parts.
    """
    steps = torch.finfo(dtype).eps * x.abs().amax(0)
    if q.mixtures is None:
        if len(x) < 2:
            return 0.0
        return (steps / x.std(0, correction=0).clamp_min(torch.finfo(x.dtype).tiny)).max().item()
    squares = (w * _largest(part, steps) for w, part in zip(q.exponents.values(), q.mixtures, strict=True) if w > 0)
    return math.sqrt(sum(squares))


def _largest(part: Components, steps: Tensor) -> float:
    """The largest v' P_k v over components and |v_i| of steps' size: of their axes, by the steps along them."""
    along = steps.square() if part.bases is None else steps.square() @ part.bases.square()
    return (along / part.variances).max().item()


def symmetric(matrix: Tensor) -> Tensor:
    """Return the symmetric part, free of rounding."""
    return 0.5 * (matrix + matrix.mT)


def sub_seed(seed: int, batch: int) -> int:
    """Return the seed of one batch of a draw."""
    return (as_seed(seed) << 20) + batch
