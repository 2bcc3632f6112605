"""The field of any family: it asks its members, or reads a table of what they answer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.scores import combine, excess
from polyscore.fields.by_table import ModelTable, RefinedTable
from polyscore.fields.evaluator import Case, Evaluator, ladder_of
from polyscore.fields.field import row
from polyscore.fields.stepwise import Laddered
from polyscore.models.ensemble import Ensemble
from polyscore.models.group import Group, scores_together
from polyscore.models.source import AtLevel, Source


class Asked(Evaluator):
    """Members, asked: scores of all conditions, members that share a model in one call of it."""

    arithmetic, shortcut = "model", False

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        self.members, self.times = case.network, case.times
        self.source = self.members.one_source(case.times)

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve every case."""
        return True

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        source = self.source[i] if self.source is not None and isinstance(i, int) else None
        return self.members(x, row(self.times, i), source)

    def says(self, particles: int) -> str:
        """Return how the models compute, where they were told."""
        return self.members.arithmetic


class Members:
    """The factors of a composition, as `Case` wants a network: what they know of themselves.

    Attributes:
        sources: what is behind factors: groups, and others that have none.
    """

    numbers_per_row = 0

    def __init__(self, q: Composition, device: torch.device) -> None:
        self.q, self.device = q, device
        self.dim = q.event[0] if len(q.event) == 1 else 0  # 2 is the plane, which an image of two pixels is not
        self.factors = q.factors
        self.sources = [source for factor in self.factors for source in _sources(factor)]

    def __call__(self, x: Tensor, t: Tensor, source: AtLevel | None = None) -> Tensor:
        """Return the scores of all conditions, `(A, *x.shape)`, by one source where it is known to be that of all."""
        family, names = self.q.family, self.q.conditions
        if source is None:
            return family.standard_scores(x, t, names)
        return family.answer(names, x, t, lambda: scores_together(source, x, t, self.factors), (len(names), *x.shape))

    def one_source(self, times: Tensor) -> list[AtLevel] | None:
        """The source that all factors share, at every one of these times; None where there is none, or not one."""
        first, *others = (getattr(factor, "group", None) for factor in self.factors)
        if not isinstance(first, Source) or any(other is not first for other in others):
            return None
        return first.at_levels(times)

    @property
    def _told(self) -> list[Group | None]:
        """What can be told how to compute, and None for what cannot: closed forms, models of other kinds."""
        return [source if isinstance(source, Group) else None for source in self.sources]

    @property
    def precision(self) -> str:
        """What all models were told, "float32" where they differ: nobody asked for a table then."""
        told = {group.precision for group in self._told if group is not None} or {"auto"}
        return told.pop() if len(told) == 1 else "float32"

    @property
    def compiled(self) -> bool:
        """Whether all models may be held by a CUDA graph: who had them compiled says that they are tensor code."""
        return all(group is not None and group.compiled for group in self._told)

    @property
    def arithmetic(self) -> str:
        """What a run says of them."""
        if self.q.is_closed_form:
            return "closed form"
        said = dict.fromkeys(group.arithmetic(self.device) for group in self._told if group is not None)
        return " and ".join(said) or "model"


def _sources(factor: Any) -> list[Any]:
    """What is asked for a factor's score."""
    if isinstance(factor, Ensemble):
        return [source for model in factor.models for source in _sources(model)]
    return [getattr(factor, "group", None) or getattr(factor, "source", factor)]


class ScoreField(Laddered):
    """Any family: one call for all scores, or in the plane a table of them.

    Nothing is known of what a model holds while it computes: 16 numbers a coordinate and condition are assumed, enough
    for small networks. One that holds more says how much it takes, `most_rows` of the group behind its conditions, and
    is asked in parts; or the caller bounds `max_particles`.
    """

    closed_form = False
    foreign = True

    def __init__(self, q: Composition, times: Tensor, like: Tensor) -> None:
        self.q = q
        self.closed_form = q.mixtures is not None  # a user's own code need not be safe among threads
        self.numbers_per_particle = 16 * len(q.exponents) * math.prod(q.event)
        self.exponents = list(q.exponents.values())
        members = Members(q, like.device)
        # Tables are a matter of float32: off by more than the rounding of float64, by less than that of halves.
        told = "float32" if q.is_closed_form or like.dtype != torch.float32 else members.precision
        case = Case(members, times.to(like), told, self._full)
        self.evaluators = ladder_of((ModelTable, RefinedTable, Asked), case)
        self.graphable = members.compiled

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        if len(self.evaluators) == 1:
            return self._compose(self.evaluators[0](x, i), x, i, want_excess)
        score, value = self._compose(self.evaluators[0](x.reshape(-1, 2), i), x.reshape(-1, 2), i, want_excess)
        return score.view(x.shape), None if value is None else value.view(x.shape[:-1])

    def _compose(self, values: Tensor, x: Tensor, i: int | Tensor, want_excess: bool) -> tuple[Tensor, Tensor | None]:
        """Score and excess of the scores of all conditions."""
        value = excess(values, self.exponents, len(self.q.event)) if want_excess else None
        return combine(values, self.exponents), value
