"""Where in time a sampler steps, and what is known of the sources for choosing it.

`snr_grid` puts half of its steps evenly in the log noise-to-signal ratio lambda = log(sigma / alpha), so that no scale
is stepped over, and half where the noise is about as wide as the parts of the sources: a Gaussian of variance v turns
from noise into data like tanh(lambda - log(v) / 2). `equal_grid` has equal times, as version 0.2.0 did; `Timesteps` are
those at which a model was trained. A grid is a function (schedule, steps, extent) -> `TimeGrid`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions.components import components_of
from polyscore.errors import require
from polyscore.registry import Registry
from polyscore.schedules import SPACINGS, T_MAX, T_MIN, Schedule, Stepped

# Assumed of learned sources, standardised data: variances of its own width and of features a third as wide; and the
# deviation that shall be resolved, which sets the last noise to 0.001.
_UNKNOWN_VARIANCES, _UNKNOWN_NARROWEST = (1.0, 0.1), 0.1
_PURE = 150.0  # noise over signal at the start where alpha(1) = 0; VP's own is 152
_RESOLVED = 0.01  # noise at the end over the narrowest part: it adds 1e-4 of that part's variance
_MOST_VARIANCES = 64
_FINE = 4096


class TimeGrid(NamedTuple):
    """Times from noise to data, `(steps + 1,)`, and the lengths of the steps, `(steps,)`; float64.

    Attributes:
        to_data: whether the last step goes to t = 0 in all but name: points are handed out as they are, where others
            are divided by the last alpha.
    """

    times: Tensor
    lengths: Tensor
    to_data: bool = False


@dataclass(frozen=True)
class Extent:
    """What is known of the sources' sizes, in the coordinates in which they are sampled.

    Attributes:
        narrowest: the smallest deviation that the composition can have.
        size: the largest |mean| or deviation of any part.
        variances: of the parts along their axes, each once.
        earliest: the least time at which every member can be asked.
        known: whether the sizes of all members are; otherwise standardised data is assumed.
        exact: whether the scores are, none being learned.
    """

    narrowest: float
    size: float
    variances: tuple[float, ...]
    earliest: float
    known: bool
    exact: bool


class _Size(NamedTuple):
    """Of one source: variances along its axes, the smallest that a part of it may have, its largest |mean| or width."""

    variances: list[float]
    least: float
    reach: float


def extent_of(q: Composition) -> Extent:
    """Return what the factors say of their sizes, and the assumption for those that say nothing."""
    factors = dict(zip(q.conditions, q.factors, strict=True))
    found = {name: _size(factor, pair) for (name, factor), pair in zip(factors.items(), q.moments, strict=True)}
    sizes = {name: size for name, size in found.items() if size is not None}
    known = len(sizes) == len(found)
    variances = {} if known else dict.fromkeys(_UNKNOWN_VARIANCES)
    for size in sizes.values():
        variances |= dict.fromkeys(size.variances)
    precision = sum(w / sizes[name].least for name, w in q.exponents.items() if name in sizes and w > 0)
    narrowest = precision**-0.5 if precision else math.inf
    earliest = max(getattr(factor, "earliest", T_MIN) for factor in factors.values())
    return Extent(
        narrowest if known else min(narrowest, _UNKNOWN_NARROWEST),
        max([*(size.reach for size in sizes.values()), 0.0 if known else 1.0]),
        tuple(variances), earliest, known, q.is_closed_form,
    )  # fmt: skip


def _size(factor: object, moments: tuple[Tensor, Tensor] | None) -> _Size | None:
    """Return a factor's size by its components, else by its moments: of such the parts are guessed, in their units."""
    if (components := components_of(factor)) is not None:
        reach = max(components.means.abs().max().item(), components.variances.max().item() ** 0.5)
        return _Size(_distinct(components.variances), components.variances.min().item(), reach)
    if moments is None:
        return None
    mean, cov = moments
    values = cov if cov.ndim == 1 else torch.linalg.eigvalsh(cov)
    guessed = torch.cat([share * values for share in _UNKNOWN_VARIANCES])
    least = _UNKNOWN_NARROWEST**2 * values.min().item()
    return _Size(_distinct(guessed), least, max(mean.abs().max().item(), values.max().item() ** 0.5))


def _distinct(variances: Tensor) -> list[float]:
    """Return the different variances, or as many quantiles where there are very many."""
    values = variances.flatten().unique()
    if len(values) > _MOST_VARIANCES:
        values = values[torch.linspace(0, len(values) - 1, _MOST_VARIANCES).long()]
    return values.tolist()


def equal_grid(schedule: Schedule, steps: int, extent: Extent | None = None) -> TimeGrid:
    """Return equal times from 1 to 0, the ends clamped into (0, 1).

    Where alpha(1) = 0 the first time stands half a step before 1: at 1 itself the score says nothing of the data, and
    an error of a learned one would be multiplied by alpha_s / alpha_t without bound.
    """
    latest = 1 - 0.5 / steps if schedule.ends_in_pure_noise else T_MAX
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64).clamp(T_MIN, latest)
    return TimeGrid(times, torch.full_like(times[:-1], 1 / steps), to_data=True)


def snr_grid(schedule: Schedule, steps: int, extent: Extent) -> TimeGrid:
    """Return times from noise to `_RESOLVED` of the narrowest part: half evenly in lambda, half where parts appear."""
    first, last = _ends(schedule, extent)
    lines = torch.linspace(last, first, _FINE, dtype=torch.float64)
    centres = 0.5 * torch.tensor(extent.variances, dtype=torch.float64).log()
    parts = torch.tanh(lines[:, None] - centres).mean(-1)
    share = 0.5 * _unit(lines) + 0.5 * _unit(parts)
    wanted = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    times = schedule.time_at(_interpolate(wanted, share, lines))
    return TimeGrid(times, times[:-1] - times[1:])


def _ends(schedule: Schedule, extent: Extent) -> tuple[float, float]:
    """Return lambda at the first and at the last time."""
    latest = schedule.log_noise_to_signal(torch.tensor(T_MAX, dtype=torch.float64)).item()
    first = min(latest, math.log(max(_PURE, 50 * extent.size))) if schedule.ends_in_pure_noise else latest
    last = math.log(_RESOLVED * extent.narrowest)
    if extent.earliest > 0:
        last = max(last, schedule.log_noise_to_signal(torch.tensor(extent.earliest, dtype=torch.float64)).item())
    return first, min(last, first - 1)


def _unit(values: Tensor) -> Tensor:
    """Stretch rising values onto [0, 1]."""
    return (values - values[0]) / (values[-1] - values[0])


def _interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Read the line through (xs, ys), xs rising, at x."""
    right = torch.searchsorted(xs, x.contiguous()).clamp(1, len(xs) - 1)
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


@dataclass(frozen=True)
class Timesteps:
    """The timesteps of a model's own, from the noise to the data itself.

    Args:
        spacing: which of them: "leading", "trailing" or "linspace", as schedulers of diffusers count them; by default
            what the schedule says.
    """

    spacing: str | None = None

    def __post_init__(self) -> None:
        known = self.spacing is None or self.spacing in SPACINGS
        require(known, "spacing", f"be one of {', '.join(SPACINGS)}", self.spacing,
                "Leave it out for the schedule's own.")  # fmt: skip

    def __call__(self, schedule: Schedule, steps: int, extent: Extent | None = None) -> TimeGrid:
        """Return the times of so many steps."""
        require(isinstance(schedule, Stepped), "the grid 'timesteps'", "go with a model that has timesteps of its own",
                schedule, "Use grid='snr'.")  # fmt: skip
        assert isinstance(schedule, Stepped)
        times = schedule.own_times(steps, self.spacing or schedule.spacing)
        return TimeGrid(times, times[:-1] - times[1:], to_data=True)


GRIDS: Registry[Callable[..., TimeGrid] | type] = Registry(
    "grid", {"snr": snr_grid, "equal": equal_grid, "timesteps": Timesteps}
)
