"""Schedules of models that were trained at timesteps of their own, and the times at which these are sampled.

A model that knows T timesteps is asked at one of them, or between two: timestep i stands at t = (i + 1) / T, so t = 0
is the data and t = 1 the last timestep. `Tabulated` holds the signal at every timestep, as schedulers of diffusers do;
`Flow` is a straight path, whose own times are shifted towards the noise.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from polyscore.errors import is_count, is_finite, require, shorten
from polyscore.schedules.kinds import LinearFlow
from polyscore.schedules.schedule import SCHEDULES, Schedule

SPACINGS = ("leading", "trailing", "linspace")
_MOST_TIMESTEPS = 100_000
_SNAP = 1e-3  # of a timestep: times in float32 are off by less, and mean the timestep itself
_LATEST = 1 - 1e-9  # where alpha(1) = 0 drift and diffusion are infinite at 1, and finite numbers are wanted


def signal(alpha: Tensor) -> Tensor:
    """Return the alpha by which a score (alpha X - x) / sigma^2 holds the clean point X: 1 where there is none.

    At alpha = 0 the score is -x / sigma^2 whatever the data, and a step from there goes to what the model says of X:
    for want of another place the score of a model holds it as if alpha were 1, and integrators read it so.
    """
    return torch.where(alpha == 0, 1.0, alpha)


class Stepped(Schedule):
    """A schedule with timesteps of a model's own.

    Attributes:
        timesteps: how many there are, T.
        spacing: which of them a run of fewer steps visits, unless it says so itself: one of `SPACINGS`.
    """

    timesteps: int
    spacing: str

    @property
    def earliest(self) -> float:
        """The least time at which the model can be asked."""
        return 1 / self.timesteps

    def asked(self, t: Tensor) -> Tensor:
        """Return the times, float64, at which a model is asked for `t`: none before the first timestep."""
        return t.double().clamp(self.earliest, 1)

    @abstractmethod
    def timestep(self, asked: Tensor) -> Tensor:
        """Return what the model is told at these times."""

    @abstractmethod
    def own_times(self, steps: int, spacing: str) -> Tensor:
        """Return the times of a run of so many steps, from noise to data, `(steps + 1,)`, float64; the last is 0."""


@SCHEDULES.register("Tabulated")
@dataclass(frozen=True, repr=False)
class Tabulated(Stepped):
    """alpha at every timestep, alpha^2 + sigma^2 = 1, and a smooth curve through it.

    The curve is a monotone cubic (Fritsch & Carlson 1980) of theta^2 with alpha = cos theta, sigma = sin theta: near
    the data theta^2 ~ sigma^2 grows like t, near pure noise it goes to (pi / 2)^2; neither end is singular.

    Args:
        alphas: square roots of the cumulative products, falling from below 1; the last may be 0 (zero terminal SNR).
        spacing: see `Stepped`. It does not tell one schedule from another, nor does the next:
        offset: what is added to the timesteps of "leading".
    """

    alphas: tuple[float, ...] = (0.999, 0.9, 0.5, 0.1)
    spacing: str = field(default="trailing", compare=False)
    offset: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "alphas", tuple(float(a) for a in self.alphas))
        count, signal = len(self.alphas), torch.tensor(self.alphas, dtype=torch.float64)
        require(2 <= count <= _MOST_TIMESTEPS, "Tabulated's timesteps", f"be from 2 to {_MOST_TIMESTEPS}", count,
                "Pass as many alphas as the model has timesteps.")  # fmt: skip
        falling = bool((signal.diff() < 0).all()) and self.alphas[0] < 1 and self.alphas[-1] >= 0
        require(falling, "Tabulated's alphas", "fall from below 1, to 0 at the least", shorten(self.alphas),
                "Pass them from data to noise: scheduler.alphas_cumprod ** 0.5.")  # fmt: skip
        require(self.spacing in SPACINGS, "Tabulated's spacing", f"be one of {', '.join(SPACINGS)}", self.spacing,
                "Leave it out for trailing.")  # fmt: skip
        require(self.offset in range(count), "Tabulated's offset", "be a timestep", shorten(self.offset),
                "Leave it out for 0.")  # fmt: skip
        theta2 = torch.cat([signal.new_zeros(1), torch.atan2((1 - signal**2).sqrt(), signal) ** 2])
        object.__setattr__(self, "_curve", torch.stack([theta2[:-1], theta2[1:], *_slopes(theta2)]))
        object.__setattr__(self, "_copies", {})

    @property
    def timesteps(self) -> int:  # type: ignore[override]
        """T."""
        return len(self.alphas)

    def alpha(self, t: Tensor) -> Tensor:
        # sin(pi/2 - theta), not cos(theta): 0 at t = 1 where the table says so
        return torch.sin(0.5 * torch.pi - self._theta2(t)[0].sqrt()).clamp_min(0).to(t.dtype)

    def sigma(self, t: Tensor) -> Tensor:
        return torch.sin(self._theta2(t)[0].sqrt()).to(t.dtype)

    def drift(self, t: Tensor) -> Tensor:
        return (-0.5 * self._rate(t)).to(t.dtype)

    def diffusion(self, t: Tensor) -> Tensor:
        return self._rate(t).sqrt().to(t.dtype)

    def _rate(self, t: Tensor) -> Tensor:
        """-2 alpha' / alpha = (tan theta / theta) (theta^2)'."""
        theta2, slope = self._theta2(t.double().clamp_max(_LATEST))
        theta = theta2.clamp_min(1e-24).sqrt()
        return torch.tan(theta) / theta * slope

    def _theta2(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """theta^2 and its derivative, float64."""
        place = t.double() * self.timesteps
        left = place.detach().floor().clamp(0, self.timesteps - 1)
        # Indexing by a tensor without axes would ask the device for its value, and wait.
        low, high, rise, fall = self._on(t.device).index_select(1, left.long().reshape(-1)).reshape(4, *t.shape)
        u = place - left
        v, gap = 1 - u, high - low
        value = low * v**2 * (1 + 2 * u) + high * u**2 * (1 + 2 * v) + u * v * (rise * v - fall * u)
        slope = 6 * u * v * gap + rise * v * (1 - 3 * u) + fall * u * (3 * u - 2)
        return value.clamp_min(0), (slope * self.timesteps).clamp_min(0)

    def _on(self, device: torch.device) -> Tensor:
        """The curve's coefficients on a device; copied there once."""
        copies: dict[torch.device, Tensor] = self._copies  # type: ignore[attr-defined]
        if device not in copies:
            copies[device] = self._curve.to(device)  # type: ignore[attr-defined]
        return copies[device]

    def asked(self, t: Tensor) -> Tensor:
        """Times within a thousandth of a timestep mean the timestep."""
        place = super().asked(t) * self.timesteps
        near = place.round()
        return torch.where((place - near).abs() < _SNAP, near, place) / self.timesteps

    def timestep(self, asked: Tensor) -> Tensor:
        """i = t T - 1, whole at the timesteps and between two of them elsewhere."""
        place = asked * self.timesteps
        near = place.round()
        return torch.where((place - near).abs() < _SNAP, near, place) - 1

    def own_times(self, steps: int, spacing: str) -> Tensor:
        """As schedulers of diffusers count them, half timesteps rounded as NumPy does; every run ends in the data."""
        total = self.timesteps
        require(steps <= total, "steps on a model's own timesteps", f"be at most {total}", steps, "Use fewer steps.")
        if spacing == "leading":
            index = np.minimum(np.arange(steps) * (total // steps) + self.offset, total - 1)[::-1]
        elif spacing == "trailing":
            index = np.arange(total, 0, -total / steps)[:steps].round() - 1
        else:
            index = np.linspace(0, total - 1, steps).round()[::-1]
        return torch.cat([torch.from_numpy((index + 1) / total), torch.zeros(1, dtype=torch.float64)])

    def __repr__(self) -> str:
        first, last = self.alphas[0], self.alphas[-1]
        return f"Tabulated({self.timesteps} timesteps, alpha from {first:.6g} to {last:.6g})"


@SCHEDULES.register("Flow")
@dataclass(frozen=True)
class Flow(LinearFlow, Stepped):
    """alpha = 1 - t, sigma = t, with a model that is told t T: flow matching.

    Args:
        shift: its own times are shift r / (1 + (shift - 1) r) for even r: more than 1 spends steps on the noise. It is
            no part of the path, so models of different shifts compose.
    """

    timesteps: int = 1000
    shift: float = field(default=1.0, compare=False)
    spacing: str = field(default="trailing", compare=False)

    def __post_init__(self) -> None:
        good = is_count(self.timesteps) and self.timesteps <= _MOST_TIMESTEPS
        require(good, "Flow's timesteps", f"be a whole number from 1 to {_MOST_TIMESTEPS}", shorten(self.timesteps),
                "Leave it out for 1000.")  # fmt: skip
        require(is_finite(self.shift) and self.shift > 0, "Flow's shift", "be positive", shorten(self.shift),
                "Leave it out for 1.")  # fmt: skip
        require(self.spacing in SPACINGS, "Flow's spacing", f"be one of {', '.join(SPACINGS)}", self.spacing,
                "Leave it out for trailing.")  # fmt: skip

    def drift(self, t: Tensor) -> Tensor:
        return super().drift(t.double().clamp_max(_LATEST)).to(t.dtype)

    def diffusion(self, t: Tensor) -> Tensor:
        return super().diffusion(t.double().clamp_max(_LATEST)).to(t.dtype)

    def timestep(self, asked: Tensor) -> Tensor:
        """T sigma."""
        return asked * self.timesteps

    def own_times(self, steps: int, spacing: str) -> Tensor:
        """Even from 1 to 1 / steps ("linspace": to 1 / T), shifted; "leading" is as "trailing": both begin in noise."""
        last = 1 / self.timesteps if spacing == "linspace" else 1 / steps
        even = torch.linspace(1, last, steps, dtype=torch.float64) if steps > 1 else torch.ones(1, dtype=torch.float64)
        return torch.cat([self.shift * even / (1 + (self.shift - 1) * even), even.new_zeros(1)])


def _slopes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes at both ends of every interval, per interval, that keep the cubics monotone."""
    gaps = values.diff()
    inner = 2 * gaps[:-1] * gaps[1:] / (gaps[:-1] + gaps[1:])
    first, last = (_end_slope(*pair) for pair in ((gaps[0], gaps[1]), (gaps[-1], gaps[-2])))
    slopes = torch.cat([first[None], inner, last[None]])
    return slopes[:-1], slopes[1:]


def _end_slope(near: Tensor, next_one: Tensor) -> Tensor:
    """The parabola's slope at an end, held within what is monotone."""
    return torch.clamp(1.5 * near - 0.5 * next_one, 0.1 * near, 3 * near)
