"""The one loop that all samplers share: a generator of states, so that progress, plots and early stops stay outside.

A chunk of swarms is stepped through the whole grid before the next begins; memory is bounded by `max_particles`. Random
numbers belong to swarms (see `polyscore.rng`), so the chunking changes none of them.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.devices import check_device
from polyscore.errors import ScoreError, is_count, require
from polyscore.fields import Field
from polyscore.notices import warn
from polyscore.samplers.checks import require_room
from polyscore.samplers.diagnosis import possible_log_evidence
from polyscore.samplers.graph import is_graphable, replay
from polyscore.samplers.plan import Plan, Settings, make_plan
from polyscore.samplers.run import Run
from polyscore.samplers.step import State, advance, flat_rows, start
from polyscore.smc import invert, weigh

# Scores are checked (for non-finite ones, for shortcuts) this rarely, so that the host does not wait for the device:
# every 50 steps, or eight times in short runs.
_CHECK_INTERVAL, _FEWEST_CHECKS = 50, 8
_MOST_HISTORY = 50_000_000  # entries of steps x swarms that are kept unasked: 200 MB
_DTYPES = (torch.float32, torch.float64)

Progress = Callable[[int, int], None]


def iterate(plan: Plan, first: int, stop: int, graphs: bool = True) -> Iterator[State]:
    """Yield the state of swarms first..stop at t = 1 and after every step."""
    settings = plan.settings
    noise = plan.stream("noise", (settings.particles, *plan.event), first, stop, normal=True)
    scheme = settings.resampler
    uniforms = scheme.uniforms(settings.particles) if scheme else 1
    uniform = plan.stream("resampling", (uniforms,), first, stop, normal=False)
    state = start(plan, first, stop)
    yield state
    if graphs and is_graphable(plan):
        yield from replay(plan, state, noise, uniform)
        return
    for i in range(settings.steps):
        state = advance(plan, state, i, noise(i), uniform(i))
        yield state


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
    history: bool | None = None,
    sampler: str = "",
) -> Run:
    """Sample `n` swarms in chunks and collect the `Run`."""
    require(is_count(n), "n", "be a whole number of at least 1", n)
    n = int(n)
    require(max_particles is None or is_count(max_particles), "max_particles",
            "be a whole number of at least 1, or None", max_particles)  # fmt: skip
    require(dtype in _DTYPES, "dtype", f"be one of {', '.join(map(str, _DTYPES))}", dtype)
    like = torch.empty(0, dtype=dtype, device=check_device(device or q.family.device))
    keep = n * settings.steps <= _MOST_HISTORY if history is None else bool(history)
    require_room(q, settings.particles, settings.steps, n, keep and settings.particles > 1, like)
    with torch.no_grad(), _no_autocast(), torch.device("cpu"):  # whatever default device the caller has
        plan = make_plan(q, settings, seed, like, keep)
        workers = _workers(plan, n)
        chunk = _chunk_swarms(plan, max_particles, n, workers)
        result = _run_halving(plan, n, chunk, progress, workers)
    bounds = possible_log_evidence(list(q.exponents.values()))
    return replace(result, sampler=sampler, composition=repr(q), possible_log_evidence=bounds)


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Compute in the precision that was asked for, whatever mode the caller is in; a model may switch it on inside."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def _workers(plan: Plan, n: int) -> int:
    """Return how many chunks run side by side: closed-form steps are too small to be split by operation."""
    worth_it = plan.field.closed_form and plan.like.device.type == "cpu" and n * plan.settings.particles >= 20_000
    return torch.get_num_threads() if worth_it else 1


def _chunk_swarms(plan: Plan, max_particles: int | None, n: int, workers: int) -> int:
    """Return the swarms per chunk: whole blocks, at least one."""
    if max_particles is None:
        max_particles = max(1, _free_numbers(plan) // plan.field.numbers_per_particle)
    blocks = max(1, max_particles // (plan.settings.particles * plan.block))
    if workers > 1:
        blocks = min(blocks, -(-n // (workers * plan.block)))
    return blocks * plan.block


def _free_numbers(plan: Plan) -> int:
    """Return how many numbers a chunk may hold: half of the free memory of a GPU, a fixed share of a host's."""
    if not plan.like.is_cuda:
        return 1 << 25
    free, _ = torch.cuda.mem_get_info(plan.like.device)
    return free // (2 * plan.like.element_size())


def _run_halving(plan: Plan, n: int, chunk: int, progress: Progress | None, workers: int) -> Run:
    """Run all chunks; where the GPU's memory does not suffice, halve them and go on, saying so once."""
    parts: list[Run] = []
    warned, first = False, 0
    chunk = min(chunk, -(-n // plan.block) * plan.block)
    while first < n:
        bounds = [(a, min(n, a + chunk)) for a in range(first, n, chunk)]
        counter = _Counter(progress, first, n, plan.settings.steps)
        try:
            for part, field in _run_chunks(plan, bounds, counter, workers):
                parts.append(part)
                plan, first = _with_field(plan, field), first + len(part.samples)
        except torch.cuda.OutOfMemoryError:
            if chunk <= plan.block:
                raise
            chunk = max(plan.block, chunk // 2 // plan.block * plan.block)
            torch.cuda.empty_cache()
            if not warned:
                warn(
                    f"the GPU's memory must hold a chunk; going on with chunks of {chunk} swarms. "
                    "Pass max_particles= to choose the size yourself."
                )
            warned = True
    return parts[0] if len(parts) == 1 else _join(parts)


class _Counter:
    """Adds up the steps of chunks that run side by side, and tells the caller (steps done, steps in all)."""

    def __init__(self, progress: Progress | None, first: int, n: int, steps: int) -> None:
        self.progress, self.lock = progress, threading.Lock()
        self.swarm_steps, self.n, self.steps = first * steps, n, steps

    def __call__(self, swarms: int) -> None:
        if self.progress is None:
            return
        with self.lock:
            self.swarm_steps += swarms
            self.progress(self.swarm_steps // self.n, self.steps)


def _run_chunks(
    plan: Plan, bounds: list[tuple[int, int]], counter: _Counter, workers: int
) -> Iterator[tuple[Run, Field]]:
    """Yield the run of each chunk, and the field it ended with: what one gave up, the next do not try."""
    if workers == 1 or len(bounds) == 1:
        for pair in bounds:
            part, field = _run_chunk(plan, *pair, counter)
            plan = _with_field(plan, field)
            yield part, field
        return

    def single_threaded(pair: tuple[int, int]) -> tuple[Run, Field]:
        torch.set_num_threads(1)
        with torch.no_grad(), _no_autocast(), torch.device("cpu"):
            return _run_chunk(plan, *pair, counter)

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(single_threaded, bounds)
    finally:
        torch.set_num_threads(threads)


def _run_chunk(plan: Plan, first: int, stop: int, counter: _Counter) -> tuple[Run, Field]:
    """Run swarms first..stop, again with what is left where the field gave up a shortcut."""
    while not isinstance(found := _try_chunk(plan, first, stop, counter), Run):
        plan = _with_field(plan, found)
    return found, plan.field


def _with_field(plan: Plan, field: Field) -> Plan:
    return plan if field is plan.field else replace(plan, field=field)


def _try_chunk(plan: Plan, first: int, stop: int, counter: _Counter) -> Run | Field:
    steps = plan.settings.steps
    interval = max(1, min(_CHECK_INTERVAL, steps // _FEWEST_CHECKS))
    history = _History(plan, stop - first)
    for i, state in enumerate(iterate(plan, first, stop)):
        if i % interval == 0 or i == steps:
            alarmed = not bool(state.alarm == 0)
            if (mended := plan.field.mend(state.x, i, alarmed)) is not None:
                counter(-max(0, i - 1) * (stop - first))
                return mended
            if alarmed:
                _explain_non_finite(plan, first, stop)
        if i:
            history.add(i - 1, state)
            counter(stop - first)
    return _finish(plan, state, history, first, stop)


class _History:
    """What is kept of every step: effective sample sizes, whole or summed up, and parents if asked for."""

    def __init__(self, plan: Plan, swarms: int) -> None:
        steps, particles, device = plan.settings.steps, plan.settings.particles, plan.like.device
        wide = torch.promote_types(plan.like.dtype, torch.float32)
        self.lowest = torch.full((swarms,), float(particles), dtype=wide, device=device)
        self.means = torch.full((steps,), float(particles), dtype=wide, device=device)
        self.losses = torch.zeros(steps, dtype=wide, device=device)
        self.weighted = plan.settings.resampler is not None and particles > 1
        # Without weights every entry is the same number, which takes no room.
        self.whole = torch.full((1, 1), float(particles), dtype=wide, device=device).expand(steps, swarms)
        self.keep = plan.history
        if self.weighted and plan.history:
            self.whole = torch.empty(steps, swarms, dtype=wide, device=device)
        self.parents: list[Tensor] | None = [] if plan.settings.ancestry else None

    def add(self, i: int, state: State) -> None:
        """Note the state after step i."""
        if self.parents is not None:
            self.parents.append(state.parents.clone())
        if not self.weighted:
            return
        self.lowest = torch.minimum(self.lowest, state.ess)
        self.means[i], self.losses[i] = state.ess.mean(), state.loss
        if self.keep:
            self.whole[i] = state.ess

    @property
    def ess(self) -> Tensor | None:
        """All of them, `(steps, swarms)`, or None."""
        return self.whole if self.keep or not self.weighted else None

    @property
    def ancestry(self) -> Tensor | None:
        """Every step's parents, or None."""
        return None if self.parents is None else torch.stack(self.parents)


def _explain_non_finite(plan: Plan, first: int, stop: int) -> NoReturn:
    """Replay the chunk (its random numbers are fixed) and name the condition and time of the first bad score."""
    for i, state in enumerate(iterate(plan, first, stop, graphs=False)):
        if bool(state.alarm == 0):
            continue
        time, size = plan.times[i].to(plan.like), state.x.abs().max().item()
        plan.q.family.check_scores(state.x, time, plan.q.conditions)
        what = "log-weight rate" if bool(state.score.isfinite().all()) else "composed score"
        raise ScoreError(
            f"the {what} must be finite; it overflows at t = {time.item():.5f}, where |x| reaches {size:.3g}. "
            "Use more steps, or smaller exponents."
        )
    raise ScoreError(
        f"every score must be finite; one of swarms {first} to {stop - 1} was not, but all are in a replay. "
        "Check that the model answers the same way every time; then use more steps, or smaller exponents."
    )


def _finish(plan: Plan, state: State, history: _History, first: int, stop: int) -> Run:
    settings, family = plan.settings, plan.q.family
    u = plan.stream("output", (1,), first, stop, normal=False)(0)
    final = weigh(state.log_weights)
    slot = invert(final.scaled.cumsum(-1), u)
    # In units of the data, Z gains the volume of one standardised unit to the power 1 - W.
    # So it does with alpha, where the last point is alpha x_0 and a little noise.
    scale = family.log_scale - math.prod(plan.event) * math.log(plan.last_signal)
    evidence = state.log_evidence + final.log_mean + (1 - plan.q.total) * scale
    standard = state.x if plan.last_signal == 1 else state.x / plan.last_signal
    particles = family.restore(standard)
    return Run(
        samples=particles.flatten(0, 1)[flat_rows(slot, settings.particles)],
        particles=particles,
        log_weights=state.log_weights,
        log_evidence=evidence if settings.resampler is not None else torch.full_like(evidence, math.nan),
        lowest_ess=history.lowest,
        mean_ess=history.means,
        step_losses=history.losses,
        ancestors=state.ancestors,
        clipped_fraction=state.clipped.item() / settings.steps,
        arithmetic=plan.field.arithmetic(state.log_weights.numel()),
        ancestry=history.ancestry,
        ess_history=history.ess,
        reach=standard.flatten(0, 1).abs().median(0).values.max().item() if family.units is not None else math.nan,
        width=standard.double().flatten(2).var((0, 1), correction=0).mean().sqrt().item(),
    )


def _join(parts: list[Run]) -> Run:
    """Concatenate chunks along the swarms; what is averaged over swarms is averaged again."""

    def cat(name: str, dim: int = 0) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values, dim=dim)

    sizes = [len(part.samples) for part in parts]

    def mean(name: str) -> Any:
        return sum(getattr(part, name) * size for part, size in zip(parts, sizes, strict=True)) / sum(sizes)

    along = ("samples", "particles", "log_weights", "log_evidence", "lowest_ess", "ancestors")
    joined = {name: cat(name) for name in along} | {name: cat(name, 1) for name in ("ancestry", "ess_history")}
    means = {name: mean(name) for name in ("mean_ess", "step_losses", "clipped_fraction")}
    extremes = {name: max(getattr(part, name) for part in parts) for name in ("reach", "width")}
    fields: dict[str, Any] = {**joined, **means, **extremes}
    return Run(**fields, arithmetic=", ".join(dict.fromkeys(part.arithmetic for part in parts)))
