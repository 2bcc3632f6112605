"""One step of all swarms of a chunk: `advance(plan, state, i, z, u) -> state`, pure and free of host synchronisation.

The index i is a number, or a device tensor when the step is being captured into a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyscore.samplers.plan import Coefficients, Plan
from polyscore.smc import Resampler, weigh

# Gathering one 8-byte number is three times as fast as gathering two of 4 bytes.
_WIDE = {8: torch.float64, 16: torch.complex128}


@dataclass(frozen=True)
class State:
    """A chunk of swarms at one time of the grid.

    `score` and `rate` belong to `x`; `clean` is the composed clean point of the step before; `ancestors` are slots at
    the start, `parents` slots before the last step; `loss` is what the last step's gains alone cost of log ESS,
    averaged over swarms; `alarm` is nan after a score or rate that was not finite.
    """

    x: Tensor
    score: Tensor
    clean: Tensor
    rate: Tensor
    log_weights: Tensor
    log_evidence: Tensor
    ancestors: Tensor
    parents: Tensor
    ess: Tensor
    loss: Tensor
    clipped: Tensor
    alarm: Tensor


def start(plan: Plan, first: int, stop: int) -> State:
    """Return the state at the first time: the start's Gaussian, with the mass of the path there as evidence."""
    settings, like = plan.settings, plan.like
    z = plan.stream("start", (settings.particles, *plan.event), first, stop, normal=True)(0)
    u = plan.stream("start pool", (settings.particles,), first, stop, normal=False)(0)
    x = plan.start.draw(z, u)
    weights = torch.zeros(x.shape[:2], device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
    mass = plan.start.log_mass
    slots = torch.arange(settings.particles, device=like.device, dtype=torch.int32)
    own = slots.expand(x.shape[:2]).contiguous()
    empty = State(
        x=x, score=x, clean=x, rate=weights, log_weights=weights, log_evidence=torch.full_like(weights[:, 0], mass),
        ancestors=own, parents=own, ess=torch.full_like(weights[:, 0], float(settings.particles)),
        loss=weights.new_zeros(()), clipped=weights.new_zeros(()), alarm=like.new_zeros(()),
    )  # fmt: skip
    return replace(_evaluate(plan, empty, x, 0), clipped=empty.clipped)


def advance(plan: Plan, state: State, i: int | Tensor, z: Tensor, u: Tensor) -> State:
    """Move from time i to time i + 1, weigh, and resample.

    Args:
        z: standard normals like x.
        u: uniforms for the resampling scheme, `(N, uniforms)`.
    """
    settings = plan.settings
    now = plan.coefficients(i)
    x = _plus(state.x * now.keep, state.score, now.pull)
    if plan.looks_back:
        x = _plus(x, state.clean, now.back)
        state = replace(state, clean=_plus(state.x * now.of_x, state.score, now.of_score))
    if settings.churn:
        x = _plus(x, z, now.noise)
    if settings.order == 2:
        x = _heun(plan, state, x, i)
    new = _evaluate(plan, state, x, i + 1)
    if settings.resampler is None:
        return new
    new = replace(new, log_weights=state.log_weights + (gain := _gain(plan, state.rate, new.rate, now)))
    if settings.particles == 1:
        return new
    loss = (settings.particles / weigh(gain).ess).log().mean() if settings.carries else None
    return _resample(plan, new, i, u, settings.resampler, loss)


def _gain(plan: Plan, before: Tensor, after: Tensor, now: Coefficients) -> Tensor:
    """Integrate the rate over a step from its two ends."""
    if not plan.looks_left:
        return after * now.right
    # The trapezoid in the order of operations that stored results were computed with.
    return (
        (before + after) * now.left
        if plan.settings.quadrature == "trapezoid"
        else _plus(before * now.left, after, now.right)
    )


def _plus(a: Tensor, b: Tensor, factor: float | Tensor) -> Tensor:
    """a + factor b in one pass."""
    return torch.addcmul(a, b, factor) if isinstance(factor, Tensor) else torch.add(a, b, alpha=factor)


def _evaluate(plan: Plan, state: State, x: Tensor, i: int | Tensor) -> State:
    """Return the state at x: its score, its (clipped) log-weight rate, and the alarm."""
    settings = plan.settings
    score, spread = plan.field(x, i, want_spread=settings.resampler is not None)
    # A sum is finite exactly when all its terms are (short of overflow); 0 * inf and 0 * nan stay nan for good.
    state = replace(state, x=x, score=score, alarm=state.alarm + 0 * score.sum())
    if spread is None:
        return state
    now = plan.coefficients(i)
    rate = spread * now.across
    if plan.has_along:
        rate = rate + now.along * (x * score).flatten(2).sum(-1)
    if plan.has_constant:
        rate = rate + now.constant
    if settings.clip is not None:
        clamped = rate.clamp(-settings.clip, settings.clip)
        share = torch.count_nonzero(clamped != rate) / rate.numel()
        rate, state = clamped, replace(state, clipped=state.clipped + share)
    return replace(state, rate=rate, alarm=state.alarm + 0 * rate.sum())


def _heun(plan: Plan, state: State, predicted: Tensor, i: int | Tensor) -> Tensor:
    """Average the slopes at both ends of an ODE step (the trapezoidal corrector).

    One Euler step is x + h slope: the predicted point gives the other slope.
    """
    schedule, linear = plan.q.schedule, plan.settings.move.linear(plan.q.total)
    score, _ = plan.field(predicted, i + 1, want_spread=False)
    time = plan.times[int(i) + 1]
    h = plan.grid.lengths[int(i)].item()
    pull, keep = 0.5 * schedule.diffusion(time).item() ** 2, -linear * schedule.drift(time).item()
    behind = predicted - state.x
    return state.x + 0.5 * behind + (0.5 * h) * (keep * predicted + pull * score)


def _resample(plan: Plan, state: State, i: int | Tensor, u: Tensor, scheme: Resampler, loss: Tensor | None) -> State:
    """Resample the swarms whose ESS is low enough; the others carry their weights on."""
    settings, particles = plan.settings, plan.settings.particles
    weights = weigh(state.log_weights)
    own = torch.arange(particles, device=u.device, dtype=torch.int32).expand_as(state.parents)
    loss = (particles / weights.ess).log().mean() if loss is None else loss
    state = replace(state, ess=weights.ess, parents=own, loss=loss)
    if settings.window is not None and not settings.window[0] <= plan.times[int(i) + 1].item() <= settings.window[1]:
        return state
    ancestors = scheme.choose(weights.scaled, u)
    log_evidence, log_weights = state.log_evidence + weights.log_mean, torch.zeros_like(state.log_weights)
    if settings.threshold < 1:
        chosen = weights.ess <= settings.threshold * particles
        ancestors = torch.where(chosen[:, None], ancestors, own)
        log_evidence = torch.where(chosen, log_evidence, state.log_evidence)
        log_weights = torch.where(chosen[:, None], log_weights, state.log_weights)
    rows = flat_rows(ancestors, particles)
    # The right-end rule never looks back at the old rate, so it need not follow its particle.
    rate = take(state.rate, rows) if plan.looks_left else state.rate
    clean = take(state.clean, rows) if plan.looks_back else state.clean
    return replace(
        state, x=take(state.x, rows), score=take(state.score, rows), clean=clean, rate=rate,
        ancestors=take(state.ancestors, rows), log_weights=log_weights, log_evidence=log_evidence,
        parents=ancestors.int() if settings.ancestry else own,
    )  # fmt: skip


def flat_rows(slots: Tensor, particles: int) -> Tensor:
    """Turn slots within each swarm `(N, k)` into rows of the flattened particles `(N * k,)`."""
    return (slots + torch.arange(0, len(slots) * particles, particles, device=slots.device)[:, None]).flatten()


def take(values: Tensor, rows: Tensor) -> Tensor:
    """Gather particles by flat index, a whole particle at a time where it fits one wide number."""
    flat = values.reshape(len(rows), -1).contiguous()
    wide = _WIDE.get(flat.shape[1] * flat.element_size()) if flat.shape[1] > 1 else None
    packed = flat.view(wide) if wide else flat
    return packed.squeeze(1).index_select(0, rows).view(values.dtype).view_as(values)
