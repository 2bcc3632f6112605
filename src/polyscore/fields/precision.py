"""Scores added by the precision of what each says about the clean point, instead of by exponents.

With R_a = (I + sigma^2 grad s_a)^-1, the precision of x_0 given x_t under condition a (Tweedie) in units of
alpha^2 / sigma^2, the noised composition of Gaussians has, for every W, the score

    s = M^-1 sum_a w_a R_a s_a,        M = sum_a w_a R_a + (1 - W) I:

posteriors N(mu_a, Sigma_a) multiply by their exponents, less the noise that they count W times instead of once. Noise
of variance sigma^2 / m counts m times: then s = m M^-1 sum_a w_a R_a s_a with M = sum_a w_a R_a + (m - W) I.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.fields.each import EachField

# The least I + sigma^2 grad s_a may be, by autograd in float64 and by differences in the run's own numbers; and how far
# apart these are, in deviations of the noise.
_LEAST, _LEAST_BY_DIFFERENCES, _APART = 1e-12, 1e-4, 0.01


class PrecisionField(EachField):
    """The score above. Jacobians are exact, by autograd in float64, where all factors are Gaussian mixtures.

    Elsewhere they are central differences of the scores, at 2 d evaluations more: models need not know of autograd.

    Args:
        size: largest |mean| or deviation of the sources.
        floor: M is kept above floor (m + min(W, 1) sigma^2 / (alpha size)^2): a clean point given x_t is at most
            1 / floor as spread as noise allows in data of that size, which powers below 1 widen. Where it has to be,
            that is counted, and warned of at the end.
        counts: m, how often the noise counts.
    """

    def __init__(
        self, q: Composition, times: Tensor, like: Tensor, size: float, floor: float, counts: float = 1.0
    ) -> None:
        super().__init__(q, times, like)
        alpha, sigma = q.schedule.alpha(times), q.schedule.sigma(times)
        self.exact, self.closed_form = q.mixtures is not None, False  # one thread: what is counted is shared
        self.numbers_per_particle *= q.event[0]
        self.alpha, self.sigma, self.clock = alpha.tolist(), sigma.tolist(), times.double()
        self.counts, self.exponents = counts, torch.tensor(list(q.exponents.values()), dtype=torch.float64)
        self.least = (floor * (counts + min(q.total, 1.0) * (sigma / (alpha * size)) ** 2)).tolist()
        self.projected = Means(len(times))

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        assert isinstance(i, int)
        scores = self.scores(x, i)
        found, projected = self.weighted(scores.double(), self.precisions(x, i), i)
        self.projected.add(i, projected)
        return found.to(scores), None

    def arithmetic(self, particles: int) -> str:
        """That of the factors."""
        return "closed form" if self.q.is_closed_form else "model"

    def precisions(self, x: Tensor, i: int) -> Tensor:
        """Return R_a, `(A, *x.shape, d)`, float64."""
        eye = torch.eye(x.shape[-1], dtype=torch.float64, device=x.device)
        spread = eye + self.sigma[i] ** 2 * self.jacobians(x, i)
        kept, _ = at_least(0.5 * (spread + spread.mT), _LEAST if self.exact else _LEAST_BY_DIFFERENCES)
        return torch.linalg.inv_ex(kept).inverse

    def jacobians(self, x: Tensor, i: int) -> Tensor:
        """Return the gradients of the scores, `(A, *x.shape, d)`, float64."""
        return self._by_autograd(x, i) if self.exact else self._by_differences(x, i)

    def _by_autograd(self, x: Tensor, i: int) -> Tensor:
        time = self.clock[i].to(x.device)  # a rounded one gives sources much narrower than the noise no precision
        return torch.stack([self._gradients(x, time, name) for name in self.q.conditions])

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _gradients(self, x: Tensor, time: Tensor, name: str) -> Tensor:
        """Gradients of a condition's score, `(*x.shape, d)`, a row for every coordinate."""
        points = x.detach().double().clone().requires_grad_()  # a copy: the caller's may be of inference mode
        score = self.q.family.standard_scores(points, time.clone(), [name])[0]
        rows = [torch.autograd.grad(part.sum(), points, retain_graph=True)[0] for part in score.unbind(-1)]
        return torch.stack(rows, -2)

    def _by_differences(self, x: Tensor, i: int) -> Tensor:
        step = _APART * self.sigma[i]
        moves = step * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        columns = [(self.scores(x + move, i) - self.scores(x - move, i)).double() / (2 * step) for move in moves]
        return torch.stack(columns, -1)

    def weighted(self, scores: Tensor, precisions: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """Return s for scores and R_a in float64, and where M was projected."""
        exponents = self.exponents.to(scores.device)
        eye = torch.eye(scores.shape[-1], dtype=torch.float64, device=scores.device)
        total = torch.einsum("a,a...de->...de", exponents, precisions) + (self.counts - self.q.total) * eye
        total, projected = at_least(total, self.least[i])
        pulls = torch.einsum("a,a...de,a...e->...d", exponents, precisions, scores)
        return self.counts * torch.linalg.solve_ex(total, pulls).result, projected

    def findings(self) -> list[str]:
        """Return where M was projected, over all that was asked about."""
        shares = dict(enumerate(self.projected))
        if not (where := [i for i, share in shares.items() if share]):
            return []
        first, last = (self.times[i].item() for i in (where[0], where[-1]))
        worst, mean = max(shares.values()), sum(shares.values()) / len(shares)
        return [
            f"the precision of the clean point must be positive; at t = {first:.3g} to {last:.3g} that of {self.q!r} "
            f"is not, at up to {100 * worst:.3g} % of the particles and {100 * mean:.3g} % of all steps, and was "
            "projected. Smaller negative exponents help; so does FeynmanKac, which needs no such precision."
        ]


class Means:
    """Means at every time over all particles that were asked about: chunks and pieces of a run share one field."""

    def __init__(self, times: int) -> None:
        self.sums, self.counts = [0.0] * times, [0] * times

    def add(self, i: int, values: Tensor) -> None:
        """Count the values of more particles at time i."""
        self.sums[i] += values.double().sum().item()
        self.counts[i] += values.numel()

    def __iter__(self) -> Iterator[float]:
        """Yield the mean of every time, 0 where nothing was asked."""
        return (total / max(1, count) for total, count in zip(self.sums, self.counts, strict=True))


def at_least(matrices: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return symmetric matrices with eigenvalues of at least `floor`, and which of them had others.

    What is not finite stays so, for the sampler's alarm.
    """
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    low = (torch.linalg.cholesky_ex(matrices - floor * eye).info != 0) & matrices.isfinite().all(-1).all(-1)
    if bool(low.any()):
        values, basis = torch.linalg.eigh(matrices[low])
        matrices = matrices.clone()
        matrices[low] = (basis * values.clamp_min(floor).unsqueeze(-2)) @ basis.mT
    return matrices, low
