"""Plain denoising with the composed score: what adding scores gives, from SDE (churn 1) to ODE (churn 0)."""

from __future__ import annotations

from dataclasses import dataclass

from polyscore.algebra import Composition
from polyscore.errors import require
from polyscore.samplers.moves import Balanced, Move
from polyscore.samplers.plan import Settings
from polyscore.samplers.sampler import Sampler, check_common


@dataclass(frozen=True)
class Denoise(Sampler):
    """Denoise without correction.

    Args:
        steps: equal time steps from 1 to 0.
        churn: nu / eta, at least 0: 1 is the reverse SDE, 0 the probability-flow ODE.
        order: 1 (Euler-Maruyama, or the step exact in the linear part where alpha(1) = 0); 2 is Heun, for the ODE only.
        move: how W enters the drift; see `polyscore.samplers.moves`.
    """

    steps: int = 500
    churn: float = 1.0
    order: int = 1
    move: Move = Balanced()

    def __post_init__(self) -> None:
        check_common(self.steps, self.churn)
        require(self.order in (1, 2), "order", "be 1 or 2", self.order)
        require(self.order == 1 or self.churn == 0, "order 2 (Heun)", "go with churn 0", f"churn {self.churn}")

    def settings(self, q: Composition) -> Settings:
        """Return settings without weights or resampling."""
        require(self.order == 1 or not q.schedule.ends_in_pure_noise, "order 2 (Heun)",
                "go with a finite drift at t = 1", repr(q),
                "Use order=1, whose step is exact in the linear part.")  # fmt: skip
        return Settings(1, self.steps, self.churn, self.order, self.move, resampler=None)
