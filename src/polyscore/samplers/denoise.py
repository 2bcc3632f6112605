"""Plain denoising with the composed score: what adding scores gives, from SDE (churn 1) to ODE (churn 0)."""

from __future__ import annotations

from dataclasses import dataclass

from polyscore.algebra import Composition
from polyscore.errors import require
from polyscore.samplers.sampler import Sampler


@dataclass(frozen=True, repr=False)
class Denoise(Sampler):
    """Denoise without correction.

    Args:
        order: 1 leaves the step to `integrator`; 2 is Heun, for the ODE only, at two evaluations a step.
        steps, churn, move, grid, integrator, start, kernels: as in `Sampler`.
    """

    order: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.order == 1 or self.churn == 0, "order 2 (Heun)", "go with churn 0", f"churn {self.churn}",
                "Pass churn=0, or leave order out.")  # fmt: skip

    def check(self, q: Composition) -> None:
        """Refuse Heun where the drift is infinite."""
        require(self.order == 1 or not q.schedule.ends_in_pure_noise, "order 2 (Heun)",
                "go with a finite drift at t = 1", repr(q),
                "Use order=1, whose step is exact in the linear part.")  # fmt: skip
