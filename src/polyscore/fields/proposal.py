"""A precision-weighted move, and the log-weight rate that keeps particles on the path prod_a P_{a,t}^{w_a}.

At high noise that path is N(0, sigma^2 I / W), so its neighbour is the composition noised by sigma^2 / W, of which
`PrecisionField` with m = W has the score s: exact for Gaussians at every W. Particles are carried along that neighbour
and kept by Langevin noise on the path itself,

    b = -u + (eta^2 / 2 W) (s + c^2 S),    noise c eta / sqrt(W),    c the churn,

S = sum_a w_a s_a. The Langevin part leaves the path as it is and costs nothing; by the general rule
g = sum_a w_a d log q_a / dtau + div b + <b, S> - (nu^2 / 2)(div S + |S|^2) the rest costs, whatever c is,

    g = (W - 1) div u + (eta^2 / 2) [(div s + <s, S>) / W - div S - sum_a w_a |s_a|^2].

At c = 0 the log-weights of Gaussians are log path - log neighbour along every trajectory, which are equal at the data.
Noise along s instead, by which denoising alone is exact, would have to be paid for: it cost more than it saved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.fields.precision import Means, PrecisionField
from polyscore.rng import generator

# How far apart s is asked for its divergence, in deviations of the noise: by exact Jacobians in float64, and where
# these are differences themselves.
_APART, _APART_OF_DIFFERENCES = 1e-3, 0.05
_NOISE = 0.25  # deviation of log-weights that single probes would give, beyond which that is told of; rounds leave less


class ProposalField(PrecisionField):
    """The score (s + c^2 S) / (1 + c^2) that a move of noise sigma / sqrt(W) takes, and g in the place of the excess.

    Args:
        churn: c.
        probes: directions v of signs by which div s / W - div S is estimated as the mean of
            <v, (grad s / W - grad S) v>; None takes every axis, which is exact. All particles share them, and a run is
            independent of its chunks. From time to time they go round the rows of a Hadamard matrix, its columns
            multiplied by random signs: a whole round is exact again.
        seed: of those signs.
    """

    def __init__(
        self, q: Composition, times: Tensor, like: Tensor, size: float, floor: float,
        churn: float = 1.0, probes: int | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(q, times, like, size, floor, counts=q.total)
        drift, power = q.schedule.drift(times), q.schedule.diffusion(times) ** 2
        self.churn2, self.probes = churn**2, probes
        self.spread = ((q.total - 1) * q.event[0] * drift).tolist()
        self.power = power.tolist()
        self.lengths = [*(-times.diff()).tolist(), 0.0]
        self.signs = round_of_signs(q.event[0], seed).to(like.device)
        self.variances = Means(len(times))  # of the probes' means

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        assert isinstance(i, int)
        scores, precisions = self.scores(x, i).double(), self.precisions(x, i)
        near, projected = self.weighted(scores, precisions, i)
        added = torch.einsum("a,a...d->...d", self.exponents.to(x.device), scores)
        move = ((near + self.churn2 * added) / (1 + self.churn2)).to(x)
        if not want_excess:
            return move, None
        self.projected.add(i, projected)
        squares = torch.einsum("a,a...d->...", self.exponents.to(x.device), scores.square())
        inner = self.divergence(x, precisions, i) + (near * added).sum(-1) / self.counts - squares
        return move, (self.spread[i] + 0.5 * self.power[i] * inner).to(x)

    def divergence(self, x: Tensor, precisions: Tensor, i: int) -> Tensor:
        """Return div s / W - div S over the batch shape of x, float64."""
        # grad s_a = (R_a^-1 - 1) / sigma^2; where R_a was held, the Jacobian itself is lost, and was of rounding alone
        inverse = torch.linalg.inv_ex(precisions).inverse
        spread = torch.einsum("a,a...de->...de", self.exponents.to(x.device), inverse)
        terms = torch.stack([self._along(x, v, spread, i) for v in self._directions(x, i)])
        if self.probes is None:
            return terms.sum(0)
        self.variances.add(i, terms.var(0) / len(terms))
        return terms.mean(0)

    def _directions(self, x: Tensor, i: int) -> Tensor:
        """Axes, or the probes of time i."""
        if self.probes is None:
            return torch.eye(x.shape[-1], dtype=torch.float64, device=x.device)
        return self.signs[[(i * self.probes + k) % len(self.signs) for k in range(self.probes)]]

    def _along(self, x: Tensor, v: Tensor, spread: Tensor, i: int) -> Tensor:
        """<v, (grad s / W - grad S) v>: one by a central difference, the other by the Jacobians that are there.

        Args:
            spread: sum_a w_a R_a^-1 = W + sigma^2 grad S.
        """
        step = (_APART if self.exact else _APART_OF_DIFFERENCES) * self.sigma[i] / v.norm()
        ahead, behind = (self._near(x.double() + sign * step * v, i).to(v) for sign in (1, -1))
        bend = ((ahead - behind) * v).sum(-1) / (2 * step * self.counts)
        own = torch.einsum("...de,d,e->...", spread, v, v)
        return bend - (own - self.q.total * v.square().sum()) / self.sigma[i] ** 2

    def _near(self, x: Tensor, i: int) -> Tensor:
        """The score s of the neighbour."""
        x = x if self.exact else x.to(self.times)
        return self.weighted(self.scores(x, i).double(), self.precisions(x, i), i)[0]

    @property
    def noise(self) -> float:
        """Deviation of log-weights that the probes' disagreement can make."""
        steps = zip(self.power, self.lengths, self.variances, strict=True)
        return sum((0.5 * power * length) ** 2 * variance for power, length, variance in steps) ** 0.5

    def findings(self) -> list[str]:
        """Return what else speaks against the run: that probes leave much of their own."""
        found = super().findings()
        if self.noise > _NOISE:
            found.append(
                f"traces should be nearly exact; estimated by {self.probes} probes they give log-weights a deviation "
                f"of up to {self.noise:.2g} of their own, and so much to log Z. Use more probes or steps."
            )
        return found


def round_of_signs(dim: int, seed: int) -> Tensor:
    """Return n orthogonal rows of signs, n the next power of two, cut to their first `dim` columns: V^T V = n I."""
    rows = torch.ones(1, 1, dtype=torch.float64)
    while len(rows) < dim:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)])
    flips = torch.rand(dim, generator=generator(seed, "probes"), dtype=torch.float64) < 0.5
    order = torch.randperm(len(rows), generator=generator(seed, "order of probes"))
    return rows[order, :dim] * torch.where(flips, -1.0, 1.0).double()
