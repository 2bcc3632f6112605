"""The one loop that all samplers share: a generator of states, so that progress, plots and early stops stay outside.

A chunk of swarms is stepped through the whole grid before the next begins; memory is bounded by `max_particles`. Random
numbers belong to swarms (see `polyscore.rng`), so the chunking changes none of them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import ArgumentError, ScoreError, require
from polyscore.fields import Field, prepare
from polyscore.rng import Stream, block_size
from polyscore.samplers.moves import Move, Rates, Steps, euler_steps, exact_linear_steps, log_start_mass, time_grid
from polyscore.samplers.run import Run
from polyscore.smc import Resampler, invert, weigh

# The alarm for non-finite scores is read this rarely, so that the host does not wait for the device.
_FLAG_INTERVAL = 50
_MEMORY_NUMBERS = {"cpu": 1 << 25, "cuda": 1 << 29}

# Gathering one 8-byte number is three times as fast as gathering two of 4 bytes.
_WIDE = {8: torch.float64, 16: torch.complex128}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Settings:
    """Everything about a sampler that the loop needs; `Denoise` and `FeynmanKac` are two ways to fill it.

    Attributes:
        clip: bound on |g|, or None.
        threshold: resample a swarm when its ESS is at most this share of K; 1 means after every step.
        window: (late, early) times between which resampling happens, or None for all.
        trapezoid: integrate g by both ends of the step, else by its right end.
        resampler: None carries no weights at all.
    """

    particles: int
    steps: int
    churn: float
    order: int
    move: Move
    resampler: Resampler | None
    clip: float | None = None
    threshold: float = 1.0
    window: tuple[float, float] | None = None
    trapezoid: bool = True


@dataclass(frozen=True)
class State:
    """A chunk of swarms at one time of the grid. `score` and `rate` belong to `x`."""

    step: int
    x: Tensor
    score: Tensor
    rate: Tensor | None
    log_weights: Tensor
    log_evidence: Tensor
    ancestors: Tensor
    clipped: Tensor
    ess: Tensor


@dataclass(frozen=True)
class Plan:
    """What is the same for every chunk: the tables, the prepared field, and how to draw."""

    q: Composition
    settings: Settings
    times: Tensor
    steps: Steps
    rates: Rates
    field: Field
    seed: int
    like: Tensor

    @property
    def event(self) -> tuple[int, ...]:
        """Shape of one point."""
        return self.q.event

    @property
    def block(self) -> int:
        """Swarms per generator."""
        return block_size(self.settings.particles * math.prod(self.event))

    def stream(self, purpose: str, shape: tuple[int, ...], start: int, stop: int, normal: bool) -> Stream:
        """Return the stream of a purpose for swarms start..stop."""
        return Stream(
            self.seed, purpose, shape, start, stop,
            block=self.block, normal=normal, dtype=self.like.dtype, device=self.like.device,
        )  # fmt: skip


def make_plan(q: Composition, settings: Settings, seed: int, like: Tensor) -> Plan:
    """Check that `q` can be sampled, and precompute what depends on time alone."""
    if not q.exponents:
        raise ArgumentError("a composition must have a factor; got exponents that all cancel.")
    require(q.total > 0, "W, the sum of the exponents,", "be positive", f"{q.total:g}",
            "The path starts from N(0, I)^W, which must be normalisable: raise the positive exponents.")  # fmt: skip
    q.validity().require(repr(q))
    times = time_grid(settings.steps)
    dim = math.prod(q.event)
    if q.schedule.ends_in_pure_noise:
        steps = exact_linear_steps(q.schedule, times, q.total, settings.churn)
    else:
        steps = euler_steps(q.schedule, times, q.total, settings.churn, settings.move)
    rates = settings.move.rates(q.schedule, times, q.total, dim)
    return Plan(q, settings, times, steps, rates, prepare(q, times, like), seed, like)


def iterate(plan: Plan, start: int, stop: int) -> Iterator[State]:
    """Yield the state of swarms start..stop at t = 1 and after every step."""
    settings, shape = plan.settings, (plan.settings.particles, *plan.event)
    noise = plan.stream("noise", shape, start, stop, normal=True)
    scheme = settings.resampler
    uniforms = scheme.uniforms(settings.particles) if scheme else 1
    uniform = plan.stream("resampling", (uniforms,), start, stop, normal=False)
    state = _initial(plan, start, stop)
    yield state
    for i in range(settings.steps):
        state = _move(plan, state, noise(i))
        if scheme is not None and settings.particles > 1:
            state = _resample(plan, state, uniform(i), scheme)
        yield state


def _initial(plan: Plan, start: int, stop: int) -> State:
    settings, q, like = plan.settings, plan.q, plan.like
    scale = q.schedule.sigma(torch.ones((), dtype=torch.float64)).item()
    variance = settings.move.start_variance(q.total) * scale**2
    draw = plan.stream("start", (settings.particles, *plan.event), start, stop, normal=True)
    x = draw(0) * math.sqrt(variance)
    score, rate, clipped = _evaluate(plan, x, 0)
    swarms, particles = x.shape[:2]
    weights = torch.zeros(swarms, particles, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
    mass = log_start_mass(q.total, math.prod(plan.event), scale**2)
    return State(
        step=0, x=x, score=score, rate=rate, log_weights=weights, log_evidence=torch.full_like(weights[:, 0], mass),
        ancestors=torch.arange(particles, device=like.device, dtype=torch.int32).expand(swarms, particles).contiguous(),
        clipped=clipped * 0, ess=torch.full_like(weights[:, 0], float(particles)),
    )  # fmt: skip


def _evaluate(plan: Plan, x: Tensor, i: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return S, the (clipped) log-weight rate and the share of rates that were clipped, at the i-th time."""
    settings, zero = plan.settings, x.new_zeros(())
    score, spread = plan.field(x, i, want_spread=settings.resampler is not None)
    if spread is None:
        return score, None, zero
    rate = spread * plan.rates.across[i].item()
    along, constant = plan.rates.along[i].item(), plan.rates.constant[i].item()
    if along:
        rate = rate + along * (x * score).flatten(2).sum(-1)
    if constant:
        rate = rate + constant
    if settings.clip is None:
        return score, rate, zero
    clamped = rate.clamp(-settings.clip, settings.clip)
    return score, clamped, torch.count_nonzero(clamped != rate) / rate.numel()


def _move(plan: Plan, state: State, z: Tensor) -> State:
    """One step: x' = keep x + pull S + noise z, then the scores at x' and the weights' gain."""
    settings, i = plan.settings, state.step
    keep, pull, noise, length = (column[i].item() for column in plan.steps)
    x = torch.add(state.x * keep, state.score, alpha=pull)
    if noise:
        x = x.add_(z, alpha=noise)
    if settings.order == 2:
        x = _heun(plan, state, x)
    score, rate, clipped = _evaluate(plan, x, i + 1)
    state = replace(state, step=i + 1, x=x, score=score)
    if rate is None or state.rate is None:
        return state
    gain = (0.5 * length) * (state.rate + rate) if settings.trapezoid else length * rate
    return replace(state, rate=rate, log_weights=state.log_weights + gain, clipped=state.clipped + clipped)


def _heun(plan: Plan, state: State, predicted: Tensor) -> Tensor:
    """Average the slopes at both ends of an ODE step (the trapezoidal corrector)."""
    i, q = state.step, plan.q
    h = plan.steps.length[i].item()
    score, _ = plan.field(predicted, i + 1, want_spread=False)
    linear = plan.settings.move.linear(q.total)
    slopes = [
        (-linear * q.schedule.drift(time)).item() * x + (0.5 * q.schedule.diffusion(time) ** 2).item() * s
        for time, x, s in ((plan.times[i], state.x, state.score), (plan.times[i + 1], predicted, score))
    ]
    return state.x + 0.5 * h * (slopes[0] + slopes[1])


def _resample(plan: Plan, state: State, u: Tensor, scheme: Resampler) -> State:
    """Resample the swarms whose ESS is low enough; the others carry their weights on."""
    settings, particles = plan.settings, plan.settings.particles
    weights = weigh(state.log_weights)
    state = replace(state, ess=weights.ess)
    if not _inside(settings.window, plan.times[state.step].item()):
        return state
    ancestors = scheme.choose(weights.scaled, u)
    log_evidence, log_weights = state.log_evidence + weights.log_mean, torch.zeros_like(state.log_weights)
    if settings.threshold < 1:
        chosen = weights.ess <= settings.threshold * particles
        stay = torch.arange(particles, device=u.device).expand_as(ancestors)
        ancestors = torch.where(chosen[:, None], ancestors, stay)
        log_evidence = torch.where(chosen, log_evidence, state.log_evidence)
        log_weights = torch.where(chosen[:, None], log_weights, state.log_weights)
    rows = _flat_rows(ancestors, particles)
    # The right-end rule never looks back at the old rate, so it need not follow its particle.
    rate = _take(state.rate, rows) if state.rate is not None and settings.trapezoid else state.rate
    return replace(
        state, x=_take(state.x, rows), score=_take(state.score, rows), rate=rate,
        ancestors=_take(state.ancestors, rows), log_weights=log_weights, log_evidence=log_evidence,
    )  # fmt: skip


def _flat_rows(slots: Tensor, particles: int) -> Tensor:
    """Turn slots within each swarm `(N, k)` into rows of the flattened particles `(N * k,)`."""
    return (slots + torch.arange(0, len(slots) * particles, particles, device=slots.device)[:, None]).flatten()


def _take(values: Tensor, rows: Tensor) -> Tensor:
    """Gather particles by flat index, a whole particle at a time where it fits one wide number."""
    flat = values.reshape(len(rows), -1).contiguous()
    wide = _WIDE.get(flat.shape[1] * flat.element_size()) if flat.shape[1] > 1 else None
    packed = flat.view(wide) if wide else flat
    return packed.squeeze(1).index_select(0, rows).view(values.dtype).view_as(values)


def _inside(window: tuple[float, float] | None, t: float) -> bool:
    return window is None or window[0] <= t <= window[1]


def run(
    q: Composition,
    settings: Settings,
    n: int,
    seed: int,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype,
    max_particles: int | None,
    progress: Progress | None,
) -> Run:
    """Sample `n` swarms in chunks and collect the `Run`."""
    require(isinstance(n, int) and n >= 1, "n", "be a whole number of at least 1", n)
    require(max_particles is None or max_particles >= 1, "max_particles", "be at least 1", max_particles)
    like = torch.empty(0, dtype=dtype, device=device or getattr(q.family, "device", None) or "cpu")
    with torch.inference_mode():
        plan = make_plan(q, settings, seed, like)
        workers = _workers(plan, n)
        chunk = _chunk_swarms(plan, max_particles, n, workers)
        bounds = [(start, min(n, start + chunk)) for start in range(0, n, chunk)]
        counter = _Counter(progress, len(bounds) * settings.steps)
        parts = _run_chunks(plan, bounds, counter, workers)
    result = parts[0] if len(parts) == 1 else _join(parts, [stop - start for start, stop in bounds])
    result.warn_if_degenerate()
    return result


def _workers(plan: Plan, n: int) -> int:
    """Return how many chunks run side by side: closed-form steps are too small to be split by operation."""
    heavy = plan.field.closed_form and plan.like.device.type == "cpu" and n * plan.settings.particles >= 20_000
    return torch.get_num_threads() if heavy else 1


def _chunk_swarms(plan: Plan, max_particles: int | None, n: int, workers: int) -> int:
    """Return the swarms per chunk: whole blocks, at least one."""
    if max_particles is None:
        numbers = _MEMORY_NUMBERS.get(plan.like.device.type, 1 << 25)
        max_particles = max(1, numbers // (8 * len(plan.q.exponents) * math.prod(plan.event)))
    blocks = max(1, max_particles // (plan.settings.particles * plan.block))
    if workers > 1:
        blocks = min(blocks, -(-n // (workers * plan.block)))
    return blocks * plan.block


class _Counter:
    """Adds up the steps of chunks that run side by side, and tells the caller."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done, self.lock = progress, total, 0, threading.Lock()

    def __call__(self) -> None:
        if self.progress is None:
            return
        with self.lock:
            self.done += 1
            self.progress(self.done, self.total)


def _run_chunks(plan: Plan, bounds: list[tuple[int, int]], counter: _Counter, workers: int) -> list[Run]:
    if workers == 1 or len(bounds) == 1:
        return [_run_chunk(plan, *pair, counter) for pair in bounds]

    def single_threaded(pair: tuple[int, int]) -> Run:
        torch.set_num_threads(1)
        with torch.inference_mode():
            return _run_chunk(plan, *pair, counter)

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(single_threaded, bounds))
    finally:
        torch.set_num_threads(threads)


def _run_chunk(plan: Plan, start: int, stop: int, counter: _Counter) -> Run:
    settings = plan.settings
    ess: list[Tensor] = []
    alarm = plan.like.new_zeros(())
    for state in iterate(plan, start, stop):
        # A sum is finite exactly when all its terms are (short of overflow); 0 * inf and 0 * nan stay nan for good.
        alarm += 0 * state.score.sum()
        if (state.step % _FLAG_INTERVAL == 0 or state.step == settings.steps) and not bool(alarm == 0):
            _explain_non_finite(plan, start, stop)
        if state.step:
            ess.append(state.ess)
            counter()
    return _finish(plan, state, torch.stack(ess), start, stop)


def _explain_non_finite(plan: Plan, start: int, stop: int) -> None:
    """Replay the chunk (its random numbers are fixed) and name the condition and time of the first bad score."""
    for state in iterate(plan, start, stop):
        if not bool(state.score.isfinite().all()):
            time = plan.times[state.step].to(plan.like)
            plan.q.family.check_scores(state.x, time, plan.q.conditions)
            raise ScoreError(
                f"the composed score must be finite; it overflows at t = {time.item():.5f}, where |x| reaches "
                f"{state.x.abs().max().item():.3g}. Use more steps, or smaller exponents."
            )


def _finish(plan: Plan, state: State, ess: Tensor, start: int, stop: int) -> Run:
    settings, weights = plan.settings, state.log_weights
    u = plan.stream("output", (1,), start, stop, normal=False)(0)
    final = weigh(weights)
    slot = invert(final.scaled.cumsum(-1), u)
    rows = _flat_rows(slot, settings.particles)
    evidence = state.log_evidence + final.log_mean
    return Run(
        samples=state.x.flatten(0, 1)[rows],
        particles=state.x,
        log_weights=weights,
        log_evidence=evidence if settings.resampler is not None else torch.full_like(evidence, math.nan),
        ess=ess,
        ancestors=state.ancestors,
        clipped_fraction=state.clipped.item() / settings.steps,
    )


def _join(parts: list[Run], sizes: list[int]) -> Run:
    """Concatenate chunks along the swarms; the clipped fraction is their weighted mean."""

    def cat(name: str, dim: int = 0) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], dim=dim)

    clipped = sum(part.clipped_fraction * size for part, size in zip(parts, sizes, strict=True)) / sum(sizes)
    return Run(
        cat("samples"), cat("particles"), cat("log_weights"), cat("log_evidence"), cat("ess", dim=1), cat("ancestors"),
        clipped,
    )  # fmt: skip
