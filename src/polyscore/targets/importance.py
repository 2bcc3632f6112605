"""Importance sampling of any mixtures, from proposals built of their components."""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.devices import on_cpu
from polyscore.distributions import Mixture
from polyscore.distributions.components import Components
from polyscore.errors import ArgumentError, require
from polyscore.limits import require_memory
from polyscore.rng import generator
from polyscore.smc import Systematic, invert
from polyscore.targets.draws import check_count, effective, log_mean, log_ratios, parts, warn_of_low
from polyscore.targets.target import Target, sub_seed, symmetric

_MOST_COMBINATIONS = 20_000


class Importance(Target):
    """Weighted draws from a mixture proposal, resampled systematically.

    Half of the proposal is the product of the numerators; the other has one component for each choice of component
    per factor, with precision sum_a w_a P_a where that is positive definite. These are the composition's own tails, so
    the weights' variance is finite where the numerators alone would leave it infinite.
    """

    method = "importance"
    oversampling = 100

    def __init__(self, q: Composition) -> None:
        super().__init__(q)
        self.proposal = self._proposal(q)

    def _proposal(self, q: Composition) -> Mixture:
        return tail_proposal(q)

    @cached_property
    @on_cpu
    def log_evidence(self) -> float:
        """log of the mean weight over a large, fixed draw."""
        log_weights = log_ratios(self.q, self.proposal, 500_000, sub_seed(0, 0))
        self._report(log_weights)
        return log_mean(log_weights)

    def drawn(self, n: int, seed: int) -> Tensor:
        check_count(n, 3 * self.oversampling + self.proposal.dim)
        count, inner = max(self.oversampling * n, 100_000), sub_seed(seed, 0)
        log_weights = log_ratios(self.q, self.proposal, count, inner)
        self._report(log_weights)
        u = torch.rand(1, generator=generator(seed, "offset"), dtype=torch.float64)
        chosen = invert(torch.softmax(log_weights, 0).cumsum(0), Systematic().points(n, u))
        # Systematic draws come ordered by index; the order carries no information but must carry no structure either.
        order = torch.randperm(n, generator=generator(seed, "order"))
        return self._take(chosen, count, inner)[order]

    def _take(self, chosen: Tensor, count: int, seed: int) -> Tensor:
        """Return the chosen of `count` proposals, in ascending order, drawing them once more: only weights are kept."""
        taken, first = [], 0
        for x in parts(self.proposal, count, seed, self.q):
            begin, end = torch.searchsorted(chosen, torch.tensor([first, first + len(x)])).tolist()
            taken.append(x[chosen[begin:end] - first])
            first += len(x)
        return torch.cat(taken)

    def _report(self, log_weights: Tensor) -> None:
        self.ess = effective(log_weights)
        warn_of_low(self.ess, f"the {self.method} reference of {self.q!r}",
                    "Draw again with another seed, or use a grid in one or two dimensions.")  # fmt: skip


class ProductImportance(Importance):
    """Propose from the product of the numerators, 1000 draws a sample, with weights 1 / denominators.

    Along ridges its tails are lighter than the target's, so the weights have infinite variance and, rarely, collapse.
    """

    method = "product importance"
    oversampling = 1000

    def _proposal(self, q: Composition) -> Mixture:
        return product_proposal(q)


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


class _Product(NamedTuple):
    """The Gaussian prod_a (weight N)_{a,k_a}^{w_a} of one choice k of components, and the log of its mass."""

    mean: Tensor
    cov: Tensor
    log_mass: Tensor


def _choices(q: Composition, exponents: dict[str, float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, covariances and log-masses of the products over all choices of components that are proper."""
    mixtures = dict(zip(q.conditions, q.require_mixtures("importance sampling"), strict=True))
    factors = [(w, mixtures[name]) for name, w in exponents.items()]
    count = math.prod(components.count for _, components in factors)
    require(count <= _MOST_COMBINATIONS, "the product of mixtures", f"have at most {_MOST_COMBINATIONS} combinations",
            count, "Merge components (fit with options={'dense': 0}), or take FeynmanKac with many.")  # fmt: skip
    dim = q.event[0]
    require_memory(24 * count * dim**2, f"{count} covariances in {dim} dimensions", "Merge components.")
    choices = itertools.product(*(range(components.count) for _, components in factors))
    products = [found for choice in choices if (found := _product(factors, choice)) is not None]
    if not products:
        raise ArgumentError(
            f"a proposal must have a proper Gaussian among its choices of components; got {q!r}, which has none. "
            "Lower the negative exponents."
        )
    means, covs, log_masses = (torch.stack(column) for column in zip(*products, strict=True))
    return means, covs, log_masses


def _product(factors: list[tuple[float, Components]], choice: tuple[int, ...]) -> _Product | None:
    """Return the product of one component of each factor, or None where it is improper."""
    chosen = [(w, components, k) for (w, components), k in zip(factors, choice, strict=True)]
    precisions = [w * components.precisions[k] for w, components, k in chosen]
    precision = torch.stack(precisions).sum(0)
    if torch.linalg.eigvalsh(precision)[0] <= 1e-9 * precision.abs().max():
        return None
    pulls = [p @ components.means[k] for p, (_, components, k) in zip(precisions, chosen, strict=True)]
    mean, cov = torch.linalg.solve(precision, torch.stack(pulls).sum(0)), symmetric(torch.linalg.inv(precision))
    at_mean = [
        w * (components.log_prob(mean, 1.0, 0.0)[k] + components.weights[k].log()) for w, components, k in chosen
    ]
    return _Product(mean, cov, torch.stack(at_mean).sum() + 0.5 * torch.logdet(2 * math.pi * cov))
