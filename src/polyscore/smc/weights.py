"""What log-weights say: `log mean exp`, effective sample size, unique ancestors. All per swarm, never averaged."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """Weights of each swarm, scaled so that the largest is 1, with what follows from them."""

    scaled: Tensor
    ess: Tensor
    log_mean: Tensor


def weigh(log_weights: Tensor) -> Weights:
    """Return the scaled weights `(N, K)`, their ESS `(N,)` and the log of their mean `(N,)` in one pass of `exp`."""
    top = log_weights.amax(-1, keepdim=True)
    scaled = (log_weights - top).exp_()
    total = scaled.sum(-1)
    ess = total.square() / torch.linalg.vecdot(scaled, scaled)
    return Weights(scaled, ess, top.squeeze(-1) + (total / log_weights.shape[-1]).log())


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """Return log of the mean weight of each swarm, `(N, K) -> (N,)`."""
    return weigh(log_weights).log_mean


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """Return `(sum w)^2 / sum w^2`, `(N, K) -> (N,)`: K for equal weights, 1 when one particle holds all."""
    return weigh(log_weights).ess


def unique_ancestors(ancestors: Tensor) -> Tensor:
    """Return how many different starting particles survive in each swarm, `(N, K) -> (N,)`."""
    ordered = ancestors.sort(-1).values
    return 1 + (ordered[..., 1:] != ordered[..., :-1]).sum(-1)
