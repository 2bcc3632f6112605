"""The loop on a GPU as one CUDA graph a step: the host launches one thing where it would launch a hundred.

The graph owns static copies of the state and a device index that it advances by itself; between replays the host only
refills the pages of random numbers. Numbers and results are those of the plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import torch

from polyscore.rng import Stream
from polyscore.samplers.plan import Plan
from polyscore.samplers.step import State, advance


def is_graphable(plan: Plan) -> bool:
    """Whether a step of this plan can be captured: a GPU, no host decisions inside."""
    settings = plan.settings
    return plan.like.is_cuda and plan.field.graphable and settings.window is None and settings.order == 1


def replay(plan: Plan, state: State, noise: Stream, uniform: Stream) -> Iterator[State]:
    """Yield the state after every step; the tensors of one state are overwritten by the next."""
    static = State(**{field.name: getattr(state, field.name).clone() for field in fields(State)})
    index = torch.zeros(1, dtype=torch.long, device=plan.like.device)

    def step() -> State:
        z, u = noise.on_device(index), uniform.on_device(index)
        return advance(plan, static, index, z, u)

    noise.load(0)
    uniform.load(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # compiles kernels and warms libraries, which a capture may not do
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new = step()
        for field in fields(State):
            getattr(static, field.name).copy_(getattr(new, field.name))
        index += 1
    for i in range(plan.settings.steps):
        noise.load(i)
        uniform.load(i)
        graph.replay()
        yield static
