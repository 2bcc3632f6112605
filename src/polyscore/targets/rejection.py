"""Rejection sampling of mixtures that share their components."""

from __future__ import annotations

import itertools
import math
from functools import cached_property

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions import Distribution
from polyscore.distributions.components import Components, components_of, weights_of
from polyscore.errors import ArgumentError, require
from polyscore.rng import generator
from polyscore.targets.target import Target, sub_seed


class Rejection(Target):
    """Mixtures over the same components: draw from one factor, accept by the rest over its bound.

    For p and b over shared components sup_x p(x) / b(x) = max_k p_k / b_k, so a bound of
    prod (p_a / p_b)^w is known exactly; factors left without a denominator are bounded by their peak densities.
    """

    method = "rejection"

    def __init__(self, q: Composition) -> None:
        super().__init__(q)
        plan = rejection_plan(q)
        if plan is None:
            raise ArgumentError(
                f"rejection must find a factor of exponent 1 or more and mixtures with shared components; got {q!r}. "
                'Use method="importance".'
            )
        self.proposal, self.log_bound = plan

    @cached_property
    def log_evidence(self) -> float:
        """log of the mean of q / proposal over a large, fixed draw."""
        x = self.proposal.sample(1_000_000, seed=0, dtype=torch.float64)
        ratio = self.q.log_density(x) - self.proposal.log_prob(x)
        return (torch.logsumexp(ratio, 0) - math.log(len(x))).item()

    def sample(self, n: int, seed: int = 0) -> Tensor:
        require(n >= 1, "n", "be at least 1", n)
        kept: list[Tensor] = []
        for batch in itertools.count():
            x = self.proposal.sample(max(4 * n, 10_000), seed=sub_seed(seed, batch), dtype=torch.float64)
            log_ratio = self.q.log_density(x) - self.proposal.log_prob(x) - self.log_bound
            if not bool((log_ratio < 1e-9).all()):
                raise ArgumentError(
                    f"rejection must have a bound that holds; a draw of {self.q!r} exceeds it by a factor of "
                    f'{math.exp(log_ratio.max().item()):.3g}. Use method="importance", and please report this.'
                )
            u = torch.rand(len(x), generator=generator(seed, "accept", batch), dtype=torch.float64)
            kept.append(x[u.log() < log_ratio])
            if sum(map(len, kept)) >= n:
                break
            if batch >= 200:
                raise ArgumentError(
                    f"rejection must accept now and then; got {sum(map(len, kept))} of {(batch + 1) * len(x)} draws. "
                    'Use method="importance".'
                )
        return torch.cat(kept)[:n].float()


def rejection_plan(q: Composition) -> tuple[Distribution, float] | None:
    """Return (proposal, log of the bound on q / proposal), or None where no bound is known."""
    best: tuple[Distribution, float] | None = None
    for name, exponent in q.exponents.items():
        if exponent < 1:
            continue
        bound = _log_bound(q, {**q.exponents, name: exponent - 1})
        if bound is not None and (best is None or bound < best[1]):
            best = (q.distribution(name), bound)
    return best


def _log_bound(q: Composition, exponents: dict[str, float]) -> float | None:
    """Bound log prod_a p_a^{w_a} by pairing every denominator with numerators over the same components."""
    rest = {name: w for name, w in exponents.items() if w > 0}
    bound = 0.0
    for below, debt in ((name, -w) for name, w in exponents.items() if w < 0):
        for above in list(rest):
            ratio = _log_ratio_bound(q.distribution(above), q.distribution(below))
            paid = min(debt, rest[above])
            if ratio is None or paid <= 0:
                continue
            bound, debt, rest[above] = bound + paid * ratio, debt - paid, rest[above] - paid
        if debt > 1e-12:
            return None
    return bound + sum(w * _log_peak(q.distribution(name)) for name, w in rest.items())


def _log_ratio_bound(above: Distribution, below: Distribution) -> float | None:
    """Return log max_k above_k / below_k when above's components are all below's too, else None."""
    top, top_weights, bottom, bottom_weights = (
        components_of(above),
        weights_of(above),
        components_of(below),
        weights_of(below),
    )
    worst = -math.inf
    for k in range(top.count):
        if top_weights[k] == 0:
            continue
        same = [j for j in range(bottom.count) if _same_component(top, k, bottom, j)]
        if not same or not bottom_weights[same].sum() > 0:
            return None
        # A component written twice weighs the sum of both, above and below.
        twins = [j for j in range(top.count) if _same_component(top, k, top, j)]
        worst = max(worst, math.log(top_weights[twins].sum() / bottom_weights[same].sum()))
    return worst


def _same_component(a: Components, k: int, b: Components, j: int) -> bool:
    return torch.equal(a.means[k], b.means[j]) and torch.allclose(
        a.covariances[k], b.covariances[j], rtol=1e-12, atol=0
    )


def _log_peak(distribution: Distribution) -> float:
    """Return log of the sum of the components' peak densities, an upper bound of the density."""
    components, weights = components_of(distribution), weights_of(distribution)
    log_peaks = -0.5 * (components.variances.log() + math.log(2 * math.pi)).sum(-1)
    return torch.logsumexp(weights.log() + log_peaks, 0).item()
