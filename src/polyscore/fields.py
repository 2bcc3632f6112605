"""A composition prepared for a grid of times: `field(x, i) -> (S, spread)`.

A sampler visits the same few hundred times for every particle, so what depends on time alone is computed once, in
float64. Gaussians become one affine map and one quadratic form a step, whatever the number of conditions:

    S = c - P x,     |S|^2 - sum w |s_a|^2 = x'Q x - 2 l'x + k.

Mixtures that share a covariance need one matrix of component logits. Everything else asks its family. `spread` is
|S|^2 - sum_a w_a |s_a|^2, the part of the residual that needs the single scores.
"""

from __future__ import annotations

import math
import warnings
from typing import Protocol

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions import Distribution, Gaussian
from polyscore.distributions.components import components_of, weights_of
from polyscore.distributions.learned import NetworkCondition, common_networks, network_conditions
from polyscore.errors import DegeneracyWarning
from polyscore.nn import kernels, table
from polyscore.nn.mlp import ScoreNetwork, matmul_precision
from polyscore.scores import combine, spread

# A table is given up where scores or spreads by it are off by more than this, point by point in the quadratic mean:
# fp16 products, within 1e-3 of the noise, may move spreads by more.
_TABLE_ERROR = 5e-3


class Field(Protocol):
    """Composed score and spread at the i-th time of a grid."""

    closed_form: bool  # steps too small to be split among threads by operation
    graphable: bool  # no host synchronisation: a CUDA graph may capture it
    numbers_per_particle: int  # held at once, for choosing a chunk

    def __call__(self, x: Tensor, i: int | Tensor, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return S like x, and the spread over its batch shape (None unless wanted)."""

    def mend(self, x: Tensor, i: int, alarmed: bool) -> bool:
        """Check shortcuts at points of a run, or after a score that was not finite; return whether one was given up."""
        return False

    def arithmetic(self, particles: int) -> str:
        """Return how a chunk of so many particles is computed: "closed form", "model", or what networks run in."""
        return "closed form" if self.closed_form else "model"


def prepare(q: Composition, times: Tensor, like: Tensor) -> Field:
    """Return the fastest field for `q` on `times` `(T,)` (float64), in the dtype and on the device of `like`."""
    parts = [q.family.members[name] for name in q.conditions]
    if all(isinstance(part, Gaussian) for part in parts):
        return GaussianField(q, times, like)
    if all(isinstance(part, Distribution) for part in parts) and _shared_covariance(q) is not None:
        return MixtureField(q, times, like)
    columns = [network_conditions(part) for part in parts]
    if _same_networks(columns):
        return NetworkField(q, columns, times, like)
    return ScoreField(q, times, like)


def _same_networks(columns: list[list[NetworkCondition]]) -> bool:
    """Whether all parts rest on the same networks, which can be evaluated as one."""
    return len({(group.network.shape, group.network.width, group.precision) for group in common_networks(columns)}) == 1


def row(table: Tensor, i: int | Tensor) -> Tensor:
    """Return the i-th row of a table; a device index `(1,)` lets a captured CUDA graph advance by itself."""
    return table[i] if isinstance(i, int) else table.index_select(0, i)[0]


class ScoreField(Field):
    """Any family: one call for all scores."""

    closed_form = False
    graphable = False

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        self.q = q
        self.closed_form = q.is_closed_form
        self.numbers_per_particle = 16 * len(q.exponents) * math.prod(q.event)
        self.times = times.to(like)
        self.exponents = list(q.exponents.values())

    def __call__(self, x: Tensor, i: int | Tensor, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        scores = self.q.family.standard_scores(x, row(self.times, i), self.q.conditions)
        value = spread(scores, self.exponents, len(self.q.event)) if want_spread else None
        return combine(scores, self.exponents), value


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
        parts = [components_of(q.distribution(name)) for name in q.conditions]
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
        self.spread = _Quadratic(quadratic, None if centred else (-2 * linear, constant), like)

    def __call__(self, x: Tensor, i: int | Tensor, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        flat = x.reshape(-1, x.shape[-1])
        if self.centre is not None:
            flat = flat - row(self.centre, i)
        value = self.spread(flat, i).view(x.shape[:-1]) if want_spread else None
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
        parts = [q.distribution(name) for name in q.conditions]
        precision = components_of(parts[0]).precision_at(alpha, sigma)[:, 0]  # (T, d, d)
        self.exponents, self.total = list(q.exponents.values()), q.total
        self.numbers_per_particle = 16 * q.event[0] + 4 * sum(components_of(part).count for part in parts)
        self.precision, self.scaled = precision.to(like), (alpha[:, None, None] * precision).to(like)
        self.means, self.slopes, self.offsets = [], [], []
        # Far from 0 logits would be differences of large numbers: then everything is written around a centre alpha m.
        every = torch.cat([components_of(part).means for part in parts])
        far = bool(every.square().max() > 1e3 * components_of(parts[0]).variances.min())
        centre = every.mean(0) if far else torch.zeros_like(every[0])
        self.centre = (alpha[:, None] * centre)[..., None].to(like) if far else None
        for part in parts:
            means = components_of(part).means - centre
            slope = alpha[:, None, None] * (means @ precision)  # (T, M, d)
            offset = weights_of(part).log() - 0.5 * alpha[:, None] * (slope * means).sum(-1)
            self.means.append(means.T.to(like).contiguous())
            self.slopes.append(slope.to(like))
            self.offsets.append(offset[..., None].to(like))

    def __call__(self, x: Tensor, i: int | Tensor, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
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
        if not want_spread:
            return score, None
        value = combined.square().sum(0)
        for w, difference in zip(self.exponents, differences, strict=False):
            value.sub_(difference.square().sum(0), alpha=w)
        if self.total != 1:
            both = self.total * reference + 2 * combined
            value.add_((reference * both).sum(0), alpha=self.total - 1)
        return score, value.view(x.shape[:-1])


class NetworkField(Field):
    """A learned network: noise of all conditions at once, combined as scores -eps / sigma.

    The models of an ensemble stand side by side in one network, and their noise is averaged. Only the first layer's
    constants depend on time; they are tabled. On a GPU the layers run in fp16 with float32 sums, in fused kernels where
    the network's shape allows it. In the plane, many particles are interpolated from few nodes (`polyscore.nn.table`).
    """

    closed_form = False
    graphable = True

    def __init__(self, q: Composition, columns: list[list[NetworkCondition]], times: Tensor, like: Tensor) -> None:
        """`columns` holds each factor's conditions, one a model."""
        models = list(zip(*columns, strict=True))
        # `pick` copies, so the user's own network stays where it is.
        picked = [row[0].group.network.pick([model.index for model in row]).to(like.device) for row in models]
        self.network, self.models = ScoreNetwork.side_by_side(picked), len(models)
        self.exponents = list(q.exponents.values())
        size = q.event[0]
        self.minus_inverse_sigma = (-1 / q.schedule.sigma(times)).to(like)
        self.offsets = self.plain_offsets = self.network.offsets(times.to(like.device))
        self.precision = columns[0][0].group.precision
        fast = self.precision in ("auto", "table", "fp16")
        self.half = fast and like.is_cuda
        self.tabulate = size == 2 and self.precision in (("auto", "table") if like.is_cuda else ("table",))
        layers = 0 if self.tabulate and not like.is_cuda else 2 * self.network.width  # nodes go piece by piece there
        self.numbers_per_particle = self.network.conditions * (layers + 8 * size) + 16 * size
        self.fused = kernels.fuse(self.network, like.device) if fast else None
        if self.fused is not None:
            self.offsets = self.fused.half_offsets(self.offsets)

    def __call__(self, x: Tensor, i: int | Tensor, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        flat = x.reshape(-1, x.shape[-1])
        noise = self._noise(flat.float(), row(self.offsets, i)).to(x.dtype)
        score, value = self._compose(noise, flat, i, want_spread)
        return score.view(x.shape), None if value is None else value.view(x.shape[:-1])

    def _compose(self, noise: Tensor, x: Tensor, i: int | Tensor, want_spread: bool) -> tuple[Tensor, Tensor | None]:
        """Score and spread at points `(B, d)` of the noise of all models' conditions."""
        factor = row(self.minus_inverse_sigma, i)
        if self.models > 1:
            noise = noise.view(self.models, -1, *x.shape).mean(0)
        score = combine(noise, self.exponents) * factor
        return score, spread(noise, self.exponents) * factor.square() if want_spread else None

    def mend(self, x: Tensor, i: int, alarmed: bool) -> bool:
        """Give up the table where it is not the network, and every shortcut where a score was not finite."""
        if alarmed:
            return self._give_up_all()
        flat = x.reshape(-1, x.shape[-1]).float()
        if self._reads_table(len(flat)):
            self.tabulate = self._table_error(flat, i) <= _TABLE_ERROR
            return not self.tabulate
        return False

    def _table_error(self, x: Tensor, i: int) -> float:
        """Error of score and spread by table at some points, in float32: rounding to fp16 is another matter."""
        points, grid = table.some(x), table.Grid.around(x)
        nodes = self._float32(grid.nodes(), self.plain_offsets[i])
        by_table = self._compose(table.interpolate(nodes, grid, points), points, i, True)
        direct = self._compose(self._float32(points, self.plain_offsets[i]), points, i, True)
        return max(_relative(a, b) for a, b in zip(by_table, direct, strict=True) if a is not None and b is not None)

    def _give_up_all(self) -> bool:
        """Go on in float32: far away, activations overflow in fp16, and a table spreads what is not finite."""
        shortcuts = self.tabulate or self.half or self.fused is not None
        if shortcuts:
            warnings.warn(
                "scores in fp16 or by table must be finite; one was not, so the chunk starts again in float32, which "
                "is slower. Particles may have strayed far from the data: look at the largest samples before any mean.",
                DegeneracyWarning,
                stacklevel=7,
            )
        self.tabulate, self.half, self.fused, self.offsets = False, False, None, self.plain_offsets
        return shortcuts

    def arithmetic(self, particles: int) -> str:
        """Return "table", "fp16", "tf32" or "float32": what is left after shortcuts were given up."""
        if self._reads_table(particles):
            return "table"
        if self.half or self.fused is not None:
            return "fp16"
        return "tf32" if self.precision == "tf32" and self.network.device.type == "cuda" else "float32"

    def _reads_table(self, particles: int) -> bool:
        return self.tabulate and particles >= table.WORTHWHILE

    def _noise(self, x: Tensor, offset: Tensor) -> Tensor:
        if self._reads_table(len(x)):
            return table.tabulated(lambda nodes: self._direct(nodes, offset), x)
        return self._direct(x, offset)

    def _direct(self, x: Tensor, offset: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused.noise(x, offset)
        if self.half:
            with matmul_precision("highest", x.device):
                return self.network.noise(x, offset, torch.float16)
        return self._float32(x, offset)

    def _float32(self, x: Tensor, offset: Tensor) -> Tensor:
        if not x.is_cuda:
            return self.network.noise_in_place(x, offset)
        with matmul_precision("high" if self.precision == "tf32" else "highest", x.device):
            return self.network.noise(x, offset)


def _relative(values: Tensor, exact: Tensor) -> float:
    """Quadratic mean over points of error over size; sizes below the median count as the median."""
    error, size = (part.reshape(len(exact), -1).norm(dim=1) for part in (values - exact, exact))
    return (error / size.clamp_min(size.median())).square().mean().sqrt().item()


def _shared_covariance(q: Composition) -> Tensor | None:
    """Return the covariance that every component of every factor has, or None."""
    covariances = torch.cat([components_of(q.distribution(name)).covariances for name in q.conditions])
    return covariances[0] if torch.allclose(covariances, covariances[:1], rtol=1e-12, atol=0) else None
