"""Feynman-Kac correction: K particles a swarm carry log-weights d log w = g dt, and are resampled by them.

The weighted swarm follows the path prod_a P_{a,t}^{w_a} down to the composition itself (Skreta et al. 2025), so the
error of adding scores falls with K instead of staying; the mean weight estimates the normalising constant on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyscore.samplers.moves import Flipped
from polyscore.samplers.sampler import RESAMPLING, Sampler
from polyscore.schema import setting
from polyscore.smc import Resampler


@dataclass(frozen=True, repr=False)
class FeynmanKac(Sampler):
    """Denoise with weights and resampling.

    Args:
        particles: K, per swarm; 1 is plain denoising, bit for bit.
        steps: from noise to data; `docs/performance.md` shows what more of them buy.
        clip: bound on the log-weight *rate* |g|, or None. It trades correction for robustness to wrong scores.
        churn: nu / eta: 1 the SDE, 0 the ODE, whose resampled copies never part again.
        resampling: "systematic", "stratified", "multinomial" or "residual".
        threshold: resample a swarm when its ESS is at most this share of K; 1 is after every step.
        window: (low, high) times between which resampling may happen; weights are carried elsewhere.
        ancestry: return every step's parents as `run.ancestry`, not only the starting ancestors.
        quadrature: of g over a step: "noise" (products of noise linear in sigma^2), "trapezoid", or "right", its end;
            "discrete" weighs by the steps themselves, where densities are known: better samples from 10 or 20 steps,
            worse evidence.
        pooled: draw the outputs from all swarms together, each by its evidence, instead of one from each: what few
            particles leave of a bias is gone. Not with scores that are wrong: the swarm that strays furthest may hold
            all evidence.
        move, grid, integrator, start, kernels: as in `Sampler`.
    """

    particles: int = 16
    clip: float | None = None
    resampling: str | Resampler = setting("systematic", RESAMPLING)
    threshold: float = 1.0
    window: tuple[float, float] | None = None
    ancestry: bool = False
    quadrature: str | Callable[..., Any] = "noise"
    pooled: bool = False

    @classmethod
    def published(cls, particles: int = 16, steps: int = 500, clip: float | None = 15.0) -> FeynmanKac:
        """Return the published sampler to the letter: its start and sign, right-end weights, the rate clipped at 15."""
        return cls(
            particles=particles, steps=steps, clip=clip, move=Flipped(),
            grid="equal", integrator="euler", quadrature="right", start="noise",
        )  # fmt: skip
