"""A composition prepared for a grid of times: `field(x, i) -> (S, spread)`.

A sampler visits the same few hundred times for every particle, so what depends on time alone is computed once, in
float64. Gaussians become one affine map and one quadratic form a step, whatever the number of conditions:

    S = c - P x,     |S|^2 - sum w |s_a|^2 = x'Q x - 2 l'x + k.

Mixtures that share a covariance need one matrix of component logits. Everything else asks its family. `spread` is
|S|^2 - sum_a w_a |s_a|^2, the part of the residual that needs the single scores.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from polyscore.algebra import Composition, combine, spread
from polyscore.distributions import Distribution, Gaussian, Mixture
from polyscore.distributions.components import Components


class Field(Protocol):
    """Composed score and spread at the i-th time of a grid."""

    def __call__(self, x: Tensor, i: int, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return S like x, and the spread over its batch shape (None unless wanted)."""


def prepare(q: Composition, times: Tensor, like: Tensor) -> Field:
    """Return the fastest field for `q` on `times` `(T,)` (float64), in the dtype and on the device of `like`."""
    parts = [q.family.members[name] for name in q.conditions]
    if all(isinstance(part, Gaussian) for part in parts):
        return GaussianField(q, times, like)
    if all(isinstance(part, Distribution) for part in parts) and _shared_covariance(q) is not None:
        return MixtureField(q, times, like)
    group = getattr(parts[0], "group", None)
    if group is not None and all(getattr(part, "group", None) is group for part in parts) and hasattr(group, "field"):
        return group.field(q, times, like)
    return ScoreField(q, times, like)


class ScoreField:
    """Any family: one call for all scores."""

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        self.q = q
        self.times = times.to(like)
        self.exponents = torch.tensor(list(q.exponents.values())).to(like)

    def __call__(self, x: Tensor, i: int, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        scores = self.q.family.scores(x, self.times[i], self.q.conditions)
        value = spread(scores, self.exponents, len(self.q.event)) if want_spread else None
        return combine(scores, self.exponents), value


class GaussianField:
    """All factors Gaussian: s_a = c_a - P_a x with P_a = (alpha^2 cov_a + sigma^2 I)^-1."""

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        schedule = q.schedule
        alpha, sigma = schedule.alpha(times), schedule.sigma(times)
        w = torch.tensor(list(q.exponents.values()), dtype=torch.float64)[:, None, None, None]
        parts = [q.distribution(name) for name in q.conditions]
        precision = torch.stack([_components(part).precision_at(alpha, sigma)[:, 0] for part in parts])  # (A, T, d, d)
        means = torch.stack([_components(part).means[0] for part in parts])  # (A, d)
        centre = precision @ (alpha[:, None] * means[:, None])[..., None]  # (A, T, d, 1)
        total_precision, total_centre = (w * precision).sum(0), (w * centre).sum(0)
        quadratic = total_precision @ total_precision - (w * precision @ precision).sum(0)
        linear = total_precision @ total_centre - (w * precision @ centre).sum(0)
        constant = total_centre.square().sum((-2, -1)) - (w * centre.square()).sum((0, -2, -1))
        self.minus_precision, self.centre = (-total_precision).to(like), total_centre[..., 0].to(like)
        self.quadratic, self.linear = quadratic.to(like), (-2 * linear[..., 0]).to(like)
        self.constant = constant.to(like)
        self.centred = bool(means.abs().max() > 0)

    def __call__(self, x: Tensor, i: int, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        score = _affine(x, self.minus_precision[i], self.centre[i] if self.centred else None)
        if not want_spread:
            return score, None
        value = (_affine(x, self.quadratic[i], self.linear[i] if self.centred else None) * x).sum(-1)
        return score, value + self.constant[i] if self.centred else value


def _affine(x: Tensor, matrix: Tensor, shift: Tensor | None) -> Tensor:
    """Return x @ matrix + shift for a symmetric matrix."""
    flat = x.reshape(-1, x.shape[-1])
    out = flat @ matrix if shift is None else torch.addmm(shift, flat, matrix)
    return out.view_as(x)


class MixtureField:
    """Mixtures whose components all have one covariance: s_a = P (alpha m_a(x) - x), m_a the mean of the means
    under the shares softmax_k(log w_k + alpha mu_k'P x - alpha^2 mu_k'P mu_k / 2)."""

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        schedule = q.schedule
        alpha, sigma = schedule.alpha(times), schedule.sigma(times)
        parts = [q.distribution(name) for name in q.conditions]
        self.precision = _components(parts[0]).precision_at(alpha, sigma)[:, 0].to(like)  # (T, d, d)
        self.alpha = alpha.tolist()
        self.exponents = list(q.exponents.values())
        self.total = q.total
        self.means, self.slopes, self.offsets = [], [], []
        precision = _components(parts[0]).precision_at(alpha, sigma)[:, 0]
        for part in parts:
            means, weights = _components(part).means, _weights(part)
            slope = alpha[:, None, None] * (precision @ means.T)  # (T, d, M)
            offset = weights.log() - 0.5 * alpha[:, None] * (means.T * slope).sum(1)
            self.means.append(means.to(like))
            self.slopes.append(slope.to(like))
            self.offsets.append(offset.to(like))

    def __call__(self, x: Tensor, i: int, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        flat = x.reshape(-1, x.shape[-1])
        centres = [
            torch.softmax(torch.addmm(offset[i], flat, slope[i]), -1) @ means
            for offset, slope, means in zip(self.offsets, self.slopes, self.means, strict=True)
        ]
        precision, alpha, total = self.precision[i], self.alpha[i], self.total
        pulled = sum(w * centre for w, centre in zip(self.exponents, centres, strict=True))
        score = torch.sub(pulled, flat, alpha=total / alpha) @ (alpha * precision)
        if not want_spread:
            return score.view_as(x), None
        reference = torch.sub(alpha * centres[-1], flat) @ precision
        differences = torch.stack([(centre - centres[-1]) @ (alpha * precision) for centre in centres[:-1]])
        scores = torch.cat([differences + reference, reference[None]])
        value = spread(scores, torch.tensor(self.exponents).to(x))
        return score.view_as(x), value.view(x.shape[:-1])


def _components(part: Distribution) -> Components:
    return part.components  # type: ignore[attr-defined]  # both closed forms carry them


def _weights(part: Distribution) -> Tensor:
    return part.weights if isinstance(part, Mixture) else torch.ones(1, dtype=torch.float64)


def _shared_covariance(q: Composition) -> Tensor | None:
    """Return the covariance that every component of every factor has, or None."""
    covariances = torch.cat([_components(q.distribution(name)).covariances for name in q.conditions])
    return covariances[0] if torch.allclose(covariances, covariances[:1], rtol=1e-12, atol=0) else None
