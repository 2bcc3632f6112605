"""An exact target in the units of the data, where the members of its family are standardised."""

from __future__ import annotations

from torch import Tensor

from polyscore.algebra import Composition, Family
from polyscore.targets.target import Target


class Rescaled(Target):
    """y = shift + scale x for a target of x: Z gains (prod scale)^(1 - W), a density loses prod scale."""

    def __init__(self, q: Composition, inner: Target) -> None:
        super().__init__(q)
        self.inner, self.method = inner, inner.method

    @property
    def log_evidence(self) -> float:
        """log Z of the composition of the data's densities."""
        return self.inner.log_evidence + (1 - self.q.total) * self.q.family.log_scale

    @property
    def ess(self) -> float:  # type: ignore[override]
        """Effective sample size of the inner target's last draw."""
        return self.inner.ess

    def sample(self, n: int, seed: int = 0) -> Tensor:
        return self.q.family.restore(self.inner.sample(n, seed))

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the normalised log-density, `(..., d) -> (...)`."""
        return self.inner.log_prob(self.q.family.standardise(x)) - self.q.family.log_scale


def standard(q: Composition) -> Composition:
    """Return the same composition of the members as they are, in their own coordinates."""
    members = {name: q.family.members[name] for name in q.conditions}
    return Composition(Family(members, q.schedule), q.exponents)
