"""A field that is asked in pieces: memory is in the model, and a swarm may be more than it takes at once."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.fields.field import Field


def in_pieces(field: Field, most: int | None) -> Field:
    """Return the field, asked about at most so many particles at once; closed forms hold little, and stay whole."""
    whole = field.whole if isinstance(field, InPieces) else field
    return whole if most is None or whole.closed_form else InPieces(whole, most)


class InPieces(Field):
    """Another field, asked about at most `most` particles at once.

    Sums over a piece may round otherwise than over the whole, in the last digits.
    """

    def __init__(self, whole: Field, most: int) -> None:
        self.whole, self.most = whole, most
        self.closed_form, self.graphable, self.foreign = whole.closed_form, whole.graphable, whole.foreign
        self.numbers_per_particle = whole.numbers_per_particle

    def __call__(self, x: Tensor, i: int | Tensor, want_excess: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return score and excess of x `(N, K, *event)`."""
        if x.shape[:2].numel() <= self.most:
            return self.whole(x, i, want_excess)
        answers = [self.whole(piece[None], i, want_excess) for piece in x.flatten(0, 1).split(self.most)]
        scores, excesses = zip(*answers, strict=True)
        value = torch.cat([part for part in excesses if part is not None], 1).view(x.shape[:2]) if want_excess else None
        return torch.cat(scores, 1).view_as(x), value

    def mend(self, x: Tensor, i: int, alarmed: bool) -> Field:
        """Look at one piece: shortcuts are chosen by its size."""
        mended = self.whole.mend(x.flatten(0, 1)[None, : self.most], i, alarmed)
        return self if mended is self.whole else InPieces(mended, self.most)

    def findings(self) -> list[str]:
        """Those of the whole."""
        return self.whole.findings()

    def arithmetic(self, particles: int) -> str:
        """That of a piece."""
        return self.whole.arithmetic(min(particles, self.most))
