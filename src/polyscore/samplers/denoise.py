"""Plain denoising with the composed score: what adding scores gives, from SDE (churn 1) to ODE (churn 0)."""

from __future__ import annotations

from dataclasses import dataclass

from polyscore.algebra import Composition
from polyscore.errors import require
from polyscore.samplers.moves import Balanced, Move
from polyscore.samplers.plan import Settings
from polyscore.samplers.sampler import Sampler, check_common


@dataclass(frozen=True, repr=False)
class Denoise(Sampler):
    """Denoise without correction.

    Args:
        steps: from noise to data.
        churn: nu / eta, at least 0: 1 is the reverse SDE, 0 the probability-flow ODE.
        order: 1 leaves the step to `integrator`; 2 is Heun, for the ODE only, at two evaluations a step.
        move: how W enters the drift; see `polyscore.samplers.moves`.
        grid, integrator, start: as in `FeynmanKac`.
    """

    steps: int = 100
    churn: float = 1.0
    order: int = 1
    move: Move = Balanced()
    grid: str = "snr"
    integrator: str = "multistep"
    start: str = "matched"

    def __post_init__(self) -> None:
        check_common(self.steps, self.churn, self.move, self.grid, self.integrator, self.start)
        require(self.order in (1, 2), "order", "be 1 or 2", self.order)
        require(self.order == 1 or self.churn == 0, "order 2 (Heun)", "go with churn 0", f"churn {self.churn}")

    def settings(self, q: Composition) -> Settings:
        """Return settings without weights or resampling."""
        require(self.order == 1 or not q.schedule.ends_in_pure_noise, "order 2 (Heun)",
                "go with a finite drift at t = 1", repr(q),
                "Use order=1, whose step is exact in the linear part.")  # fmt: skip
        return Settings(
            1, self.steps, self.churn, self.order, self.move, resampler=None,
            grid=self.grid, integrator=self.integrator, start=self.start,
        )  # fmt: skip
