"""What a distribution can do, by what it knows: a noised score is all that it needs, a density is more.

| it has | class | serves |
|---|---|---|
| `score(x, alpha, sigma)` | `Distribution` | the algebra, every sampler, evidence |
| and `log_prob(x, alpha, sigma)` | `Density` | also `exact`, in one and two dimensions |
| and Gaussian `components` | `Gaussian`, `Mixture` | also closed forms, tails, the fast fields |

Noising by (alpha, sigma) turns x into alpha x + sigma z; both may be numbers or tensors that broadcast against the
batch shape of x, so one call serves a batch of times: `torch.as_tensor(alpha)[..., None]` stands beside coordinates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from polyscore.errors import ArgumentError

Scale = Tensor | float


class Distribution(ABC):
    """A distribution on R^d whose noised score is known; `dim` is d.

    Attributes:
        earliest: the least time at which its score can be asked; 0 where it has one without noise.
    """

    dim: int
    earliest: float = 0.0

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one point, `(d,)`; a subclass may have another."""
        return (self.dim,)

    @abstractmethod
    def score(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        """Return the gradient in x of the log-density of alpha X + sigma Z, like x.

        Samplers ask in float32 unless told otherwise, from alpha near 0 (VP: 0.007; 0 itself where a schedule ends in
        pure noise) to alpha near 1 with a small sigma: write it so that nothing cancels there, and compare with
        dtype=torch.float64 once.
        """

    def sample(self, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return `n` draws, `(n, d)`; the same for the same seed. Optional."""
        raise ArgumentError(
            f"{type(self).__name__} must have sample(n, seed, dtype) to be drawn from; got none. Write it, or draw by "
            "a sampler: ps.Denoise().sample(family[name], n)."
        )

    @property
    def has_sample(self) -> bool:
        """Whether it offers `sample`."""
        return type(self).sample is not Distribution.sample

    def moments(self) -> tuple[Tensor, Tensor] | None:
        """Return mean `(d,)` and covariance, `(d, d)` or its diagonal `(d,)`; None where they are not known.

        Samplers take steps and starts from them, grids their first look; without them data about 1 wide are assumed.
        """
        return None


class Density(Distribution):
    """A distribution whose noised log-density is known too."""

    @abstractmethod
    def log_prob(self, x: Tensor, alpha: Scale = 1.0, sigma: Scale = 0.0) -> Tensor:
        """Return the normalised log-density of the noised distribution, `(..., d) -> (...)`; -inf where it is 0."""
