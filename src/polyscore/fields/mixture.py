"""The field of mixtures that share a covariance: one matrix of component logits a step."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.fields.field import Field, row


class MixtureField(Field):
    """Mixtures whose components all have one covariance.

    s_a = P (alpha m_a(x) - x), with m_a the mean of the means under the shares
    softmax_k(log weight_k + alpha mu_k'P x - alpha^2 mu_k'P mu_k / 2). Works on columns, (d, n): sums over a few
    components then run along memory.
    """

    closed_form = True
    graphable = True

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        schedule = q.schedule
        alpha, sigma = schedule.alpha(times), schedule.sigma(times)
        parts = q.require_mixtures("the field of mixtures")
        precision = parts[0].precision_at(alpha, sigma)[:, 0]  # (T, d, d)
        self.exponents, self.total = list(q.exponents.values()), q.total
        self.numbers_per_particle = 16 * q.event[0] + 4 * sum(part.count for part in parts)
        self.precision, self.scaled = precision.to(like), (alpha[:, None, None] * precision).to(like)
        self.means, self.slopes, self.offsets = [], [], []
        # Far from 0 logits would be differences of large numbers: then everything is written around a centre alpha m.
        every = torch.cat([part.means for part in parts])
        far = bool(every.square().max() > 1e3 * parts[0].variances.min())
        centre = every.mean(0) if far else torch.zeros_like(every[0])
        self.centre = (alpha[:, None] * centre)[..., None].to(like) if far else None
        for part in parts:
            means = part.means - centre
            slope = alpha[:, None, None] * (means @ precision)  # (T, M, d)
            offset = part.weights.log() - 0.5 * alpha[:, None] * (slope * means).sum(-1)
            self.means.append(means.T.to(like).contiguous())
            self.slopes.append(slope.to(like))
            self.offsets.append(offset[..., None].to(like))

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        columns = x.reshape(-1, x.shape[-1]).T
        columns = columns.contiguous() if self.centre is None else columns - row(self.centre, i)
        centres = [
            means @ torch.softmax(torch.addmm(row(offset, i), row(slope, i), columns), 0)
            for offset, slope, means in zip(self.offsets, self.slopes, self.means, strict=True)
        ]
        reference = row(self.scaled, i) @ centres[-1] - row(self.precision, i) @ columns
        differences = [row(self.scaled, i) @ (centre - centres[-1]) for centre in centres[:-1]]
        combined = torch.zeros_like(reference)
        for w, difference in zip(self.exponents, differences, strict=False):
            combined.add_(difference, alpha=w)
        score = torch.add(combined, reference, alpha=self.total).T.reshape(x.shape)
        if not want_excess:
            return score, None
        value = combined.square().sum(0)
        for w, difference in zip(self.exponents, differences, strict=False):
            value.sub_(difference.square().sum(0), alpha=w)
        if self.total != 1:
            both = self.total * reference + 2 * combined
            value.add_((reference * both).sum(0), alpha=self.total - 1)
        return score, value.view(x.shape[:-1])
