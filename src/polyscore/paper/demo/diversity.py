"""What resampling does to a swarm without noise: copies follow one trajectory for ever (the paper's appendix C)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polyscore.algebra import Composition
from polyscore.samplers import FeynmanKac
from polyscore.samplers.loop import iterate
from polyscore.samplers.plan import make_plan
from polyscore.samplers.step import State
from polyscore.smc import unique_ancestors

Curve = dict[str, list[float]]


def diversity(q: Composition, particles: Sequence[int], swarms: int, steps: int, seed: int) -> dict[str, Curve]:
    """Return, for SDE and ODE, how many different positions and ancestors swarms hold: along t, and at the end by K.

    Positions are counted after each resampling; the largest K gives the curves along time.
    """
    return {name: _curve(q, churn, particles, swarms, steps, seed) for name, churn in (("SDE", 1.0), ("ODE", 0.0))}


def _curve(q: Composition, churn: float, particles: Sequence[int], swarms: int, steps: int, seed: int) -> Curve:
    traces = [_trace(q, churn, k, swarms, steps, seed) for k in sorted(particles)]
    return traces[-1] | {
        "particles": [float(k) for k in sorted(particles)],
        "final": [trace["positions"][-1] for trace in traces],
        "final_ancestors": [trace["ancestors"][-1] for trace in traces],
    }


@torch.inference_mode()
def _trace(q: Composition, churn: float, particles: int, swarms: int, steps: int, seed: int) -> Curve:
    plan = make_plan(q, FeynmanKac(particles, steps, churn=churn), seed, torch.empty(0))
    counts = [(t.item(), *_count(state)) for t, state in zip(plan.times, iterate(plan, 0, swarms), strict=True)]
    times, positions, ancestors = (list(column) for column in zip(*counts, strict=True))
    return {"t": times, "positions": positions, "ancestors": ancestors}


def _count(state: State) -> tuple[float, float]:
    """Mean number of different positions (by their first coordinate) and of surviving ancestors."""
    first = state.x.flatten(2)[..., 0]
    return unique_ancestors(first).float().mean().item(), unique_ancestors(state.ancestors).float().mean().item()
