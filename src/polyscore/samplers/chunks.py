"""How much goes at once: chunks of swarms, side by side where that helps, smaller where memory does not suffice.

A chunk of swarms is stepped through the whole grid before the next begins: whole blocks of them, since a block shares
its random numbers. Where one block holds more than `max_particles`, a model is asked about it in pieces.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from polyscore.algebra import Composition
from polyscore.devices import on_cpu_by_default
from polyscore.fields import in_pieces
from polyscore.limits import keep_freed_pages
from polyscore.notices import warn
from polyscore.samplers.checks import Asked, before
from polyscore.samplers.collect import join
from polyscore.samplers.diagnosis import possible_log_evidence
from polyscore.samplers.loop import run_chunk
from polyscore.samplers.plan import Plan
from polyscore.samplers.run import Run

if TYPE_CHECKING:
    from polyscore.samplers.sampler import Sampler

Listener = Callable[[int, int], None]  # told (steps done, steps in all)


def run(sampler: Sampler, q: Composition, asked: Asked, listener: Listener | None) -> Run:
    """Check, plan and sample; collect the `Run`."""
    with _plain_mode():
        plan = before(sampler, q, asked)
        if not plan.like.is_cuda:
            keep_freed_pages()
        result = _run_shrinking(plan, asked.n, _portion(plan, asked), listener)
    bounds = possible_log_evidence(list(q.exponents.values()))
    return replace(result, sampler=repr(sampler), composition=repr(q), possible_log_evidence=bounds, sized=q.is_sized)


@contextlib.contextmanager
def _plain_mode() -> Iterator[None]:
    """Compute as was asked for, whatever autocast or default device the caller has; a model may have its own."""
    plain = torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False)
    with torch.no_grad(), plain[0], plain[1], on_cpu_by_default():
        yield


class Portion(NamedTuple):
    """What goes at once.

    Attributes:
        swarms: in a chunk, whole blocks of them.
        particles: in one call of a model; None is all of a chunk.
        workers: chunks side by side.
    """

    swarms: int
    particles: int | None
    workers: int

    def halved(self, plan: Plan, n: int) -> Portion | None:
        """Return a smaller chunk, then smaller pieces of it, or None where nothing smaller is left."""
        if self.swarms > plan.block:
            return self._replace(swarms=max(plan.block, self.swarms // 2 // plan.block * plan.block))
        whole = min(self.swarms, n) * plan.sampler.particles
        most = min(whole, self.particles or whole)
        return None if plan.field.closed_form or most == 1 else self._replace(particles=most // 2)


def _portion(plan: Plan, asked: Asked) -> Portion:
    """Return what goes at once by what was asked for, and what memory there is."""
    most, n, workers = asked.max_particles, asked.n, _workers(plan, asked.n)
    held = most or max(1, _free_numbers(plan) // plan.field.numbers_per_particle)
    blocks = max(1, held // (plan.sampler.particles * plan.block))
    if workers > 1:
        blocks = min(blocks, -(-n // (workers * plan.block)))
    return Portion(min(blocks, -(-n // plan.block)) * plan.block, most, workers)


def _workers(plan: Plan, n: int) -> int:
    """Return how many chunks run side by side: closed-form steps are too small to be split by operation."""
    worth_it = plan.field.closed_form and plan.like.device.type == "cpu" and n * plan.sampler.particles >= 20_000
    return torch.get_num_threads() if worth_it else 1


def _free_numbers(plan: Plan) -> int:
    """Return how many numbers a chunk may hold: half of the free memory of a GPU, a fixed share of a host's."""
    if not plan.like.is_cuda:
        return 1 << 25
    free, _ = torch.cuda.mem_get_info(plan.like.device)
    return free // (2 * plan.like.element_size())


def _run_shrinking(plan: Plan, n: int, portion: Portion, listener: Listener | None) -> Run:
    """Run all chunks; where the GPU's memory does not suffice, go on with smaller ones, saying so once."""
    parts: list[Run] = []
    warned, first = False, 0
    while first < n:
        plan = replace(plan, field=in_pieces(plan.field, portion.particles))
        bounds = [(a, min(n, a + portion.swarms)) for a in range(first, n, portion.swarms)]
        counter = _Counter(listener, first, n, plan.steps)
        try:
            for part, mended in _run_chunks(plan, bounds, counter, portion.workers):
                parts.append(part)
                first, plan = first + len(part.samples), mended
        except torch.cuda.OutOfMemoryError:
            smaller = portion.halved(plan, n)
            if smaller is None:
                raise
            portion = smaller
            torch.cuda.empty_cache()
            if not warned:
                _warn_of_memory(portion)
            warned = True
    for finding in plan.field.findings():
        warn(finding)
    return parts[0] if len(parts) == 1 else join(parts)


def _warn_of_memory(portion: Portion) -> None:
    pieces = f", {portion.particles} particles in a call of the model" if portion.particles else ""
    warn(
        f"the GPU's memory must hold a chunk; going on with chunks of {portion.swarms} swarms{pieces}, or fewer. "
        "Pass max_particles= to choose the size yourself."
    )


class _Counter:
    """Adds up the steps of chunks that run side by side, and tells the caller (steps done, steps in all)."""

    def __init__(self, listener: Listener | None, first: int, n: int, steps: int) -> None:
        self.listener, self.lock = listener, threading.Lock()
        self.swarm_steps, self.n, self.steps = first * steps, n, steps

    def __call__(self, swarms: int) -> None:
        if self.listener is None:
            return
        with self.lock:
            self.swarm_steps += swarms
            self.listener(self.swarm_steps // self.n, self.steps)


def _run_chunks(
    plan: Plan, bounds: list[tuple[int, int]], counter: _Counter, workers: int
) -> Iterator[tuple[Run, Plan]]:
    """Yield the run of every chunk, and the plan to go on with."""
    if workers == 1 or len(bounds) == 1:
        for pair in bounds:
            part, plan = run_chunk(plan, *pair, counter)
            yield part, plan
        return

    def single_threaded(pair: tuple[int, int]) -> tuple[Run, Plan]:
        torch.set_num_threads(1)
        with _plain_mode():
            return run_chunk(plan, *pair, counter)

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(single_threaded, bounds)
    finally:
        torch.set_num_threads(threads)
