"""The field of networks: all conditions at once, by whatever shortcut serves."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.scores import combine, spread
from polyscore.fields.field import Field, row
from polyscore.models.network import NetworkCondition
from polyscore.nn import fast
from polyscore.nn.fast import table
from polyscore.nn.mlp import ScoreNetwork, matmul_precision
from polyscore.notices import warn

# A table is given up where scores or spreads by it are off by more than this, point by point in the quadratic mean:
# fp16 products, within 1e-3 of the noise, may move spreads by more.
_TABLE_ERROR = 5e-3


class NetworkField(Field):
    """A learned network: noise of all conditions at once, combined as scores -eps / sigma.

    The models of an ensemble stand side by side in one network, and their noise is averaged. Only the first layer's
    constants depend on time; they are tabled. On a GPU the layers run in fp16 with float32 sums, in fused kernels where
    the network's shape allows it. In the plane, many particles are interpolated from few nodes (`nn.fast.table`).
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
        quick = self.precision in ("auto", "table", "fp16")
        self.half = quick and like.is_cuda
        self.tabulate = size == 2 and self.precision in (("auto", "table") if like.is_cuda else ("table",))
        layers = 0 if self.tabulate and not like.is_cuda else 2 * self.network.width  # nodes go piece by piece there
        self.numbers_per_particle = self.network.conditions * (layers + 8 * size) + 16 * size
        self.fused = fast.fuse(self.network, like.device) if quick else None
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

    def mend(self, x: Tensor, i: int, alarmed: bool) -> Field:
        """Give up the table where it is not the network, and every shortcut where a score was not finite."""
        if alarmed:
            return self._without_shortcuts()
        flat = x.reshape(-1, x.shape[-1]).float()
        if not self._reads_table(len(flat)) or self._table_error(flat, i) <= _TABLE_ERROR:
            return self
        other = copy(self)
        other.tabulate = False
        return other

    def _table_error(self, x: Tensor, i: int) -> float:
        """Error of score and spread by table at some points, in float32: rounding to fp16 is another matter."""
        points, grid = table.some(x), table.Grid.around(x)
        nodes = self._float32(grid.nodes(), self.plain_offsets[i])
        by_table = self._compose(table.interpolate(nodes, grid, points), points, i, True)
        direct = self._compose(self._float32(points, self.plain_offsets[i]), points, i, True)
        return max(_relative(a, b) for a, b in zip(by_table, direct, strict=True) if a is not None and b is not None)

    def _without_shortcuts(self) -> Field:
        """Go on in float32: far away, activations overflow in fp16, and a table spreads what is not finite."""
        if not (self.tabulate or self.half or self.fused is not None):
            return self
        warn(
            "scores in fp16 or by table must be finite; one was not, so the chunk starts again in float32, which "
            "is slower. Particles may have strayed far from the data: look at the largest samples before any mean."
        )
        other = copy(self)
        other.tabulate, other.half, other.fused, other.offsets = False, False, None, self.plain_offsets
        return other

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
