"""How models are asked: errors that name what was passed, and answers that become scores at the door.

With x = alpha x_0 + sigma eps, drift and eta the schedule's:

| prediction | eps in terms of it |
|---|---|
| eps | eps |
| x0 | (x - alpha x0) / sigma |
| v = alpha eps - sigma x0 | (sigma x + alpha v) / (alpha^2 + sigma^2) |
| velocity = dx/dt of the flow | (velocity - drift x) 2 sigma / eta^2 |
| score | -sigma score |

and score = -eps / sigma.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from polyscore.errors import CompositionError, PolyscoreError
from polyscore.schedules import Schedule

PREDICTIONS = ("eps", "x0", "v", "velocity", "score")


Level = tuple[Tensor, Tensor] | tuple[float, float]  # alpha and sigma


class ModelError(CompositionError):
    """A model that fails or answers in another shape; its own exception, if any, is the cause."""


@contextmanager
def asking(message: Callable[[str], str]) -> Iterator[None]:
    """Turn what a model raises into a `ModelError`; errors of ours and of memory pass.

    Args:
        message: what to say, given the kind and the words of what was raised.
    """
    try:
        yield
    except (PolyscoreError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(message(f"{type(error).__name__}: {str(error)[:500]}")) from error


def to_score(
    prediction: str, value: Tensor, x: Tensor, t: Tensor, schedule: Schedule, level: Level | None = None
) -> Tensor:
    """Turn a model's output into a score under `schedule`; `t` broadcasts against x.

    Args:
        level: alpha and sigma where they are known, or those of a discrete timestep: not quite the schedule's at `t`.
    """
    if prediction == "score":
        return value.clone()  # a model may answer in the same memory every time
    if prediction == "velocity":
        return (schedule.drift(t) * x - value) * 2 / schedule.diffusion(t) ** 2
    sigma = level[1] if level else schedule.sigma(t)
    if prediction == "eps":
        return value / -sigma
    alpha = level[0] if level else schedule.alpha(t)
    if prediction == "x0":
        return (alpha * value - x) / sigma**2
    return -(x + alpha / sigma * value) / (alpha**2 + sigma**2)  # v


def time_like(t: Tensor | float, x: Tensor) -> Tensor:
    """Return times in the dtype and on the device of x."""
    return torch.as_tensor(t, dtype=x.dtype, device=x.device)
