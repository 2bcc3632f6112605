"""How a log-weight rate is integrated over a step from its two ends.

A quadrature is a function (schedule, grid, extent) -> `Quadrature`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polyscore.registry import Registry
from polyscore.samplers.grids import Extent, TimeGrid
from polyscore.samplers.integrators import nodes
from polyscore.schedules import Schedule

# Noise over signal below which learned scores say nothing that their own error does not outweigh: a fifth of all that a
# constant error of the noise adds to log-weights would come from below, and next to nothing of what is to be corrected.
_TRUSTED = 0.01


class Quadrature(NamedTuple):
    """Per step, `(steps,)`, float64: how long the rates at its beginning and at its end count."""

    left: Tensor
    right: Tensor


def trapezoid(schedule: Schedule, grid: TimeGrid, extent: Extent) -> Quadrature:
    """Half the step for each end: g linear in t."""
    return Quadrature(0.5 * grid.lengths, 0.5 * grid.lengths)


def right_end(schedule: Schedule, grid: TimeGrid, extent: Extent) -> Quadrature:
    """The whole step for its end."""
    return Quadrature(torch.zeros_like(grid.lengths), grid.lengths)


def noise_products(schedule: Schedule, grid: TimeGrid, extent: Extent) -> Quadrature:
    """Interpolate products of noise, E = sigma^2 g / eta^2, linearly in sigma^2 between the ends of a step.

    With E = A + B sigma^2 the integral of (eta^2 / sigma^2) E is A * (change of log sigma^2 / alpha^2) + B * (integral
    of eta^2). A wrong noise leaves a constant E, counted exactly: the trapezoid would divide its square by the last
    sigma^2. Exact scores near the data leave E ~ sigma^2, which is exact as well. Of learned scores nothing is counted
    below a noise-to-signal ratio of a hundredth: what is left to correct there is smaller than their errors.
    """
    t, s = grid.times[:-1], grid.times[1:]
    r, measure = nodes(s, t)
    power = (schedule.diffusion(r) ** 2 * measure).sum(-1)
    stretch = 2 * (schedule.log_noise_to_signal(t) - schedule.log_noise_to_signal(s))
    early, late = schedule.sigma(t) ** 2, schedule.sigma(s) ** 2
    left = early * (power - late * stretch) / ((early - late) * schedule.diffusion(t) ** 2)
    right = late * (early * stretch - power) / ((early - late) * schedule.diffusion(s) ** 2)
    # Without a beginning E grows like alpha^2 / sigma^2, and its integral is E at the end; at the data E falls like
    # sigma^2, whose integral is that of eta^2 alone.
    pure, done = schedule.alpha(t) == 0, late == 0
    left = torch.where(done, power / schedule.diffusion(t) ** 2, torch.where(pure, 0.0, left))
    right = torch.where(done, 0.0, torch.where(pure, late / schedule.diffusion(s) ** 2, right))
    # Between neighbouring times all of this cancels; both rules agree there.
    plain = trapezoid(schedule, grid, extent)
    fine = (left >= 0) & (right >= 0) & (left + right < 100 * grid.lengths)
    trusted = torch.where(done, schedule.log_noise_to_signal(t), schedule.log_noise_to_signal(s))
    counted = extent.exact | (trusted >= math.log(_TRUSTED))
    return Quadrature(torch.where(fine, left, plain.left) * counted, torch.where(fine, right, plain.right) * counted)


def discrete(schedule: Schedule, grid: TimeGrid, extent: Extent) -> Quadrature:
    """Count no rate: weights are those of the discrete steps themselves (`polyscore.samplers.discrete`)."""
    return Quadrature(torch.zeros_like(grid.lengths), torch.zeros_like(grid.lengths))


QUADRATURES: Registry[Callable[[Schedule, TimeGrid, Extent], Quadrature]] = Registry(
    "quadrature", {"noise": noise_products, "trapezoid": trapezoid, "right": right_end, "discrete": discrete}
)
