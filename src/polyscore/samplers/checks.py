"""What is asked of a run before its first random number: that it can end well, or a warning that says why not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.validity import Validity
from polyscore.devices import check_device
from polyscore.errors import ArgumentError, require, shorten
from polyscore.limits import require_memory, show_bytes
from polyscore.models.devices import warn_of_training
from polyscore.notices import warn
from polyscore.samplers.answers import called
from polyscore.samplers.discrete import by_steps, check_discrete
from polyscore.samplers.grids import Extent
from polyscore.samplers.moves import Balanced, Steps
from polyscore.samplers.plan import Coefficients, Plan, clock_of, make_plan, scalars_of, steps_of
from polyscore.samplers.starts import log_start_mass
from polyscore.schedules import Schedule, Stepped
from polyscore.schema import Checked, Domain, count, optional, setting

if TYPE_CHECKING:
    from polyscore.samplers.sampler import Sampler

_SIGNAL = 0.05  # of alpha(1) that may be left where nothing is known of the sources
_WRONG_VARIANCE, _WRONG_EVIDENCE = 0.1, 0.2
_MOST_DOUBLINGS, _MOST_STEPS = 12, 50_000
_MOST_HISTORY = 50_000_000  # entries of steps x swarms that are kept unasked: 200 MB
_DRAWN = count(0, 10**6)  # random numbers of a kernel, a step and particle
_DTYPE = Domain("be torch.float32 or torch.float64", lambda dtype: dtype in (torch.float32, torch.float64))


@dataclass(frozen=True)
class Asked(Checked):
    """What a caller of `sample` asks for.

    Attributes:
        scale: how many units of the data one of the sampled coordinates is, for messages.
    """

    n: int = setting(1, count())
    seed: int = 0
    device: torch.device | str | None = None
    dtype: torch.dtype = setting(torch.float32, _DTYPE)
    max_particles: int | None = setting(None, optional(count()))
    history: bool | None = None
    scale: float = 1.0


def before(sampler: Sampler, q: Composition, asked: Asked) -> Plan:
    """Return the plan of a run that can end well; every question about it is asked here, and once."""
    _check_composition(q)
    validity = q.validity()
    validity.settle(repr(q))
    sampler.check(q)
    _check_end(q, sampler)
    _check_kernels(sampler)
    if sampler.weighted and by_steps(sampler):
        check_discrete(q, sampler)
    if sampler.weighted:
        _warn_of_improper_path(q, validity)
    if q.is_tilted and not (sampler.weighted and sampler.particles > 1):
        _warn_of_bend(q)
    q.family.check_dtype(asked.dtype)
    warn_of_training(q.family.members[name] for name in q.conditions)
    device = check_device(q.family.device if asked.device is None else asked.device)
    like = torch.empty(0, dtype=asked.dtype, device=device)
    keep = asked.n * sampler.steps <= _MOST_HISTORY if asked.history is None else bool(asked.history)
    _require_room(q, sampler, asked.n, keep and sampler.particles > 1, like)
    plan = make_plan(q, sampler, asked.seed, like, keep)
    _warn_of_signal(plan)
    warn_of_rounding(plan.extent, plan.like.dtype)
    if sampler.tabular and "pull" in plan.used:  # a move that stays leaves all to its kernels
        _warn_of_coarse_steps(plan, asked.scale)
        _warn_of_coarse_weights(plan)
    return plan


def _check_composition(q: Composition) -> None:
    """Check that there is something to sample, and that its path has a beginning."""
    if not q.exponents:
        raise ArgumentError("a composition must have a factor; got exponents that all cancel. Change one.")
    largest = max(q.exponents.values(), key=abs)
    require(abs(largest) <= 1e6, "exponents", "be at most 10^6 in size to be sampled", largest, "Lower them.")
    require(q.total > 0, "W, the sum of the exponents,", "be positive", f"{q.total:g}",
            "The path starts from N(0, I)^W, which must be normalisable: raise the positive exponents.")  # fmt: skip


def _check_end(q: Composition, sampler: Sampler) -> None:
    """Check that the schedule's noise end suits the move."""
    require(not q.schedule.ends_in_pure_noise or sampler.move.linear(q.total) == q.total,
            "a schedule with alpha(1) = 0", "go with the balanced move when W is not 1",
            f"{sampler.move} and W = {q.total:g}", "Leave move= at its default.")  # fmt: skip


def _check_kernels(sampler: Sampler) -> None:
    """Check that kernels say how many random numbers they take."""
    for kernel in sampler.kernels:
        for name in ("normals", "uniforms"):
            value = getattr(kernel, name)
            require(_DRAWN.holds(value), f"{name} of {called('kernel', kernel)}", _DRAWN.rule, shorten(value),
                    "Set it on the kernel's class.")  # fmt: skip


def _warn_of_improper_path(q: Composition, validity: Validity) -> None:
    """Warn where the noised composition cannot be normalised though both its ends can: weights have no target there."""
    if q.mixtures is None or min(q.exponents.values(), default=1) > 0 or q.total <= 0 or validity.proper is False:
        return
    t, answer = q.path_validity()
    if answer.proper is False:
        warn(
            f"the path of {q!r} is improper at t = {t:.3g} ({answer.reason}): Feynman-Kac weights have no target "
            "there and the result depends on K. Compare several K before believing it."
        )


def _warn_of_bend(q: Composition) -> None:
    """Warn where samples are not weighted for what bent coordinates leave."""
    warn(
        f"exponents of {q!r} should sum to 1 in bent coordinates; they sum to {q.total:g}, and samples without weights "
        "are then those of the composition times |dz/dy|^(1 - W). Use FeynmanKac, which weights for it, or "
        "fit(bend=False)."
    )


def _warn_of_signal(plan: Plan) -> None:
    """Warn where particles start from noise although the sources' signal is not gone."""
    if plan.origin.exact:
        return
    schedule, extent, time = plan.q.schedule, plan.extent, plan.times[0]
    left = schedule.alpha(time).item() * (extent.size if extent.known else 1.0) / schedule.sigma(time).item()
    if left > (0.5 if extent.known else _SIGNAL):
        warn(
            f"the schedule should end in noise; {schedule} leaves {left:.2g} deviations of the signal at its noisy "
            "end, more than the start can know. Standardise the data, or raise the schedule's last beta; of a model "
            "that is trained already, look at each condition by itself first."
        )


def warn_of_rounding(extent: Extent, dtype: torch.dtype) -> None:
    """Warn where numbers of this dtype cannot tell the narrowest part of a far target."""
    spacing = torch.finfo(dtype).eps * extent.size
    if extent.known and 10 * spacing > extent.narrowest:
        warn(
            f"numbers must be finer than the target's narrowest part, {extent.narrowest:.2g} wide; {dtype} at "
            f"{extent.size:.3g} has steps of {spacing:.2g}. Pass dtype=torch.float64, or shift the data to 0."
        )


def _warn_of_coarse_steps(plan: Plan, scale: float) -> None:
    """Warn where a Gaussian as narrow or wide as the sources' parts would come out with another variance."""
    extent, steps = plan.extent, plan.sampler.steps
    deviations = dict.fromkeys([extent.narrowest, *(v**0.5 for v in (min(extent.variances), max(extent.variances)))])
    deviation, ratio = _worst(plan, deviations, steps)
    if abs(ratio - 1) <= _WRONG_VARIANCE:
        return
    enough = next((n for n in _more(plan) if abs(_worst(plan, deviations, n)[1] - 1) <= _WRONG_VARIANCE), None)
    remedy = f"Use steps={enough}." if enough else "Use the default grid and integrator, or stretch the data."
    warn(
        f"steps should be fine enough for every part of the target; with {steps} a Gaussian of deviation "
        f"{scale * deviation:.2g} comes out with {ratio:.3g} times its variance. {remedy}"
    )


def _more(plan: Plan) -> Iterator[int]:
    """Yield larger numbers of steps that could be asked for; of a model's own timesteps those that divide them."""
    steps = plan.sampler.steps
    if isinstance(plan.q.schedule, Stepped):
        # Others leave out its noisy end: "leading" visits 0 to 639 of 1000 timesteps in 640 steps.
        own = plan.q.schedule.timesteps
        return (n for n in range(steps + 1, own + 1) if own % n == 0)
    return (n for k in range(1, _MOST_DOUBLINGS + 1) if (n := steps << k) <= _MOST_STEPS)


def _worst(plan: Plan, deviations: Iterable[float], steps: int) -> tuple[float, float]:
    """Return the deviation whose Gaussian is sampled worst by itself, W = 1, and its variance over the right one."""
    schedule = plan.q.schedule
    clock = clock_of(plan.q, plan.sampler, steps, plan.extent)
    table = steps_of(plan.q, plan.sampler, clock, 1.0)
    ratios = {d: variance_ratio(schedule, d**2, clock.times, table) for d in deviations}
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


def _warn_of_coarse_weights(plan: Plan) -> None:
    """Warn where log Z of Gaussians as wide as the sources' parts, raised to W, would come out elsewhere.

    At W = 1 they have nothing to weigh; a kernel mends what a step leaves, and a rate of other form is not known here.
    """
    q, sampler, extent = plan.q, plan.sampler, plan.extent
    plain = type(sampler.move) is Balanced and not sampler.kernels and sampler.clip is None and not plan.by_steps
    if not (sampler.weighted and plain and extent.exact and extent.known) or q.total == 1:
        return
    variances = (min(extent.variances), max(extent.variances))

    def off(times: Tensor, scalars: Tensor) -> float:
        return max((log_evidence_error(q, v, times, scalars) for v in variances), key=abs) * math.prod(q.event)

    if abs(error := off(plan.times, plan.scalars)) <= _WRONG_EVIDENCE:
        return
    clocks = ((n, clock_of(q, sampler, n, extent)) for n in _more(plan))
    errors = ((n, off(clock.times, scalars_of(q, sampler, clock, extent))) for n, clock in clocks)
    enough = next((n for n, left in errors if abs(left) <= _WRONG_EVIDENCE), None)
    remedy = f"Use steps={enough}, or the default integrator." if enough else "Use the default grid and integrator."
    warn(
        f"steps should be fine enough for the weights at W = {q.total:g}; with {sampler.steps} log Z of a Gaussian as "
        f"wide or narrow as the sources' comes out {error:+.2g} off. {remedy}"
    )


def log_evidence_error(q: Composition, variance: float, times: Tensor, scalars: Tensor) -> float:
    """Return by how much log Z of N(0, variance)^W, one coordinate, comes out too large with any number of particles.

    S = -W x / (alpha^2 variance + sigma^2) makes steps linear in y = (x, X_) and gains quadratic in x, so that the mean
    weight of what is still to come is exp(k + <y, A y> / 2), found from the last step back; infinite where a step's
    noise has no mean weight.
    """
    total, schedule = q.total, q.schedule
    marginals = (schedule.alpha(times) ** 2 * variance + schedule.sigma(times) ** 2).tolist()
    rows = [Coefficients(*row) for row in scalars.tolist()]
    rates = [r.along * -total / m + r.across * (total**2 - total) / m**2 for r, m in zip(rows, marginals, strict=True)]
    xx, xc, cc, k = 0.0, 0.0, 0.0, 0.0
    for i in reversed(range(len(rows) - 1)):
        now, noise2 = rows[i], rows[i].noise ** 2
        xx += 2 * now.right * rates[i + 1]
        if (left := 1 - noise2 * xx) <= 0:
            return math.inf
        k -= 0.5 * math.log(left)
        xx, xc, cc = xx / left, xc / left, cc + xc**2 * noise2 / left
        a, c = now.keep - now.pull * total / marginals[i], now.of_x - now.of_score * total / marginals[i]
        xx, xc, cc = (
            a * a * xx + 2 * a * c * xc + c * c * cc + 2 * now.left * rates[i],
            now.back * (a * xx + c * xc),
            now.back**2 * xx,
        )
    if (left := 1 - xx * marginals[0] / total) <= 0:
        return math.inf
    first, last = (log_start_mass(total, 1, m) for m in (marginals[0], marginals[-1]))
    return k - 0.5 * math.log(left) + first - last


def _require_room(q: Composition, sampler: Sampler, n: int, history: bool, like: Tensor) -> None:
    """Refuse counts whose result, tables or single swarm cannot fit into memory."""
    dim, width, particles, steps = math.prod(q.event), like.element_size(), sampler.particles, sampler.steps
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
