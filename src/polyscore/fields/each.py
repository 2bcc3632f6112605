"""The scores of all conditions, each by itself: for samplers that do not add them up by exponents."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.scores import combine
from polyscore.fields.field import Field, row
from polyscore.fields.pieces import InPieces


class EachField(Field):
    """The factors' scores at the i-th time, `(A, *x.shape)`; asked as any other field, their sum by exponents."""

    graphable = False
    foreign = True

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        self.q, self.times = q, times.to(like)
        self.closed_form = q.mixtures is not None  # a user's own code need not be safe among threads
        self.numbers_per_particle = 16 * len(q.exponents) * math.prod(q.event)

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        return combine(self.scores(x, i), list(self.q.exponents.values())), None

    def scores(self, x: Tensor, i: int | Tensor) -> Tensor:
        """Return the scores of all conditions at x `(..., *event)`."""
        return self.q.family.standard_scores(x, row(self.times, i), self.q.conditions)


def ask_each(field: Field, x: Tensor, ask: Callable[[EachField, Tensor], Tensor]) -> Tensor:
    """Return what an `EachField` answers at x `(N, K, *event)`, `(A, N, K, ...)`, in pieces where it is asked so."""
    whole = field.whole if isinstance(field, InPieces) else field
    assert isinstance(whole, EachField)
    if not isinstance(field, InPieces) or x.shape[:2].numel() <= field.most:
        return ask(whole, x)
    answers = torch.cat([ask(whole, piece[None]) for piece in x.flatten(0, 1).split(field.most)], 2)
    return answers.view(len(answers), *x.shape[:2], *answers.shape[3:])
