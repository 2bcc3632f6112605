"""The field of mixtures whose covariances differ: one matrix product for all logits, one a factor for its score."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions.components import Components
from polyscore.fields.field import Field

# Numbers a piece holds, so that they stay in a core's cache; numbers of all times' tables together, at most.
_AT_ONCE, _MOST_NUMBERS = 1 << 17, 1 << 23


class UnlikeField(Field):
    """Mixtures of any covariances, on a CPU: with P_k the noised precision of component k and m_k its mean,

    logit_k = offset_k + pull_k'x - x'P_k x / 2,    s_a = sum_k share_k (pull_k - P_k x),    pull_k = alpha P_k m_k.

    Logits are linear in x and its products x_i x_j; pull and precision of s_a are linear in the shares. Large
    squares cancel, so all of it is in float64, around the mean of the means. Columns, (d, n), as in `MixtureField`, and
    few enough at once to stay in a core's cache.
    """

    closed_form = True
    graphable = False

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        parts = q.require_mixtures("the field of mixtures")
        alpha, sigma = q.schedule.alpha(times), q.schedule.sigma(times)
        centre = torch.cat([part.means for part in parts]).mean(0)
        self.exponents, self.counts = list(q.exponents.values()), [part.count for part in parts]
        self.centre = (alpha[:, None] * centre)[..., None]
        self.first, self.second = torch.triu_indices(len(centre), len(centre))
        tables = [_tables(part, centre, alpha, sigma) for part in parts]
        self.slopes, self.offsets = (torch.cat([table[k] for table in tables], 1) for k in (0, 1))
        self.maps = [table[2] for table in tables]
        held = self.slopes.shape[1] + 2 * self.maps[0].shape[1]
        self.numbers_per_particle, self.most = 16 * len(centre), max(64, _AT_ONCE // held)

    @staticmethod
    def serves(parts: list[Components], times: Tensor, like: Tensor) -> bool:
        """Whether its tables fit: they grow with the square of the dimension."""
        numbers = sum(part.count for part in parts) * 2 * (parts[0].dim + 1) ** 2 * len(times)
        return like.device.type == "cpu" and numbers <= _MOST_NUMBERS

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        flat = x.reshape(-1, x.shape[-1])
        score, value = torch.empty_like(flat), torch.empty_like(flat[:, 0]) if want_excess else None
        for start in range(0, len(flat), self.most):
            piece = slice(start, start + self.most)
            scores = self._scores(flat[piece], int(i))
            total = sum(s * w for s, w in zip(scores, self.exponents, strict=True))
            assert isinstance(total, Tensor)
            score[piece] = total.T
            if value is not None:
                squares = [s.square().sum(0) * w for s, w in zip(scores, self.exponents, strict=True)]
                value[piece] = total.square().sum(0) - sum(squares)
        return score.view(x.shape), None if value is None else value.view(x.shape[:-1])

    def _scores(self, x: Tensor, i: int) -> list[Tensor]:
        """Every factor's score at points `(n, d)`, as columns `(d, n)`."""
        columns = x.T.double() - self.centre[i]
        products = columns.index_select(0, self.first) * columns.index_select(0, self.second)
        logits = torch.addmm(self.offsets[i], self.slopes[i], torch.cat([columns, products])).split(self.counts)
        affine = torch.cat([columns, torch.ones_like(columns[:1])])
        means = (table[i] @ torch.softmax(part, 0) for table, part in zip(self.maps, logits, strict=True))
        return [(mean.view(-1, *affine.shape) * affine).sum(1) for mean in means]


def _tables(part: Components, centre: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes `(T, M, d + d (d + 1) / 2)` and offsets `(T, M, 1)` of a factor's logits, and `(T, d (d + 1), M)`, what
    their shares make the affine map of its score."""
    precision, means = part.precision_at(alpha, sigma), part.means - centre
    pull = alpha[:, None, None] * (precision @ means[..., None])[..., 0]
    first, second = torch.triu_indices(part.dim, part.dim)
    twice = torch.where(first == second, 0.5, 1.0).double()
    slopes = torch.cat([pull, -precision[..., first, second] * twice], -1)
    spread = part.noised(alpha, sigma).log().sum(-1)
    offsets = part.weights.log() - 0.5 * (alpha[:, None] * (pull * means).sum(-1) + spread)
    maps = torch.cat([-precision, pull[..., None]], -1)  # (T, M, d, d + 1)
    return slopes, offsets[..., None], maps.flatten(2).mT.contiguous()
