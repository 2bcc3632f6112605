"""Noise schedules: `x_t = alpha_t x_0 + sigma_t z`, the marginal of `dx = drift(t) x dt + diffusion(t) dW`.

The law that binds the two descriptions, tested for every class of the room:

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
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.errors import require, require_known, shorten
from polyscore.registry import Registry

# The ends are singular for learned models (sigma = 0) and for schedules with alpha(1) = 0 (infinite drift); samplers
# and models evaluate nothing outside this range.
T_MIN, T_MAX = 1e-5, 1.0 - 1e-5


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
        return bool(self.alpha(torch.ones((), dtype=torch.float64, device="cpu")) < 1e-6)

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-ready description; `from_dict` is its inverse where the kind is registered."""
        names = [name for name, kind in SCHEDULES.items() if kind is type(self)]
        return {"kind": names[0] if names else type(self).__name__, **dataclasses.asdict(self)}


SCHEDULES: Registry[type[Schedule]] = Registry(
    "a schedule's kind", hint="Register one of your own: polyscore.schedules.SCHEDULES.register(name)."
)


def from_dict(description: dict[str, object]) -> Schedule:
    """Return the schedule that `to_dict` described."""
    require(isinstance(description, dict), "a schedule", "be described by a mapping", shorten(description),
            "Write {kind: vp}.")  # fmt: skip
    fields = dict(description)
    kind = SCHEDULES[fields.pop("kind", None)]  # type: ignore[index]
    names = [field.name for field in dataclasses.fields(kind)]
    for name in fields:
        require_known(name, names, f"an option of {kind.__name__}", "Leave it out.")
    return kind(**fields)


def check_consistent(schedule: Schedule) -> None:
    """Raise `ArgumentError` where a schedule's marginal and its SDE are not one: (alpha, sigma) and (drift, diffusion).

    alpha' = drift alpha and (sigma^2)' = 2 drift sigma^2 + diffusion^2, by central differences at a few times. Those of
    this room are tested once for all.
    """
    if type(schedule).__module__.startswith("polyscore.schedules."):
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
