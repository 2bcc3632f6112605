"""One step of all swarms of a chunk: `advance(plan, state, i, noise) -> state`, pure and free of host synchronisation.

The index i is a number, or a device tensor when the step is being captured into a CUDA graph. A step of another sampler
is made of the same pieces: `propose` a point, `evaluate` it, add the `gain` to its log-weight, `resample`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from polyscore.errors import require
from polyscore.samplers.answers import called
from polyscore.samplers.discrete import discrete_gain
from polyscore.samplers.kernels import Kernel
from polyscore.samplers.plan import Coefficients, Plan
from polyscore.smc import weigh

# Gathering one 8-byte number is three times as fast as gathering two of 4 bytes.
_WIDE = {8: torch.float64, 16: torch.complex128}


@dataclass(frozen=True)
class State:
    """A chunk of swarms at one time of the grid.

    `score` and `rate` belong to `x`; `clean` is the composed clean point of the step before; `ancestors` are slots at
    the start, `parents` slots before the last step; `loss` is what the last step's gains alone cost of log ESS,
    averaged over swarms; `alarm` is nan after a score or rate that was not finite; `accepted` adds up the share of
    particles for which each proposal of a kernel was accepted. A sampler that knows more of its particles subclasses
    it: all fields are tensors; those named in `carried`, `(N, K, ...)`, follow their particles.
    """

    carried: ClassVar[tuple[str, ...]] = ()

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
    accepted: Tensor


def begin(plan: Plan, first: int, stop: int) -> State:
    """Return the state at the first time: the start's Gaussian, with the mass of the path there as evidence."""
    particles, like = plan.sampler.particles, plan.like
    z = plan.stream("start", (particles, *plan.event), first, stop, normal=True, steps=1)(0)
    u = plan.stream("start pool", (particles,), first, stop, normal=False, steps=1)(0)
    x = plan.origin.draw(z, u)
    weights = torch.zeros(x.shape[:2], device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
    mass, largest = plan.origin.log_mass, torch.finfo(weights.dtype).max
    mass = mass if abs(mass) <= largest else math.copysign(math.inf, mass)  # of conditions too far apart to count
    own = torch.arange(particles, device=like.device, dtype=torch.int32).expand(x.shape[:2]).contiguous()
    empty = State(
        x=x, score=x, clean=x, rate=weights, log_weights=weights, log_evidence=torch.full_like(weights[:, 0], mass),
        ancestors=own, parents=own, ess=torch.full_like(weights[:, 0], float(particles)),
        loss=weights.new_zeros(()), clipped=weights.new_zeros(()), alarm=like.new_zeros(()),
        accepted=weights.new_zeros(()),
    )  # fmt: skip
    return replace(evaluate(plan, empty, x, 0), clipped=empty.clipped)


def advance(plan: Plan, state: State, i: int | Tensor, noise: Mapping[str, Tensor]) -> State:
    """Move from time i to time i + 1, weigh, and resample.

    Args:
        noise: "noise", standard normals like x, where there is churn; "resampling", uniforms for the scheme,
            `(N, uniforms)`, where there is one.
    """
    sampler, now = plan.sampler, plan.coefficients(i)
    x = propose(plan, state, i, now, noise)
    if "back" in plan.used:
        state = replace(state, clean=plus(state.x * now.of_x, state.score, now.of_score))
    new = evaluate(plan, state, x, i + 1)
    if plan.scheme is None:
        return new
    if plan.by_steps:  # whatever steered the points is in the step's own kernel
        assert isinstance(i, int)
        gained = discrete_gain(plan, state, new, i, noise["noise"])
    else:
        gained = plan.sampler.steered(plan, state, new, i, gain(plan, state.rate, new.rate, now))
    new = replace(new, log_weights=state.log_weights + gained)
    if sampler.particles == 1:
        return new
    loss = (sampler.particles / weigh(gained).ess).log().mean() if sampler.carries else None
    return resample(plan, new, i, noise["resampling"], loss)


def propose(plan: Plan, state: State, i: int | Tensor, now: Coefficients, noise: Mapping[str, Tensor]) -> Tensor:
    """Return keep x + pull S + back X_ + noise z, or Heun's point, and where the sampler steers it from there."""
    x = plus(state.x * now.keep, state.score, now.pull)
    if "back" in plan.used:
        x = plus(x, state.clean, now.back)
    if plan.sampler.churn:
        x = plus(x, noise["noise"], now.noise)
    x = _heun(plan, state, x, i) if plan.sampler.order == 2 else x
    return plan.sampler.steer(plan, state, x, i)


def gain(plan: Plan, before: Tensor, after: Tensor, now: Coefficients) -> Tensor:
    """Integrate the rate over a step from its two ends."""
    if "left" not in plan.used:
        return after * now.right
    # Two equal shares in the order of operations that stored results were computed with.
    return (before + after) * now.left if plan.ends_alike else plus(before * now.left, after, now.right)


def plus(a: Tensor, b: Tensor, factor: float | Tensor) -> Tensor:
    """a + factor b in one pass."""
    return torch.addcmul(a, b, factor) if isinstance(factor, Tensor) else torch.add(a, b, alpha=factor)


def evaluate(plan: Plan, state: State, x: Tensor, i: int | Tensor) -> State:
    """Return the state at x: its score, its (clipped) log-weight rate, and the alarm."""
    clip, clipped = plan.sampler.clip, state.clipped
    score, excess = plan.field(x, i, want_excess=plan.scheme is not None and not plan.by_steps)
    # A sum is finite exactly when all its terms are (short of overflow); 0 * inf and 0 * nan stay nan for good.
    if excess is None:
        return replace(state, x=x, score=score, alarm=state.alarm + 0 * score.sum())
    rate = rate_of(plan, x, score, excess, i)
    if clip is not None:
        clamped = rate.clamp(-clip, clip)
        clipped = clipped + torch.count_nonzero(clamped != rate) / rate.numel()
        rate = clamped
    alarm = state.alarm + 0 * (score.sum() + rate.sum())
    return replace(state, x=x, score=score, rate=rate, clipped=clipped, alarm=alarm)


def rate_of(plan: Plan, x: Tensor, score: Tensor, excess: Tensor | None, i: int | Tensor) -> Tensor:
    """Return g = constant + along <x, S> + across excess, `(N, K)`, of scores at time i."""
    assert excess is not None
    now = plan.coefficients(i)
    rate = excess * now.across
    if "along" in plan.used:
        rate = rate + now.along * (x * score).flatten(2).sum(-1)
    return rate + now.constant if "constant" in plan.used else rate


def apply_kernels(plan: Plan, state: State, i: int | Tensor, noise: Mapping[str, Tensor]) -> State:
    """Let the sampler's kernels move particles at time i, one after the other."""
    for k, kernel in enumerate(plan.sampler.kernels):
        z, u = (noise[f"kernel {k} {kind}"].movedim(1, 0) for kind in ("normals", "uniforms"))
        after = kernel(plan, state, i, z, u)
        _check_moved(kernel, state, after)
        # Clipped rates are counted once a step, however often a kernel evaluates.
        state = replace(after, clipped=state.clipped)
    return state


def _check_moved(kernel: Kernel, before: State, after: State) -> None:
    """Check that a kernel returns a state of the same swarms; shapes alone, which the host knows."""
    if not isinstance(after, type(before)):
        require(False, called("kernel", kernel), f"return a {type(before).__name__}", type(after).__name__,
                "Change the state with dataclasses.replace(state, x=...).")  # fmt: skip
    for name in ("x", "score", "rate", "log_weights"):
        shape, got = getattr(before, name).shape, getattr(getattr(after, name), "shape", None)
        if got != shape:
            require(False, called("kernel", kernel), f"return a state whose {name} has shape {tuple(shape)}", got,
                    "Keep the shapes of the state that it was given.")  # fmt: skip


def _heun(plan: Plan, state: State, predicted: Tensor, i: int | Tensor) -> Tensor:
    """Average the slopes at both ends of an ODE step (the trapezoidal corrector).

    One Euler step is x + h slope: the predicted point gives the other slope.
    """
    schedule, linear = plan.q.schedule, plan.sampler.move.linear(plan.q.total)
    score, _ = plan.field(predicted, i + 1, want_excess=False)
    time = plan.times[int(i) + 1]
    h = plan.clock.lengths[int(i)].item()
    pull, keep = 0.5 * schedule.diffusion(time).item() ** 2, -linear * schedule.drift(time).item()
    behind = predicted - state.x
    return state.x + 0.5 * behind + (0.5 * h) * (keep * predicted + pull * score)


def resample(plan: Plan, state: State, i: int | Tensor, u: Tensor, loss: Tensor | None = None) -> State:
    """Resample the swarms whose ESS is low enough; the others carry their weights on.

    Args:
        u: uniforms for the scheme, `(N, uniforms)`.
        loss: what the step's gains alone cost of log ESS; that of the weights unless given.
    """
    sampler, particles = plan.sampler, plan.sampler.particles
    assert plan.scheme is not None
    weights = weigh(state.log_weights)
    own = torch.arange(particles, device=u.device, dtype=torch.int32).expand_as(state.parents)
    loss = (particles / weights.ess).log().mean() if loss is None else loss
    state = replace(state, ess=weights.ess, parents=own, loss=loss)
    if sampler.window is not None and not sampler.window[0] <= plan.times[int(i) + 1].item() <= sampler.window[1]:
        return state
    ancestors = plan.scheme.choose(weights.scaled, u)
    log_evidence, log_weights = state.log_evidence + weights.log_mean, torch.zeros_like(state.log_weights)
    if sampler.threshold < 1:
        chosen = weights.ess <= sampler.threshold * particles
        ancestors = torch.where(chosen[:, None], ancestors, own)
        log_evidence = torch.where(chosen, log_evidence, state.log_evidence)
        log_weights = torch.where(chosen[:, None], log_weights, state.log_weights)
    state = replace(state, log_weights=log_weights, log_evidence=log_evidence)
    return _gathered(plan, state, ancestors, own)


def _gathered(plan: Plan, state: State, ancestors: Tensor, own: Tensor) -> State:
    """Put every particle's ancestor in its place."""
    rows = flat_rows(ancestors, plan.sampler.particles)
    # The right-end rule never looks back at the old rate, so it need not follow its particle.
    rate = take(state.rate, rows) if "left" in plan.used else state.rate
    clean = take(state.clean, rows) if "back" in plan.used else state.clean
    more = {name: take(getattr(state, name), rows) for name in state.carried}
    return replace(
        state, **more, x=take(state.x, rows), score=take(state.score, rows), clean=clean, rate=rate,
        ancestors=take(state.ancestors, rows), parents=ancestors.int() if plan.sampler.ancestry else own,
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
