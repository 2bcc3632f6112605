"""The field of any family: it asks its members."""

from __future__ import annotations

import math

from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.scores import combine, excess
from polyscore.fields.field import Field, row


class ScoreField(Field):
    """Any family: one call for all scores.

    Nothing is known of what a model holds while it computes: 16 numbers a coordinate and condition are assumed, enough
    for small networks. One that holds more says how much it takes, `most_rows` of the group behind its conditions, and
    is asked in parts; or the caller bounds `max_particles`.
    """

    closed_form = False
    graphable = False

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        self.q = q
        self.closed_form = q.mixtures is not None  # a user's own code need not be safe among threads
        self.numbers_per_particle = 16 * len(q.exponents) * math.prod(q.event)
        self.times = times.to(like)
        self.exponents = list(q.exponents.values())

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        scores = self.q.family.standard_scores(x, row(self.times, i), self.q.conditions)
        value = excess(scores, self.exponents, len(self.q.event)) if want_excess else None
        return combine(scores, self.exponents), value

    def arithmetic(self, particles: int) -> str:
        """Return "closed form" where no score is learned, and "model" otherwise."""
        return "closed form" if self.q.is_closed_form else "model"
