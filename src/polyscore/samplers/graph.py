"""The loop on a GPU as one CUDA graph a step: the host launches one thing where it would launch a hundred.

The graph owns static copies of the state and a device index that it advances by itself; between replays the host only
refills the pages of random numbers. Numbers and results are those of the plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

import torch

from polyscore.notices import warn
from polyscore.rng import Stream
from polyscore.samplers.plan import Plan
from polyscore.samplers.step import State

Replay = Callable[[], Iterator[State]]


def captured(plan: Plan, state: State, streams: Mapping[str, Stream]) -> Replay | None:
    """Return the loop as a graph; None, with a notice, where a model of the user's cannot be held by one."""
    here = torch.cuda.current_stream() if plan.like.is_cuda else None
    try:
        return capture(plan, state, streams)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        if not plan.field.foreign:
            raise
        if here is not None:
            torch.cuda.set_stream(here)  # which a capture that fails leaves
        warn(
            f"a compiled model should be one that a CUDA graph can hold, without decisions of the host; got "
            f"{type(error).__name__}: {str(error)[:200]}. Going on step by step, which is slower where steps are short."
        )
        return None


def capture(plan: Plan, state: State, streams: Mapping[str, Stream]) -> Replay:
    """Capture a step; what is returned yields the state after every step, its tensors overwritten by the next."""
    names = [field.name for field in fields(state)]
    static = type(state)(**{name: getattr(state, name).clone() for name in names})
    index = torch.zeros(1, dtype=torch.long, device=plan.like.device)

    def step() -> State:
        noise = {purpose: stream.on_device(index) for purpose, stream in streams.items()}
        return plan.sampler.step(plan, static, index, noise)

    _load(streams, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # compiles kernels and warms libraries, which a capture may not do
        if plan.field.foreign:
            _rehearse(step)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new = step()
        for name in names:
            getattr(static, name).copy_(getattr(new, name))
        index += 1

    def replay() -> Iterator[State]:
        index.zero_()  # and keeps it alive: a graph holds addresses, not tensors
        for i in range(plan.steps):
            _load(streams, i)
            graph.replay()
            yield static

    return replay


def _rehearse(step: Callable[[], State]) -> None:
    """Make a step that may not wait for the device: an error here leaves nothing behind, unlike one in a capture."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _load(streams: Mapping[str, Stream], step: int) -> None:
    for stream in streams.values():
        stream.load(step)
