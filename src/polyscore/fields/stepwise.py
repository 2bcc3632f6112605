"""Fields with several ways to evaluate a model: they step down where a shortcut fails or does not trust itself."""

from __future__ import annotations

import copy
from abc import abstractmethod
from functools import partial

from torch import Tensor

from polyscore.fields.evaluator import Evaluator
from polyscore.fields.field import Field
from polyscore.notices import warn


class Laddered(Field):
    """A field by the first of its `evaluators`; what a run gave up is not among them. The last is no shortcut."""

    evaluators: tuple[Evaluator, ...]

    @abstractmethod
    def _compose(self, values: Tensor, x: Tensor, i: int | Tensor, want_excess: bool) -> tuple[Tensor, Tensor | None]:
        """Score and excess at points `(B, d)` of the values of all conditions there."""

    def _full(self, values: Tensor, x: Tensor, i: int | Tensor) -> tuple[Tensor, Tensor | None]:
        return self._compose(values, x, i, True)

    def mend(self, x: Tensor, i: int, alarmed: bool) -> Field:
        """Go on without a shortcut that is not the model, and without any where a score is not finite."""
        *shortcuts, exact = self.evaluators
        if not any(way.used for way in shortcuts):
            return self
        if alarmed:
            return self._without_shortcuts()
        flat = x.reshape(-1, x.shape[-1]).float()
        compose = partial(self._full, i=i)
        kept = next((k for k, way in enumerate(shortcuts) if way.trusts(flat, i, exact, compose)), len(shortcuts))
        return self._with(self.evaluators[kept:]) if kept else self

    def _without_shortcuts(self) -> Field:
        """Go on in float32: far away, activations overflow in fp16, and a table spreads what is not finite."""
        warn(
            "scores in fp16 or by table must be finite; one was not, so the chunk starts again in float32, which is "
            "slower. Particles may have strayed far from the data: look at the largest samples before any mean."
        )
        return self._with(self.evaluators[-1:])

    def _with(self, evaluators: tuple[Evaluator, ...]) -> Field:
        other = copy.copy(self)
        other.evaluators = evaluators
        return other

    def arithmetic(self, particles: int) -> str:
        """Return what is left after shortcuts were given up, such as "table", "fp16", "tf32", "float32", "model"."""
        return self.evaluators[0].says(particles)
