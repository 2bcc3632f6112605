"""The one loop that all samplers share: a generator of states, so that progress, plots and early stops stay outside.

What a sampler gives it is a plan and a pure step; it knows nothing else of the kind of sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

from polyscore.errors import ScoreError
from polyscore.fields import Field
from polyscore.samplers.collect import History, finish
from polyscore.samplers.graph import captured
from polyscore.samplers.plan import Plan
from polyscore.samplers.run import Run
from polyscore.samplers.step import State

# Scores are checked (for non-finite ones, for shortcuts) this rarely, so that the host does not wait for the device:
# every 50 steps, or eight times in short runs.
_CHECK_INTERVAL, _FEWEST_CHECKS = 50, 8


def iterate(plan: Plan, first: int, stop: int, graphs: bool = True) -> Iterator[State]:
    """Yield the state of swarms first..stop at t = 1 and after every step."""
    wanted = plan.sampler.draws(plan.q)
    streams = {name: plan.stream(name, draw.shape, first, stop, draw.normal) for name, draw in wanted.items()}
    state = plan.sampler.begin(plan, first, stop)
    yield state
    if graphs and plan.graphable and (replay := captured(plan, state, streams)) is not None:
        yield from replay()
        return
    for i in range(plan.steps):
        state = plan.sampler.step(plan, state, i, {name: stream(i) for name, stream in streams.items()})
        yield state


def run_chunk(plan: Plan, first: int, stop: int, count: Callable[[int], None]) -> tuple[Run, Plan]:
    """Run swarms first..stop, again where the field has given up a shortcut; also returns the plan to go on with.

    Args:
        count: told the swarms that have made a step, negative where steps are made again.
    """
    while not isinstance(result := _try_chunk(plan, first, stop, count), Run):
        plan = replace(plan, field=result)
    return result, plan


def _try_chunk(plan: Plan, first: int, stop: int, count: Callable[[int], None]) -> Run | Field:
    """Return the run, or the field with which to begin again."""
    interval = max(1, min(_CHECK_INTERVAL, plan.steps // _FEWEST_CHECKS))
    history = History(plan, stop - first)
    for i, state in enumerate(iterate(plan, first, stop)):
        if i % interval == 0 or i == plan.steps:
            alarmed = not bool(state.alarm == 0)
            if (mended := plan.field.mend(state.x, i, alarmed)) is not plan.field:
                count(-max(0, i - 1) * (stop - first))
                return mended
            if alarmed:
                _explain_non_finite(plan, first, stop)
        if i:
            history.add(i - 1, state)
            count(stop - first)
    return finish(plan, state, history, first, stop)


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
