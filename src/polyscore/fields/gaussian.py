"""The field of Gaussians: one affine map and one quadratic form a step, whatever the number of conditions."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.fields.field import Field, row


class GaussianField(Field):
    """All factors Gaussian: s_a = -P_a (x - alpha m_a) with P_a = (alpha^2 cov_a + sigma^2 I)^-1.

    Both forms are written around a centre alpha m, m the mean of the means: far from 0 their terms would cancel.
    Factors with diagonal covariances stay diagonal, `(T, d)` instead of `(T, d, d)`.
    """

    closed_form = True
    graphable = True

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        schedule = q.schedule
        self.numbers_per_particle = 16 * q.event[0]
        alpha, sigma = schedule.alpha(times)[:, None], schedule.sigma(times)[:, None]
        parts = q.require_mixtures("the field of Gaussians")
        diagonal = all(part.bases is None for part in parts)
        centre = torch.stack([part.means[0] for part in parts]).mean(0)
        shape = (len(times), len(centre), *(() if diagonal else (len(centre),)))
        total, square = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        pull, own = torch.zeros(2, len(times), len(centre), dtype=torch.float64)
        constant = torch.zeros(len(times), dtype=torch.float64)
        times_ = torch.mul if diagonal else _matvec
        for part, w in zip(parts, q.exponents.values(), strict=True):
            noised = 1 / (alpha**2 * part.variances[0] + sigma**2)
            precision = noised if diagonal else part.precision_at(alpha[:, 0], sigma[:, 0])[:, 0]
            to_mean = times_(precision, alpha * (part.means[0] - centre))  # P_a alpha (m_a - m)
            total, pull = total + w * precision, pull + w * to_mean
            square = square + w * (precision**2 if diagonal else precision @ precision)
            own, constant = own + w * times_(precision, to_mean), constant + w * to_mean.square().sum(-1)
        quadratic = (total**2 if diagonal else total @ total) - square
        linear = times_(total, pull) - own
        constant = pull.square().sum(-1) - constant
        centred = not bool(torch.stack([part.means[0] for part in parts]).any())
        self.centre = None if centred else (alpha * centre).to(like)
        self.score = _Affine(-total, None if centred else pull, like)
        self.excess = _Quadratic(quadratic, None if centred else (-2 * linear, constant), like)

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        flat = x.reshape(-1, x.shape[-1])
        if self.centre is not None:
            flat = flat - row(self.centre, i)
        value = self.excess(flat, i).view(x.shape[:-1]) if want_excess else None
        return self.score(flat, i).view_as(x), value


def _matvec(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return A_t v_t, `(T, d, d), (T, d) -> (T, d)`."""
    return (matrices @ vectors[..., None])[..., 0]


class _Affine:
    """x A_i + b_i with symmetric A_i `(T, d, d)`, or diagonal ones `(T, d)`, which cost no matrix product."""

    def __init__(self, matrices: Tensor, shifts: Tensor | None, like: Tensor) -> None:
        matrices = _diagonal_if_possible(matrices)
        self.diagonal = matrices.ndim == 2
        self.matrices = matrices.to(like).contiguous()
        self.shifts = None if shifts is None else shifts.to(like)

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        matrix, shift = row(self.matrices, i), None if self.shifts is None else row(self.shifts, i)
        if self.diagonal:
            return x * matrix if shift is None else torch.addcmul(shift, x, matrix)
        return x @ matrix if shift is None else torch.addmm(shift, x, matrix)


class _Quadratic:
    """x'Q_i x + l_i'x + k_i, in the eigenbasis of each Q_i: squares and one matrix-vector product."""

    def __init__(self, matrices: Tensor, lower: tuple[Tensor, Tensor] | None, like: Tensor) -> None:
        self.basis: Tensor | None = None
        matrices = _diagonal_if_possible(matrices)
        if matrices.ndim == 2:
            self.values = matrices.to(like).contiguous()
        else:
            values, basis = torch.linalg.eigh(matrices)
            self.values, self.basis = values.to(like), basis.to(like)
        self.lower = None if lower is None else (lower[0].to(like), lower[1].to(like))

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        squares = (x if self.basis is None else x @ row(self.basis, i)).square()
        value = squares @ row(self.values, i) if x.shape[-1] > 4 else _few_columns(squares, row(self.values, i))
        if self.lower is None:
            return value
        slope, constant = self.lower
        return value.addmv_(x, row(slope, i)).add_(row(constant, i))


def _few_columns(squares: Tensor, values: Tensor) -> Tensor:
    """squares @ values for a handful of columns, where a loop is twice as fast as the library's product."""
    total = squares[:, 0] * values[0]
    for k in range(1, len(values)):
        total.addcmul_(squares[:, k], values[k])
    return total


def _diagonal_if_possible(matrices: Tensor) -> Tensor:
    """Return `(T, d)` where all matrices are diagonal."""
    if matrices.ndim == 2:
        return matrices
    diagonals = matrices.diagonal(dim1=-2, dim2=-1)
    return matrices if bool((matrices - torch.diag_embed(diagonals)).any()) else diagonals
