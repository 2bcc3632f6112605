"""The plain algorithm: vectorised torch, float32, one tensor operation at a time. Every ratio here is taken against it.

Written from the paper's description: Euler-Maruyama on 500 equal steps, the residual at the new point, its rate clipped
at 15, systematic resampling of every swarm at every step, one output slot drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Scores = Callable[[Tensor, float], list[Tensor]]


def beta(t: float) -> float:
    return 0.1 + 19.9 * t


def alpha(t: float) -> float:
    return math.exp(-0.5 * (0.1 * t + 9.95 * t * t))


def gaussian_scores(covs: list[Tensor]) -> Scores:
    """Scores of centred Gaussians: a matrix inverse and a product each, at every step."""

    def scores(x: Tensor, t: float) -> list[Tensor]:
        a2 = alpha(t) ** 2
        eye = torch.eye(x.shape[-1], device=x.device)
        return [-(x @ torch.linalg.inv(a2 * cov.to(x.device) + (1 - a2) * eye)) for cov in covs]

    return scores


def mixture_scores(means: list[Tensor], variance: float) -> Scores:
    """Scores of uniform isotropic mixtures by their responsibilities."""

    def score(x: Tensor, centres: Tensor, t: float) -> Tensor:
        a = alpha(t)
        spread = a * a * variance + 1 - a * a
        offsets = a * centres.to(x.device) - x.unsqueeze(-2)
        shares = torch.softmax(-0.5 * (offsets * offsets).sum(-1) / spread, -1)
        return (shares.unsqueeze(-1) * offsets).sum(-2) / spread

    return lambda x, t: [score(x, centres, t) for centres in means]


def systematic(log_weights: Tensor) -> Tensor:
    swarms, particles = log_weights.shape
    cumulative = torch.softmax(log_weights, -1).cumsum(-1)
    u = torch.rand(swarms, 1, device=log_weights.device)
    points = (torch.arange(particles, device=log_weights.device) + u) / particles
    return torch.searchsorted(cumulative, points).clamp(max=particles - 1)


def sample(
    scores: Scores, exponents: list[float], swarms: int, particles: int, dim: int = 2, steps: int = 500,
    clip: float = 15.0, device: str = "cpu",
) -> Tensor:  # fmt: skip
    """Feynman-Kac correction as the paper runs it; returns one particle per swarm."""
    dt = 1 / steps
    x = torch.randn(swarms, particles, dim, device=device)
    current = scores(x, 1 - 1e-5)
    for i in range(steps):
        t = min(1 - i * dt, 1 - 1e-5)
        s = max(1 - (i + 1) * dt, 1e-5)
        composed = sum(w * score for w, score in zip(exponents, current))
        x = x + (0.5 * beta(t) * x + beta(t) * composed) * dt + math.sqrt(beta(t) * dt) * torch.randn_like(x)
        current = scores(x, s)
        composed = sum(w * score for w, score in zip(exponents, current))
        squares = sum(w * (score * score).sum(-1) for w, score in zip(exponents, current))
        rate = 0.5 * beta(s) * ((composed * composed).sum(-1) - squares)
        log_weights = rate.clamp(-clip, clip) * dt
        if particles > 1:
            index = systematic(log_weights).unsqueeze(-1).expand_as(x)
            x = torch.gather(x, 1, index)
            current = [torch.gather(score, 1, index) for score in current]
    slot = torch.randint(particles, (swarms, 1, 1), device=device).expand(-1, 1, dim)
    return torch.gather(x, 1, slot).squeeze(1)
