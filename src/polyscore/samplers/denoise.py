"""Plain denoising with the composed score: what adding scores gives, from SDE (churn 1) to ODE (churn 0)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import torch

from polyscore.algebra import Composition
from polyscore.errors import require
from polyscore.samplers.loop import Progress, run
from polyscore.samplers.moves import Balanced, Move
from polyscore.samplers.plan import Settings
from polyscore.samplers.run import Run


@dataclass(frozen=True)
class Denoise:
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

    def sample(
        self,
        q: Composition,
        n: int,
        seed: int = 0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        max_particles: int | None = None,
        progress: Progress | None = None,
    ) -> Run:
        """Return `n` samples of the naive composition; the same bytes for the same seed and device."""
        noise_end = isinstance(q, Composition) and q.schedule.ends_in_pure_noise
        require(self.order == 1 or not noise_end, "order 2 (Heun)", "go with a finite drift at t = 1", repr(q),
                "Use order=1, whose step is exact in the linear part.")  # fmt: skip
        settings = Settings(1, self.steps, self.churn, self.order, self.move, resampler=None)
        return run(q, settings, n, seed, device=device, dtype=dtype, max_particles=max_particles, progress=progress)


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1; True is not one."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def check_common(steps: int, churn: float) -> None:
    """Check what every sampler takes."""
    require(is_count(steps), "steps", "be a whole number of at least 1", steps)
    require(0 <= churn < float("inf"), "churn", "be at least 0 and finite", churn, "1 is the SDE, 0 the ODE.")
