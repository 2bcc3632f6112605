"""Rejection sampling of mixtures that share their components."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.devices import on_cpu
from polyscore.distributions import Gaussian, Mixture
from polyscore.distributions.components import Components
from polyscore.errors import ArgumentError, require
from polyscore.rng import derive, generator
from polyscore.targets.draws import check_count, effective, log_mean, log_ratios, parts, warn_of_low
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
    def acceptance(self) -> float:
        """Share of proposals that would be accepted, by a pilot of 20,000.

        The ratio over its bound lies in [0, 1], so that a share of p is known to sqrt(p / 20,000), and N draws have an
        effective sample size of at least N p: what is accepted often enough cannot miss a part of the target.
        """
        log_weights = log_ratios(self.q, self.proposal, 20_000, derive(0, "pilot"))
        return math.exp(min(0.0, log_mean(log_weights) - self.log_bound))

    @cached_property
    @on_cpu
    def log_evidence(self) -> float:
        """log of the mean of q / proposal over a large, fixed draw."""
        log_weights = log_ratios(self.q, self.proposal, 1_000_000, seed=0)
        self.ess = effective(log_weights)
        warn_of_low(self.ess, f"the evidence of {self.q!r} by rejection", 'Use method="importance".')
        return log_mean(log_weights)

    def drawn(self, n: int, seed: int) -> Tensor:
        check_count(n, 2 * self.proposal.dim)
        kept: list[Tensor] = []
        for batch in itertools.count():
            kept += self._accepted(max(4 * n, 10_000), seed, batch)
            found = sum(map(len, kept))
            if found >= n:
                break
            require(batch < 200, "rejection", "accept now and then",
                    f"{found} of {(batch + 1) * max(4 * n, 10_000)} draws", 'Use method="importance".')  # fmt: skip
        return torch.cat(kept)[:n]

    def _accepted(self, count: int, seed: int, batch: int) -> Iterator[Tensor]:
        """Yield what is accepted of one batch of proposals, part by part."""
        uniforms = generator(seed, "accept", batch)
        for x in parts(self.proposal, count, sub_seed(seed, batch), self.q):
            log_ratio = self.q.log_density(x) - self.proposal.log_prob(x) - self.log_bound
            if not bool((log_ratio < 1e-9).all()):
                raise ArgumentError(
                    f"rejection must have a bound that holds; a draw of {self.q!r} exceeds it by a factor of "
                    f'{math.exp(log_ratio.max().item()):.3g}. Use method="importance", and please report this.'
                )
            u = torch.rand(len(x), generator=uniforms, dtype=torch.float64)
            yield x[u.log() < log_ratio]


def rejection_plan(q: Composition) -> tuple[Gaussian | Mixture, float] | None:
    """Return (proposal, log of the bound on q / proposal), or None where no bound is known."""
    best: tuple[Any, float] | None = None
    mixtures = dict(zip(q.conditions, q.require_mixtures("rejection"), strict=True))
    for name, exponent in q.exponents.items():
        if exponent < 1:
            continue
        bound = _log_bound(mixtures, {**q.exponents, name: exponent - 1})
        if bound is not None and (best is None or bound < best[1]):
            best = (q.distribution(name), bound)
    return best


def _log_bound(mixtures: dict[str, Components], exponents: dict[str, float]) -> float | None:
    """Bound log prod_a p_a^{w_a} by pairing every denominator with numerators over the same components."""
    rest = {name: w for name, w in exponents.items() if w > 0}
    bound = 0.0
    for below, debt in ((name, -w) for name, w in exponents.items() if w < 0):
        for above in list(rest):
            ratio = _log_ratio_bound(mixtures[above], mixtures[below])
            paid = min(debt, rest[above])
            if ratio is None or paid <= 0:
                continue
            bound, debt, rest[above] = bound + paid * ratio, debt - paid, rest[above] - paid
        if debt > 1e-12:
            return None
    return bound + sum(w * _log_peak(mixtures[name]) for name, w in rest.items())


def _log_ratio_bound(top: Components, bottom: Components) -> float | None:
    """Return log max_k top_k / bottom_k when the components above are all below too, else None."""
    worst = -math.inf
    for k in range(top.count):
        if top.weights[k] == 0:
            continue
        same = [j for j in range(bottom.count) if _same_component(top, k, bottom, j)]
        if not same or not bottom.weights[same].sum() > 0:
            return None
        # A component written twice weighs the sum of both, above and below.
        twins = [j for j in range(top.count) if _same_component(top, k, top, j)]
        worst = max(worst, math.log(top.weights[twins].sum() / bottom.weights[same].sum()))
    return worst


def _same_component(a: Components, k: int, b: Components, j: int) -> bool:
    return torch.equal(a.means[k], b.means[j]) and torch.allclose(
        a.covariances[k], b.covariances[j], rtol=1e-12, atol=0
    )


def _log_peak(components: Components) -> float:
    """Return log of the sum of the components' peak densities, an upper bound of the density."""
    log_peaks = -0.5 * (components.variances.log() + math.log(2 * math.pi)).sum(-1)
    return torch.logsumexp(components.weights.log() + log_peaks, 0).item()
