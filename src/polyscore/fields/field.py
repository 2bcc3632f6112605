"""What a sampler's inner loop calls: the composed score at the i-th time of a grid."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Field(Protocol):
    """Composed score and excess |S|^2 - sum w |s_a|^2 at the i-th time of a grid."""

    closed_form: bool  # steps too small to be split among threads by operation
    graphable: bool  # no host synchronisation: a CUDA graph may capture it
    numbers_per_particle: int  # held at once, for choosing a chunk
    foreign: bool = False  # a model of the user's, which may decide on the host in spite of `graphable`

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return S like x, and the excess over its batch shape (None unless wanted)."""

    def mend(self, x: Tensor, i: int, alarmed: bool) -> Field:
        """Check shortcuts at points of a run, or after a score that was not finite; return the field to go on with.

        Another than this one, which has given something up, means that the chunk begins again.
        """
        return self

    def findings(self) -> list[str]:
        """Return what speaks against a run that has ended, a sentence each: all its chunks have been asked about."""
        return []

    def arithmetic(self, particles: int) -> str:
        """Return how a chunk of so many particles is computed: "closed form", "model", or what networks run in."""
        return "closed form" if self.closed_form else "model"


def row(table: Tensor, i: int | Tensor) -> Tensor:
    """Return the i-th row of a table; a device index `(1,)` lets a captured CUDA graph advance by itself."""
    return table[i] if isinstance(i, int) else table.index_select(0, i)[0]
