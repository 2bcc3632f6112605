"""What is asked of a run before its first random number: that it can end well, or a warning that says why not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import require
from polyscore.limits import require_memory, show_bytes
from polyscore.notices import warn
from polyscore.samplers.grids import Extent
from polyscore.samplers.moves import Balanced, Move, Steps
from polyscore.samplers.starts import Start
from polyscore.schedules import Schedule

if TYPE_CHECKING:
    from polyscore.samplers.plan import Settings

_SIGNAL = 0.05  # of alpha(1) that may be left where nothing is known of the sources
_WRONG_VARIANCE = 0.1
_MOST_DOUBLINGS, _MOST_STEPS = 12, 50_000


def check_end(q: Composition, move: Move) -> None:
    """Check that the schedule's noise end suits the move."""
    require(not q.schedule.ends_in_pure_noise or q.total == 1 or isinstance(move, Balanced),
            "a schedule with alpha(1) = 0", "go with the balanced move when W is not 1", f"{move} and W = {q.total:g}",
            "Leave move= at its default.")  # fmt: skip


def warn_of_signal(q: Composition, extent: Extent, time: Tensor, start: Start) -> None:
    """Warn where particles start from noise although the sources' signal is not gone."""
    if start.exact:
        return
    noise = q.schedule.sigma(time).item()
    left = q.schedule.alpha(time).item() * (extent.size if extent.known else 1.0) / noise
    if left > (0.5 if extent.known else _SIGNAL):
        warn(
            f"the schedule should end in noise; {q.schedule} leaves {left:.2g} deviations of the signal at its noisy "
            "end, more than the start can know. Standardise the data, or raise the schedule's last beta."
        )


def warn_of_rounding(extent: Extent, dtype: torch.dtype) -> None:
    """Warn where numbers of this dtype cannot tell the narrowest part of a far target."""
    spacing = torch.finfo(dtype).eps * extent.size
    if extent.known and 10 * spacing > extent.narrowest:
        warn(
            f"numbers must be finer than the target's narrowest part, {extent.narrowest:.2g} wide; {dtype} at "
            f"{extent.size:.3g} has steps of {spacing:.2g}. Pass dtype=torch.float64, or shift the data to 0."
        )


def warn_of_coarse_steps(
    schedule: Schedule, extent: Extent, settings: Settings, build: Callable[[int], tuple[Tensor, Steps]]
) -> None:
    """Warn where a Gaussian as narrow or wide as the sources' parts would come out with another variance.

    Args:
        build: from a number of steps to times and the table of an uncomposed run (W = 1, churn as it is).
    """
    deviations = dict.fromkeys([extent.narrowest, *(v**0.5 for v in (min(extent.variances), max(extent.variances)))])
    steps = settings.steps
    deviation, ratio = _worst(schedule, deviations, *build(steps))
    if abs(ratio - 1) <= _WRONG_VARIANCE:
        return
    more = (steps << k for k in range(1, _MOST_DOUBLINGS + 1) if steps << k <= _MOST_STEPS)
    fine = (n for n in more if abs(_worst(schedule, deviations, *build(n))[1] - 1) <= _WRONG_VARIANCE)
    enough = next(fine, None)
    remedy = f"Use steps={enough}." if enough else "Use the default grid and integrator, or stretch the data."
    warn(
        f"steps should be fine enough for every part of the target; with {steps} a Gaussian of deviation "
        f"{deviation:.2g} comes out with {ratio:.3g} times its variance. {remedy}"
    )


def _worst(schedule: Schedule, deviations: Iterable[float], times: Tensor, table: Steps) -> tuple[float, float]:
    """Return the deviation whose Gaussian is sampled worst, and its variance over the right one."""
    ratios = {d: variance_ratio(schedule, d**2, times, table) for d in deviations}
    return max(ratios.items(), key=lambda pair: abs(pair[1] - 1))


def variance_ratio(schedule: Schedule, variance: float, times: Tensor, table: Steps) -> float:
    """Return the variance with which N(0, variance) comes out of a run, over its own, by propagating second moments.

    Its score -P x makes every step linear in (x, X_), so no random number is needed.
    """
    own = (schedule.alpha(times) ** 2 * variance + schedule.sigma(times) ** 2).tolist()
    xx, xc, cc = own[0], 0.0, 0.0
    rows = zip(own, *(column.tolist() for column in table), strict=False)
    for marginal, keep, pull, noise, back, of_x, of_score in rows:
        a, c = keep - pull / marginal, of_x - of_score / marginal
        xx, xc, cc = (
            a * a * xx + 2 * a * back * xc + back * back * cc + noise * noise,
            c * (a * xx + back * xc),
            c * c * xx,
        )
    return xx / own[-1]


def require_room(q: Composition, particles: int, steps: int, n: int, history: bool, like: Tensor) -> None:
    """Refuse counts whose result, tables or single swarm cannot fit into memory."""
    dim, width = math.prod(q.event), like.element_size()
    full = any(part.bases is not None for part in q.mixtures or ())
    tables = steps * 8 * (75 + (len(q.exponents) + 4) * dim * (dim if full else 1))
    result = n * (particles * (dim * width + 8) + dim * width + 16) + (n * steps * 4 if history else 0)
    swarm = particles * 16 * dim * width
    remedy = "Ask for fewer samples, particles or steps, or sample in parts with other seeds."
    subject = f"{n} samples of {particles} particles in {steps} steps"
    if not like.is_cuda:
        require_memory(tables + result + swarm, subject, remedy)
        return
    require_memory(tables, subject, remedy)
    free, _ = torch.cuda.mem_get_info(like.device)
    require(result + swarm <= free, subject, "fit into the GPU's memory",
            f"{show_bytes(result + swarm)} needed, {show_bytes(free)} free", remedy)  # fmt: skip
