"""The field of networks: all conditions at once, by whatever shortcut serves."""

from __future__ import annotations

import copy

from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.scores import combine, excess
from polyscore.fields.evaluators import ByTable, Case, Evaluator, ladder
from polyscore.fields.field import Field, row
from polyscore.models.network import NetworkCondition
from polyscore.nn.fast import plane
from polyscore.notices import warn

# A table is given up where scores or spreads by it are off by more than this, point by point in the quadratic mean:
# fp16 products, within 1e-3 of the noise, may move spreads by more.
_TABLE_ERROR = 5e-3


class NetworkField(Field):
    """Learned networks: noise of all conditions at once, combined as scores -eps / sigma.

    The models of an ensemble stand side by side in one network, and their noise is averaged. What depends on time alone
    is tabled. `evaluators` are the ways to evaluate it, the one in use first; what a run gave up is not among them.
    """

    closed_form = False
    graphable = True

    def __init__(self, q: Composition, columns: list[list[NetworkCondition]], times: Tensor, like: Tensor) -> None:
        """`columns` holds each factor's conditions, one a model."""
        models = list(zip(*columns, strict=True))
        # `pick` copies, so the user's own network stays where it is.
        first, *others = [m[0].group.network.pick([c.index for c in m]).to(like.device) for m in models]
        network, self.models = first.side_by_side(others) if others else first, len(models)
        self.exponents = list(q.exponents.values())
        self.minus_inverse_sigma = (-1 / q.schedule.sigma(times)).to(like)
        self.evaluators = ladder(Case(network, times, columns[0][0].group.precision))
        # On a CPU the nodes of a table go piece by piece.
        by_nodes = isinstance(self.evaluators[0], ByTable) and not like.is_cuda
        held = (0 if by_nodes else network.numbers_per_row) + 8 * network.dim
        self.numbers_per_particle = network.conditions * held + 16 * network.dim

    def __call__(self, x: Tensor, i: int | Tensor, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        flat = x.reshape(-1, x.shape[-1])
        noise = self.evaluators[0](flat.float(), i).to(x.dtype)
        score, value = self._compose(noise, flat, i, want_spread)
        return score.view(x.shape), None if value is None else value.view(x.shape[:-1])

    def _compose(self, noise: Tensor, x: Tensor, i: int | Tensor, want_spread: bool) -> tuple[Tensor, Tensor | None]:
        """Score and spread at points `(B, d)` of the noise of all models' conditions."""
        factor = row(self.minus_inverse_sigma, i)
        if self.models > 1:
            noise = noise.view(self.models, -1, *x.shape).mean(0)
        score = combine(noise, self.exponents) * factor
        return score, excess(noise, self.exponents) * factor.square() if want_spread else None

    def mend(self, x: Tensor, i: int, alarmed: bool) -> Field:
        """Go on without the table where it is not the network, and without shortcuts where a score is not finite."""
        if alarmed:
            return self._without_shortcuts()
        flat = x.reshape(-1, x.shape[-1]).float()
        by_table = self.arithmetic(len(flat)) == ByTable.arithmetic
        return self._with(self.evaluators[1:]) if by_table and self._table_error(flat, i) > _TABLE_ERROR else self

    def _without_shortcuts(self) -> Field:
        """Go on in float32: far away, activations overflow in fp16, and a table spreads what is not finite."""
        if len(self.evaluators) == 1:
            return self
        warn(
            "scores in fp16 or by table must be finite; one was not, so the chunk starts again in float32, which is "
            "slower. Particles may have strayed far from the data: look at the largest samples before any mean."
        )
        return self._with(self.evaluators[-1:])

    def _with(self, evaluators: tuple[Evaluator, ...]) -> Field:
        other = copy.copy(self)
        other.evaluators = evaluators
        return other

    def _table_error(self, x: Tensor, i: int) -> float:
        """Error of score and spread by table at some points, in float32: rounding to fp16 is another matter."""
        points, nodes, exact = plane.some(x), plane.Nodes.around(x), self.evaluators[-1]
        read = plane.interpolate(exact(nodes.points(), i), nodes, points)
        by_table, direct = (self._compose(noise, points, i, True) for noise in (read, exact(points, i)))
        return max(_relative(a, b) for a, b in zip(by_table, direct, strict=True) if a is not None and b is not None)

    def arithmetic(self, particles: int) -> str:
        """Return "table", "fp16", "tf32" or "float32": what is left after shortcuts were given up."""
        return self.evaluators[0].says(particles)


def _relative(values: Tensor, exact: Tensor) -> float:
    """Quadratic mean over points of error over size; sizes below the median count as the median."""
    error, size = (part.reshape(len(exact), -1).norm(dim=1) for part in (values - exact, exact))
    return (error / size.clamp_min(size.median())).square().mean().sqrt().item()
