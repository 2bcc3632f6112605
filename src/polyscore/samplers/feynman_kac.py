"""Feynman-Kac correction: K particles a swarm carry log-weights d log w = g dt, and are resampled by them.

The weighted swarm follows the path prod_a P_{a,t}^{w_a} down to the composition itself (Skreta et al. 2025), so the
error of adding scores falls with K instead of staying; the mean weight estimates the normalising constant on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyscore.algebra import Composition
from polyscore.errors import is_count, is_number, require
from polyscore.notices import warn
from polyscore.samplers.moves import QUADRATURES, Balanced, Move, Published
from polyscore.samplers.plan import Settings
from polyscore.samplers.sampler import Sampler, check_common
from polyscore.smc import Resampler, resampler


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
        move: how W enters the drift.
        ancestry: return every step's parents as `run.ancestry`, not only the starting ancestors.
        grid: "snr" (in log-SNR, denser where the sources' parts appear) or "equal" times.
        integrator: "multistep" (second order), "frozen" (first order, DDIM to DDPM) or "euler", which the paper's move
            takes in any case where W is not 1, and nothing where alpha(1) = 0: that is "frozen".
        quadrature: of g over a step: "noise" (products of noise linear in sigma^2), "trapezoid", or "right", its end.
        start: "matched" to the sources' means and covariances, or "noise", as if no signal were left.
    """

    particles: int = 16
    steps: int = 100
    clip: float | None = None
    churn: float = 1.0
    resampling: str | Resampler = "systematic"
    threshold: float = 1.0
    window: tuple[float, float] | None = None
    move: Move = Balanced()
    ancestry: bool = False
    grid: str = "snr"
    integrator: str = "multistep"
    quadrature: str = "noise"
    start: str = "matched"

    def __post_init__(self) -> None:
        check_common(self.steps, self.churn, self.move, self.grid, self.integrator, self.start)
        require(is_count(self.particles), "particles (K)",
                "be a whole number of at least 1", self.particles)  # fmt: skip
        require(self.clip is None or (is_number(self.clip) and 0 < self.clip < 1e30), "clip",
                "be positive and below 10^30, or None", self.clip)  # fmt: skip
        require(is_number(self.threshold) and 0 <= self.threshold <= 1, "threshold", "be a share of K in [0, 1]",
                self.threshold)  # fmt: skip
        require(self.window is None or _is_window(self.window), "window",
                "be (low, high) with 0 <= low < high <= 1", self.window)  # fmt: skip
        require(isinstance(self.quadrature, str) and self.quadrature in QUADRATURES, "quadrature",
                f"be one of {', '.join(QUADRATURES)}", repr(self.quadrature))  # fmt: skip
        resampler(self.resampling)

    @classmethod
    def published(cls, particles: int = 16, steps: int = 500, clip: float | None = 15.0) -> FeynmanKac:
        """Return the paper's sampler to the letter: its start, its sign, right-end weights, the rate clipped at 15."""
        return cls(
            particles=particles, steps=steps, clip=clip, move=Published(),
            grid="equal", integrator="euler", quadrature="right", start="noise",
        )  # fmt: skip

    def settings(self, q: Composition) -> Settings:
        """Return settings with weights and resampling; warns where the path has no target."""
        _warn_of_improper_path(q)
        return Settings(
            self.particles, self.steps, self.churn, 1, self.move, resampler(self.resampling),
            self.clip, self.threshold, self.window, self.ancestry,
            self.grid, self.integrator, self.quadrature, self.start,
        )  # fmt: skip


def _is_window(window: object) -> bool:
    """Whether it is (low, high) within [0, 1]."""
    if not isinstance(window, tuple | list) or len(window) != 2 or not all(map(is_number, window)):
        return False
    return 0 <= window[0] < window[1] <= 1


def _warn_of_improper_path(q: Composition) -> None:
    """Warn where the noised composition cannot be normalised though both its ends can: weights have no target there."""
    if q.mixtures is None or min(q.exponents.values(), default=1) > 0 or q.total <= 0 or q.validity().proper is False:
        return
    t, answer = q.path_validity()
    if answer.proper is False:
        warn(
            f"the path of {q!r} is improper at t = {t:.3g} ({answer.reason}): Feynman-Kac weights have no target "
            "there and the result depends on K. Compare several K before believing it."
        )
