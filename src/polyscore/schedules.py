"""Noise schedules: `x_t = alpha_t x_0 + sigma_t z`, the marginal of `dx = drift(t) x dt + diffusion(t) dW`.

The law that binds the two descriptions, tested for every class here:

    alpha' = drift * alpha,        (sigma^2)' = 2 * drift * sigma^2 + diffusion^2.

Time runs from 0 (data) to 1 (noise). Every method takes a tensor of times and returns one of the same shape and dtype.

A schedule of your own is a frozen dataclass with the four methods of `Schedule`, numbers as its fields; registered
under a kind, families in YAML and model files can hold it:

    @SCHEDULES.register("Sigmoid")
    @dataclass(frozen=True)
    class Sigmoid(Schedule): ...
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.errors import ArgumentError, is_count, is_finite, nearest, require, shorten
from polyscore.registry import Registry

# The ends are singular for learned models (sigma = 0) and for schedules with alpha(1) = 0 (infinite drift); samplers
# and models evaluate nothing outside this range.
T_MIN, T_MAX = 1e-5, 1.0 - 1e-5
_MOST_TIMESTEPS = 1_000_000


@dataclass(frozen=True)
class Schedule(ABC):
    """A noise schedule. Two are compatible exactly when they compare equal.

    The four methods must obey the two laws above, in float64 to a hundredth (`check_consistent`), on the open interval
    (0, 1); log(sigma / alpha) must rise with t.
    """

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Signal scale, 1 at t = 0, falling; 0 at t = 1 at the least."""

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """Noise scale, 0 at t = 0, positive after it."""

    @abstractmethod
    def drift(self, t: Tensor) -> Tensor:
        """Coefficient of `u_t(x) = drift(t) x`; minus infinity at t = 1 where alpha(1) = 0."""

    @abstractmethod
    def diffusion(self, t: Tensor) -> Tensor:
        """The SDE's diffusion eta_t, at least 0."""

    def log_noise_to_signal(self, t: Tensor) -> Tensor:
        """Return lambda = log(sigma / alpha); it rises with t."""
        return self.sigma(t).log() - self.alpha(t).log()

    def time_at(self, value: Tensor) -> Tensor:
        """Return the times at which `log_noise_to_signal` has these values, by bisection in logit time."""
        low, high = torch.full_like(value, -60.0), torch.full_like(value, 36.0)
        for _ in range(64):
            middle = 0.5 * (low + high)
            below = self.log_noise_to_signal(torch.sigmoid(middle)) < value
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return torch.sigmoid(0.5 * (low + high))

    @property
    def ends_in_pure_noise(self) -> bool:
        """Whether alpha(1) = 0, so that the drift is infinite there and Euler steps cannot start."""
        return bool(self.alpha(torch.ones((), dtype=torch.float64)) < 1e-6)

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-ready description; `from_dict` is its inverse where the kind is registered."""
        names = [name for name, kind in SCHEDULES.items() if kind is type(self)]
        return {"kind": names[0] if names else type(self).__name__, **dataclasses.asdict(self)}


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
        require(is_finite(value), f"{type(schedule).__name__}'s {name}", "be a finite number", shorten(value))
        object.__setattr__(schedule, name, float(value))


@dataclass(frozen=True)
class VP(_VariancePreserving):
    """Variance-preserving SDE with beta(t) = beta_min + (beta_max - beta_min) t (Song et al. 2021)."""

    beta_min: float = 0.1
    beta_max: float = 20.0

    def __post_init__(self) -> None:
        _numbers(self, "beta_min", "beta_max")
        require(0 < self.beta_min <= self.beta_max, "VP's betas", "satisfy 0 < beta_min <= beta_max",
                (self.beta_min, self.beta_max))  # fmt: skip

    def beta(self, t: Tensor) -> Tensor:
        """Noise rate beta(t)."""
        return self.beta_min + (self.beta_max - self.beta_min) * t

    def log_alpha(self, t: Tensor) -> Tensor:
        """-1/2 of the integral of beta."""
        return -0.5 * (self.beta_min * t + 0.5 * (self.beta_max - self.beta_min) * t * t)

    def drift(self, t: Tensor) -> Tensor:
        return -0.5 * self.beta(t)


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
        require(isinstance(self.zero_snr, bool), "DDPM's zero_snr", "be True or False", shorten(self.zero_snr))
        least = 2 if self.zero_snr else 1
        require(
            is_count(self.timesteps) and least <= self.timesteps <= _MOST_TIMESTEPS,
            "DDPM's timesteps",
            f"be a whole number from {least} to {_MOST_TIMESTEPS}",
            shorten(self.timesteps),
        )
        require(0 < self.beta_start <= self.beta_end < 1, "DDPM's betas", "satisfy 0 < beta_start <= beta_end < 1",
                (self.beta_start, self.beta_end))  # fmt: skip

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


@dataclass(frozen=True)
class Cosine(_VariancePreserving):
    """alpha = cos(theta_t) / cos(theta_0) with theta_t = (pi / 2) (t + offset) / (1 + offset).

    An offset of 0.008 is that of Nichol & Dhariwal (2021): noise then grows from the first step on.
    """

    offset: float = 0.0

    def __post_init__(self) -> None:
        _numbers(self, "offset")
        require(0 <= self.offset <= 1, "Cosine's offset", "lie between 0 and 1", self.offset)

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


def check_consistent(schedule: Schedule) -> None:
    """Raise `ArgumentError` where a schedule's marginal and its SDE are not one: (alpha, sigma) and (drift, diffusion).

    alpha' = drift alpha and (sigma^2)' = 2 drift sigma^2 + diffusion^2, by central differences at a few times. Those of
    this module are tested once for all.
    """
    if type(schedule).__module__ == __name__:
        return
    t = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    step = 1e-5

    def slope(f: Callable[[Tensor], Tensor]) -> Tensor:
        return (f(t + step) - f(t - step)) / (2 * step)

    drift, sigma2 = schedule.drift(t), schedule.sigma(t) ** 2
    pairs = {
        "drift": (drift, slope(schedule.alpha) / schedule.alpha(t)),
        "diffusion^2": (schedule.diffusion(t) ** 2, slope(lambda r: schedule.sigma(r) ** 2) - 2 * drift * sigma2),
    }
    for name, (given, implied) in pairs.items():
        good = torch.isclose(given.double(), implied.double(), rtol=1e-2, atol=1e-6)
        require(good.all(), f"{name} of {type(schedule).__name__}", "follow from its alpha and sigma",
                f"{given.tolist()} at t = {t.tolist()}, where they give {[float(f'{v:.4g}') for v in implied]}",
                "drift = alpha' / alpha, diffusion^2 = (sigma^2)' - 2 drift sigma^2.")  # fmt: skip


SCHEDULES: Registry[type[Schedule]] = Registry(
    "a schedule's kind", {kind.__name__: kind for kind in (VP, DDPM, Cosine, LinearFlow)},
    hint="Register one of your own: polyscore.schedules.SCHEDULES.register(name).",
)  # fmt: skip


def from_dict(description: dict[str, object]) -> Schedule:
    """Return the schedule that `to_dict` described."""
    require(isinstance(description, dict), "a schedule", "be described by a mapping", shorten(description))
    fields = dict(description)
    kind = SCHEDULES[fields.pop("kind", None)]  # type: ignore[index]
    names = [field.name for field in dataclasses.fields(kind)]
    for name in fields:
        if name not in names:
            rule = f"{kind.__name__}'s options must be among {', '.join(names) or 'none'}"
            raise ArgumentError(f"{rule}; got {shorten(name)}.{nearest(name, names) or ' Leave it out.'}")
    return kind(**fields)
