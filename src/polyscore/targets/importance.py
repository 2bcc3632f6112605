"""Importance sampling of any mixtures, from proposals built of their components."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import cached_property

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions import Mixture
from polyscore.distributions.components import components_of, weights_of
from polyscore.errors import ArgumentError, DegeneracyWarning, require
from polyscore.rng import generator
from polyscore.smc import Systematic
from polyscore.targets.target import Target, sub_seed, symmetric

_LOW_ESS = 500
_MOST_COMBINATIONS = 20_000


class Importance(Target):
    """Weighted draws from a mixture proposal, resampled systematically.

    Half of the proposal is the product of the numerators; the other has one component for each choice of component
    per factor, with precision sum_a w_a P_a where that is positive definite. These are the composition's own tails, so
    the weights' variance is finite where the numerators alone (the paper's proposal) would leave it infinite.
    """

    method = "importance"
    oversampling = 100

    def __init__(self, q: Composition) -> None:
        super().__init__(q)
        self.proposal = self._proposal(q)

    def _proposal(self, q: Composition) -> Mixture:
        return tail_proposal(q)

    def _draw(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        x = self.proposal.sample(count, seed=sub_seed(seed, 0), dtype=torch.float64)
        return x, self.q.log_density(x) - self.proposal.log_prob(x)

    @cached_property
    def log_evidence(self) -> float:
        """log of the mean weight over a large, fixed draw."""
        _, log_weights = self._draw(500_000, seed=0)
        self._report(log_weights)
        return (torch.logsumexp(log_weights, 0) - math.log(len(log_weights))).item()

    def sample(self, n: int, seed: int = 0) -> Tensor:
        require(n >= 1, "n", "be at least 1", n)
        x, log_weights = self._draw(max(self.oversampling * n, 100_000), seed)
        self._report(log_weights)
        chosen = _systematic(log_weights, n, torch.rand(1, generator=generator(seed, "offset"), dtype=torch.float64))
        # Systematic draws come ordered by index; the order carries no information but must carry no structure either.
        order = torch.randperm(n, generator=generator(seed, "order"))
        return x[chosen][order].float()

    def _report(self, log_weights: Tensor) -> None:
        weights = torch.softmax(log_weights, 0)
        self.ess = 1 / weights.square().sum().item()
        if self.ess < _LOW_ESS:
            warnings.warn(
                f"the importance reference of {self.q!r} rests on an effective sample size of {self.ess:.0f} "
                f"(below {_LOW_ESS}). Draw again with another seed, or use a grid in one or two dimensions.",
                DegeneracyWarning,
                stacklevel=3,
            )


class ProductImportance(Importance):
    """The paper's reference: propose from the product of the numerators, 1000 draws a sample, weights 1 / denominators.

    Along ridges its tails are lighter than the target's, so the weights have infinite variance and, rarely, collapse.
    """

    method = "product importance"
    oversampling = 1000

    def _proposal(self, q: Composition) -> Mixture:
        return product_proposal(q)


def _systematic(log_weights: Tensor, n: int, u: Tensor) -> Tensor:
    """Return n indices by systematic resampling of one large weighted set."""
    cumulative = torch.softmax(log_weights, 0).cumsum(0)
    points = Systematic().points(n, u) * cumulative[-1]
    return torch.searchsorted(cumulative, points, right=True).clamp_max(len(cumulative) - 1)


def tail_proposal(q: Composition) -> Mixture:
    """Return a mixture with the tails of `q`, half of it the numerators' product, where the mass usually is."""
    means, covs, _ = _choices(q, q.exponents)
    log_mass = q.log_density(means) + 0.5 * torch.logdet(covs)
    # A floor keeps every direction of the tails covered, however little mass sits at the component's own mean.
    weights = torch.softmax(log_mass, 0).clamp_min(1e-4 / len(log_mass))
    product = product_proposal(q)
    return Mixture(
        torch.cat([means, product.means]),
        list(torch.cat([covs, product.components.covariances])),
        torch.cat([weights / weights.sum(), product.weights]),
    )


def product_proposal(q: Composition) -> Mixture:
    """Return the product of the numerators, itself a mixture: exact for whole exponents of 1."""
    means, covs, log_mass = _choices(q, {name: w for name, w in q.exponents.items() if w > 0})
    return Mixture(means, list(covs), torch.softmax(log_mass, 0))


def _choices(q: Composition, exponents: dict[str, float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, covariances and log-masses of prod_a (weight N)_{a,k_a}^{w_a} over all proper choices k."""
    parts = [
        (w, components_of(q.distribution(name)), weights_of(q.distribution(name))) for name, w in exponents.items()
    ]
    count = math.prod(components.count for _, components, _ in parts)
    require(count <= _MOST_COMBINATIONS, "the product of mixtures", f"have at most {_MOST_COMBINATIONS} combinations",
            count, "Merge components, or draw a reference by Feynman-Kac correction with many particles.")  # fmt: skip
    means, covs, log_masses = [], [], []
    for choice in itertools.product(*(range(components.count) for _, components, _ in parts)):
        precisions = [w * components.precisions[k] for (w, components, _), k in zip(parts, choice, strict=True)]
        precision = torch.stack(precisions).sum(0)
        if torch.linalg.eigvalsh(precision)[0] <= 1e-9 * precision.abs().max():
            continue
        pulls = [p @ components.means[k] for p, (_, components, _), k in zip(precisions, parts, choice, strict=True)]
        mean, cov = torch.linalg.solve(precision, torch.stack(pulls).sum(0)), symmetric(torch.linalg.inv(precision))
        at_mean = [
            w * (components.log_prob(mean, 1.0, 0.0)[k] + weights[k].log())
            for (w, components, weights), k in zip(parts, choice, strict=True)
        ]
        means.append(mean)
        covs.append(cov)
        log_masses.append(torch.stack(at_mean).sum() + 0.5 * torch.logdet(2 * math.pi * cov))
    if not means:
        raise ArgumentError(f"a proposal must exist for {q!r}; no choice of components gives a proper Gaussian.")
    return torch.stack(means), torch.stack(covs), torch.stack(log_masses)
