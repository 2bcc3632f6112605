"""The loop on a GPU as one CUDA graph a step: the host launches one thing where it would launch a hundred.

The graph owns static copies of the state and a device index that it advances by itself; between replays the host only
refills the pages of random numbers. Numbers and results are those of the plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

import torch

from polyscore.rng import Stream
from polyscore.samplers.plan import Plan
from polyscore.samplers.step import State


def replay(plan: Plan, state: State, streams: Mapping[str, Stream]) -> Iterator[State]:
    """Yield the state after every step; the tensors of one state are overwritten by the next."""
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
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new = step()
        for name in names:
            getattr(static, name).copy_(getattr(new, name))
        index += 1
    for i in range(plan.steps):
        _load(streams, i)
        graph.replay()
        yield static


def _load(streams: Mapping[str, Stream], step: int) -> None:
    for stream in streams.values():
        stream.load(step)
