"""The schedules that there are: variance-preserving ones, and the straight paths of flow matching."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.errors import is_count, is_finite, require, shorten
from polyscore.schedules.schedule import SCHEDULES, Schedule

_MOST_TIMESTEPS = 1_000_000


class _VariancePreserving(Schedule):
    """alpha^2 + sigma^2 = 1, from log alpha and its derivative; then diffusion^2 = -2 drift."""

    @abstractmethod
    def log_alpha(self, t: Tensor) -> Tensor:
        """Logarithm of the signal scale."""

    def alpha(self, t: Tensor) -> Tensor:
        return self.log_alpha(t).exp()

    def sigma(self, t: Tensor) -> Tensor:
        return (-torch.expm1(2 * self.log_alpha(t))).sqrt()

    def diffusion(self, t: Tensor) -> Tensor:
        return (-2 * self.drift(t)).sqrt()


def _numbers(schedule: Schedule, *names: str) -> None:
    """Check that fields are finite numbers, and keep them as Python's floats: they go into JSON."""
    for name in names:
        value = getattr(schedule, name)
        require(is_finite(value), f"{type(schedule).__name__}'s {name}", "be a finite number", shorten(value),
                "Leave it out for the default.")  # fmt: skip
        object.__setattr__(schedule, name, float(value))


@SCHEDULES.register("VP")
@dataclass(frozen=True)
class VP(_VariancePreserving):
    """Variance-preserving SDE with beta(t) = beta_min + (beta_max - beta_min) t (Song et al. 2021)."""

    beta_min: float = 0.1
    beta_max: float = 20.0

    def __post_init__(self) -> None:
        _numbers(self, "beta_min", "beta_max")
        require(0 < self.beta_min <= self.beta_max, "VP's betas", "satisfy 0 < beta_min <= beta_max",
                (self.beta_min, self.beta_max), "Leave them out for 0.1 and 20.")  # fmt: skip

    def beta(self, t: Tensor) -> Tensor:
        """Noise rate beta(t)."""
        return self.beta_min + (self.beta_max - self.beta_min) * t

    def log_alpha(self, t: Tensor) -> Tensor:
        """-1/2 of the integral of beta."""
        return -0.5 * (self.beta_min * t + 0.5 * (self.beta_max - self.beta_min) * t * t)

    def drift(self, t: Tensor) -> Tensor:
        return -0.5 * self.beta(t)


@SCHEDULES.register("DDPM")
@dataclass(frozen=True)
class DDPM(_VariancePreserving):
    """The discrete DDPM schedule and its continuous limit, with optional zero-terminal-SNR rescaling.

    The limit of linear betas over many timesteps is VP with beta_max = timesteps * beta_end; the rescaling of Lin et
    al. (2024) shifts and stretches alpha so that alpha(1) = 0 exactly:  alpha -> (alpha - alpha(1)) / (1 - alpha(1)).
    """

    timesteps: int = 1000
    beta_start: float = 1e-4
    beta_end: float = 0.02
    zero_snr: bool = False

    def __post_init__(self) -> None:
        _numbers(self, "beta_start", "beta_end")
        require(isinstance(self.zero_snr, bool), "DDPM's zero_snr", "be True or False", shorten(self.zero_snr),
                "Leave it out for False.")  # fmt: skip
        least = 2 if self.zero_snr else 1
        require(
            is_count(self.timesteps) and least <= self.timesteps <= _MOST_TIMESTEPS,
            "DDPM's timesteps",
            f"be a whole number from {least} to {_MOST_TIMESTEPS}",
            shorten(self.timesteps),
            "Leave it out for 1000.",
        )
        require(0 < self.beta_start <= self.beta_end < 1, "DDPM's betas", "satisfy 0 < beta_start <= beta_end < 1",
                (self.beta_start, self.beta_end), "Leave them out for the defaults.")  # fmt: skip

    @property
    def _vp(self) -> VP:
        return VP(self.timesteps * self.beta_start, self.timesteps * self.beta_end)

    @property
    def _floor(self) -> float:
        """The alpha(1) that the rescaling takes away; 0 where there is nothing to take."""
        return self._vp.alpha(torch.ones((), dtype=torch.float64)).item() if self.zero_snr else 0.0

    def log_alpha(self, t: Tensor) -> Tensor:
        """Log of the rescaled alpha; -inf at t = 1 under zero terminal SNR."""
        if self._floor == 0:
            return self._vp.log_alpha(t)
        # Two forms of one number, each precise where the other cancels: near t = 0, and near t = 1.
        log_vp, floor = self._vp.log_alpha(t), self._floor
        early = torch.log1p(torch.expm1(log_vp) / (1 - floor))
        late = math.log(floor / (1 - floor)) + torch.expm1(log_vp - math.log(floor)).clamp_min(0).log()
        return torch.where(t < 0.5, early, late)

    def drift(self, t: Tensor) -> Tensor:
        vp = self._vp.drift(t)
        if self._floor == 0:
            return vp
        # alpha' / alpha with alpha ~ (vp - floor):  vp' / (vp - floor) = drift_vp / (1 - floor / vp)
        return vp / (-torch.expm1(math.log(self._floor) - self._vp.log_alpha(t))).clamp_min(0)

    def table(self) -> Tensor:
        """Return the discrete alphas (square roots of the cumulative products), `(timesteps,)`, float64."""
        betas = torch.linspace(self.beta_start, self.beta_end, self.timesteps, dtype=torch.float64)
        alphas = torch.cumprod(1 - betas, 0).sqrt()
        if not self.zero_snr:
            return alphas
        first, last = alphas[0], alphas[-1]
        return (alphas - last) * first / (first - last)

    def timestep(self, t: Tensor) -> Tensor:
        """Return the index of the discrete timestep at time `t`: index i stands at t = (i + 1) / timesteps."""
        return (t * self.timesteps - 1).round().clamp(0, self.timesteps - 1).long()


@SCHEDULES.register("Cosine")
@dataclass(frozen=True)
class Cosine(_VariancePreserving):
    """alpha = cos(theta_t) / cos(theta_0) with theta_t = (pi / 2) (t + offset) / (1 + offset).

    An offset of 0.008 is that of Nichol & Dhariwal (2021): noise then grows from the first step on.
    """

    offset: float = 0.0

    def __post_init__(self) -> None:
        _numbers(self, "offset")
        require(0 <= self.offset <= 1, "Cosine's offset", "lie between 0 and 1", self.offset, "Leave it out for 0.008.")

    @property
    def _pace(self) -> float:
        """The derivative of theta."""
        return 0.5 * math.pi / (1 + self.offset)

    def log_alpha(self, t: Tensor) -> Tensor:
        """Log-cosine."""
        return self.alpha(t).log()

    def alpha(self, t: Tensor) -> Tensor:
        # sin(pi/2 - theta), not cos(theta): exactly 0 at t = 1 and full relative precision near it
        return torch.sin(self._pace * (1 - t)) / math.cos(self._pace * self.offset)

    def sigma(self, t: Tensor) -> Tensor:
        if self.offset == 0:
            return torch.sin(self._pace * t)
        # cos^2 a - cos^2 b = sin(b - a) sin(b + a): nothing cancels near t = 0
        squared = torch.sin(self._pace * t) * torch.sin(self._pace * (t + 2 * self.offset))
        return squared.sqrt() / math.cos(self._pace * self.offset)

    def drift(self, t: Tensor) -> Tensor:
        return -self._pace * torch.tan(self._pace * (t + self.offset))


@SCHEDULES.register("LinearFlow")
@dataclass(frozen=True)
class LinearFlow(Schedule):
    """alpha = 1 - t, sigma = t: rectified flow and flow matching with straight paths."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t

    def sigma(self, t: Tensor) -> Tensor:
        return t

    def drift(self, t: Tensor) -> Tensor:
        return -1 / (1 - t)

    def diffusion(self, t: Tensor) -> Tensor:
        return (2 * t / (1 - t)).sqrt()
