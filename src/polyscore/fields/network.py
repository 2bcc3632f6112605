"""The field of networks: all conditions at once, by whatever shortcut serves."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.scores import combine, excess
from polyscore.fields.evaluator import gains_of
from polyscore.fields.evaluators import Case, ladder
from polyscore.fields.field import row
from polyscore.fields.stepwise import Laddered
from polyscore.models.network import NetworkCondition


class NetworkField(Laddered):
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
        asked = columns[0][0].group.precision
        # Who asks for more than float32 asks for no table that is off by more than its rounding.
        exact = asked == "auto" and like.dtype == torch.float64 and not like.is_cuda
        case = Case(network, times, "float32" if exact else asked, self._full, gains_of(q.schedule, times))
        self.evaluators = ladder(case)
        held = self.evaluators[0].numbers_per_row(case) + 8 * network.dim
        self.numbers_per_particle = network.conditions * held + 16 * network.dim

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        flat = x.reshape(-1, x.shape[-1])
        noise = self.evaluators[0](flat.float(), i).to(x.dtype)
        score, value = self._compose(noise, flat, i, want_excess)
        return score.view(x.shape), None if value is None else value.view(x.shape[:-1])

    def _compose(self, noise: Tensor, x: Tensor, i: int | Tensor, want_excess: bool) -> tuple[Tensor, Tensor | None]:
        """Score and excess at points `(B, d)` of the noise of all models' conditions."""
        factor = row(self.minus_inverse_sigma, i)
        if self.models > 1:
            noise = noise.view(self.models, -1, *x.shape).mean(0)
        score = combine(noise, self.exponents) * factor
        return score, excess(noise, self.exponents) * factor.square() if want_excess else None
