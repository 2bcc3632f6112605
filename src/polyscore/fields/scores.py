"""The field of any family: it asks its members."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.scores import combine, spread
from polyscore.fields.field import Field, row


class ScoreField(Field):
    """Any family: one call for all scores.

    Nothing is known of what a model holds while it computes: 16 numbers a coordinate and condition are assumed, enough
    for small networks. One that holds more says how much it takes, `most_rows` of the group behind its conditions,
    particles times conditions of one call; or the caller bounds `max_particles`.
    """

    closed_form = False
    graphable = False

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        self.q = q
        self.closed_form = q.is_closed_form
        self.numbers_per_particle = 16 * len(q.exponents) * math.prod(q.event)
        self.times = times.to(like)
        self.exponents = list(q.exponents.values())
        self.most_particles, together = _bounds(q)
        self.calls = [q.conditions[k : k + together] for k in range(0, len(q.conditions), together)]

    def __call__(self, x: Tensor, i: int | Tensor, want_spread: bool = True) -> tuple[Tensor, Tensor | None]:
        answers = [self.q.family.standard_scores(x, row(self.times, i), call) for call in self.calls]
        scores = answers[0] if len(answers) == 1 else torch.cat(answers)
        value = spread(scores, self.exponents, len(self.q.event)) if want_spread else None
        return combine(scores, self.exponents), value


def _bounds(q: Composition) -> tuple[int | None, int]:
    """Return the particles and the conditions that one call may be about, by the least that a group takes."""
    members = [q.family.members[name] for name in q.conditions]
    models = [model for member in members for model in getattr(member, "members", [member])]
    groups = [getattr(model, "group", None) for model in models]
    rows = [(most, groups.count(group)) for group in groups if (most := getattr(group, "most_rows", None)) is not None]
    if not rows:
        return None, len(members)
    particles = min(max(1, most // count) for most, count in rows)
    return particles, min(len(members), *(max(1, most // particles) for most, _ in rows))
