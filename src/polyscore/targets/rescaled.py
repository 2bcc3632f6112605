"""An exact target in the units of the data, where the members of its family are standardised, or bent too."""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition, Family
from polyscore.targets.target import Target


class Rescaled(Target):
    """y = shift + scale x for a target of x: Z gains (prod scale)^(1 - W), a density loses prod scale.

    Where coordinates are bent, W is 1, and Z the same in both.
    """

    def __init__(self, q: Composition, inner: Target) -> None:
        super().__init__(q)
        self.inner, self.method = inner, inner.method

    @property
    def log_evidence(self) -> float:
        """log Z of the composition of the data's densities."""
        if self.q.family.is_bent:
            return self.inner.log_evidence
        middle = torch.zeros(self.q.event, dtype=torch.float64)
        return self.inner.log_evidence + (1 - self.q.total) * float(self.q.family.log_volume(middle))

    @property
    def ess(self) -> float:  # type: ignore[override]
        """Effective sample size of the inner target's last draw."""
        return self.inner.ess

    def sample(self, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        standard = self.inner.sample(n, seed, dtype)
        self.q.family.check_dtype(dtype)
        return self.q.family.restore(standard)

    def drawn(self, n: int, seed: int) -> Tensor:
        return self.q.family.restore(self.inner.drawn(n, seed))

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the normalised log-density, `(..., d) -> (...)`."""
        standard = self.q.family.standardise(x)
        return self.inner.log_prob(standard) - self.q.family.log_volume(standard)


def standard(q: Composition) -> Composition:
    """Return the same composition of the members as they are, in their own coordinates."""
    members = {name: q.family.members[name] for name in q.conditions}
    return Composition(Family(members, q.schedule), q.exponents)
