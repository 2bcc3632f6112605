"""What a closed-form distribution can do: be sampled, and give density and score after noising.

Noising by (alpha, sigma) turns x into alpha x + sigma z; both may be numbers or tensors that broadcast against the
batch shape of x, so one call serves a batch of times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

Scale = Tensor | float


class Distribution(ABC):
    """A distribution on R^d whose noised density and score are known."""

    dim: int

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one point, `(d,)`."""
        return (self.dim,)

    @abstractmethod
    def sample(self, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return `n` draws, `(n, d)`; the same for the same seed."""

    @abstractmethod
    def log_prob(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        """Return the normalised log-density of the noised distribution, `(..., d) -> (...)`."""

    @abstractmethod
    def score(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        """Return the gradient of `log_prob` in x, like x."""
