"""The composition of Gaussians, a Gaussian."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions import Gaussian
from polyscore.targets.draws import check_count
from polyscore.targets.target import Target, symmetric


class ClosedForm(Target):
    """Gaussians: precision sum_a w_a P_a, mean by completing the square."""

    method = "closed form"

    def __init__(self, q: Composition) -> None:
        super().__init__(q)
        parts = q.require_mixtures("the closed form")
        weighted = [w * part.precisions[0] for w, part in zip(q.exponents.values(), parts, strict=True)]
        precision = torch.stack(weighted).sum(0)
        pull = torch.stack([matrix @ part.means[0] for matrix, part in zip(weighted, parts, strict=True)]).sum(0)
        self.gaussian = Gaussian(torch.linalg.solve(precision, pull), symmetric(torch.linalg.inv(precision)))

    @cached_property
    def log_evidence(self) -> float:
        """log Z = q(x) / N(x) at any x; taken at the mean."""
        mean = self.gaussian.mean[None]
        return (self.q.log_density(mean) - self.gaussian.log_prob(mean)).item()

    def drawn(self, n: int, seed: int) -> Tensor:
        check_count(n, 2 * self.gaussian.dim)
        return self.gaussian.sample(n, seed, torch.float64)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.gaussian.log_prob(x)
