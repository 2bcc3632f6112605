"""What log-weights say: `log mean exp`, effective sample size, unique ancestors. All per swarm, never averaged."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """Return log of the mean weight of each swarm, `(N, K) -> (N,)`."""
    return torch.logsumexp(log_weights, -1) - math.log(log_weights.shape[-1])


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """Return `(sum w)^2 / sum w^2`, `(N, K) -> (N,)`: K for equal weights, 1 when one particle holds all."""
    weights = (log_weights - log_weights.amax(-1, keepdim=True)).exp()
    return weights.sum(-1).square() / weights.square().sum(-1)


def unique_ancestors(ancestors: Tensor) -> Tensor:
    """Return how many different starting particles survive in each swarm, `(N, K) -> (N,)`."""
    ordered = ancestors.sort(-1).values
    return 1 + (ordered[..., 1:] != ordered[..., :-1]).sum(-1)
