"""What every exact target offers, and the small things they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor

from polyscore.algebra import Composition
from polyscore.rng import as_seed


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

    @abstractmethod
    def sample(self, n: int, seed: int = 0) -> Tensor:
        """Return `n` draws, `(n, d)`, float32."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the normalised log-density, `(..., d) -> (...)`."""
        return self.q.log_density(x) - self.log_evidence


def symmetric(matrix: Tensor) -> Tensor:
    """Return the symmetric part, free of rounding."""
    return 0.5 * (matrix + matrix.mT)


def sub_seed(seed: int, batch: int) -> int:
    """Return the seed of one batch of a draw."""
    return (as_seed(seed) << 20) + batch
