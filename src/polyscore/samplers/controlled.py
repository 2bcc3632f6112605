"""Variance-controlled proposals: Feynman-Kac correction with a drift that leaves little to weigh.

At every time of the grid the drift (`control`) is the one that makes the variance of the log-weight rate least over a
swarm (DriftLite, Ren et al. 2025, for annealing and rewards; here for products of powers). On Gaussian compositions
nothing is left: ESS = K. The drifts come from a pilot run with random numbers of its own, and are fixed before the run
that counts: its evidence stays unbiased, and its swarms independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.fields import row
from polyscore.limits import require_memory
from polyscore.rng import derive, generator
from polyscore.samplers import step
from polyscore.samplers.control import Control, frame_of, solved
from polyscore.samplers.discrete import by_steps
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.plan import Coefficients, Plan, make_plan
from polyscore.samplers.step import State
from polyscore.schema import choice, count, optional, setting
from polyscore.smc import weigh

BASES = ("auto", "affine", "diagonal", "scalar")
_MOST_AFFINE, _MOST_DIAGONAL = 12, 512  # dimensions
_MOST_BUMPS, _MOST_PUSHES = 48, 288  # bumps, and numbers in their pushes; none beyond `_MOST_AFFINE` dimensions
_REACH = 1.0  # deviations of the swarm that one step may drift


@dataclass(frozen=True, repr=False)
class Controlled(FeynmanKac):
    """Feynman-Kac correction with variance-controlled proposals.

    Args:
        particles: K, per swarm.
        threshold: resample a swarm when its ESS is at most this share of K: with little to weigh, seldom.
        basis: of the drift's linear part: "affine" (a matrix), "diagonal", "scalar", or "auto", by the dimension.
        bumps: local pushes beside it; None takes 48 in the plane, fewer in more dimensions and none beyond twelve.
        pilot: particles of the pilot run, one swarm.
        pilot_seed: of its random numbers, which the run's own seed does not touch.
        steps, clip, churn, ...: as in `FeynmanKac`.
    """

    threshold: float = 0.5
    basis: str = setting("auto", choice(BASES))
    bumps: int | None = setting(None, optional(count(0, 1000)))
    pilot: int = setting(4096, count(64, 10**7))
    pilot_seed: int = setting(0, count(0))

    @property
    def is_movable(self) -> bool:
        """As others: its drift is found anew wherever the composition is."""
        return self._follows_data

    def tables(self, q: Composition, times: Tensor, like: Tensor) -> dict[str, Tensor]:
        """Return the control of every time, by a pilot run."""
        kind, bumps = self.sizes(math.prod(q.event))
        _require_room(math.prod(q.event), kind, bumps, self.pilot)
        plain = {name: getattr(self, name) for name in FeynmanKac.names()}
        # Variance is taken out of a rate, also where weights are those of the steps.
        quadrature = "noise" if by_steps(self) else self.quadrature
        own = {"particles": self.pilot, "kernels": (), "ancestry": False, "quadrature": quadrature}
        pilot = FeynmanKac(**{**plain, **own})
        plan = make_plan(q, pilot, derive(self.pilot_seed, "pilot"), like, history=False)
        control = piloted(plan, kind, bumps)
        return {**control._asdict(), "length": plan.clock.lengths.to(like), "kept": kept(plan).to(like)}

    def sizes(self, dim: int) -> tuple[str, int]:
        """Return the basis and the number of bumps for points of so many coordinates."""
        chosen = "affine" if dim <= _MOST_AFFINE else "diagonal" if dim <= _MOST_DIAGONAL else "scalar"
        few = min(_MOST_BUMPS, _MOST_PUSHES // dim) if dim <= _MOST_AFFINE else 0
        return (chosen if self.basis == "auto" else self.basis), (few if self.bumps is None else self.bumps)

    def steer(self, plan: Plan, state: State, x: Tensor, i: int | Tensor) -> Tensor:
        """Add the drift of this step."""
        share = None if plan.by_steps else row(plan.tables["kept"], i)
        return drifted(_control(plan, i), state.x, x, row(plan.tables["length"], i), share)

    def steered(self, plan: Plan, before: State, after: State, i: int | Tensor, gained: Tensor) -> Tensor:
        """Add what the drift costs."""
        return gained + cost(_control(plan, i), plan, before, after, i)


def kept(plan: Plan) -> Tensor:
    """Return what is left at the end of every step of a push at its start, the clean point held, `(steps,)`.

    S = W (alpha X - x) / sigma^2 makes the move (keep - pull W / sigma^2) x and what X adds.
    """
    keep, pull, sigma = (plan.scalars[:-1, Coefficients._fields.index(name)] for name in ("keep", "pull", "sigma"))
    return (keep - pull * plan.q.total / sigma**2).clamp(0, 1)


def drifted(
    control: Control, before: Tensor, x: Tensor, length: float | Tensor, share: float | Tensor | None
) -> Tensor:
    """Return the proposed points x with the drift of a step from `before`: Heun's rule, of second order.

    Args:
        share: what is left of a push at the step's start; None for Euler's rule, whose kernel has a density.
    """
    first = control.drift(before.flatten(2)).view_as(x)
    there = x + length * first
    if share is None:
        return there
    return x + 0.5 * length * (share * first + control.drift(there.flatten(2)).view_as(x))


def _require_room(dim: int, kind: str, bumps: int, pilot: int) -> None:
    """Refuse a drift of more numbers than a regression on them fits into memory."""
    numbers = dim * (1 + bumps) + {"affine": dim * dim, "diagonal": dim, "scalar": 1}[kind]
    require_memory(16 * numbers * (pilot + numbers), f"a drift of {numbers} numbers, found by {pilot} particles,",
                   "Use fewer bumps, basis='diagonal', or a smaller pilot.")  # fmt: skip


def cost(control: Control, plan: Plan, before: State, after: State, i: int | Tensor) -> Tensor:
    """Return the integral of div c + <c, S> over step i, by the quadrature of g."""
    left, right = (control.rate(state.x.flatten(2), state.score.flatten(2)) for state in (before, after))
    return step.gain(plan, left, right, plan.coefficients(i))


def _control(plan: Plan, i: int | Tensor) -> Control:
    """The drift of step i."""
    return Control(*(row(plan.tables[name], i) for name in Control._fields))


def piloted(plan: Plan, kind: str, bumps: int) -> Control:
    """Return the control of every step, each found from the particles that those before it have led there."""
    lengths, counted = plan.clock.lengths.tolist(), _counted(plan)
    wanted = plan.sampler.draws(plan.q)
    streams = {name: plan.stream(name, draw.shape, 0, 1, draw.normal) for name, draw in wanted.items()}
    source = generator(plan.seed, "bumps")
    state, found = step.begin(plan, 0, 1), list[Control]()
    for i in range(plan.steps):
        control = _best(state, kind, bumps, lengths[i], source)
        found.append(control if counted[i] else control.scaled(0.0))
        state = _advanced(plan, state, found[-1], i, {name: draw(i) for name, draw in streams.items()})
    return Control(*(torch.stack(parts) for parts in zip(*found, strict=True)))


def _counted(plan: Plan) -> list[bool]:
    """Of every step, whether its weights count: where they do not, a drift would move the target."""
    left, right = (plan.scalars[:-1, Coefficients._fields.index(name)] for name in ("left", "right"))
    return (left.abs() + right.abs() > 0).tolist()


def _best(state: State, kind: str, bumps: int, length: float, source: torch.Generator) -> Control:
    """The control of least variance over a swarm `(1, K, ...)`, held to `_REACH` deviations a step."""
    x, score, rate = (part[0].flatten(1).double().cpu() for part in (state.x, state.score, state.rate[..., None]))
    weights = weigh(state.log_weights).scaled[0].double().cpu()
    weights = weights / weights.sum()
    frame = frame_of(x, weights, bumps, source)
    control = solved(frame, x, score, rate.squeeze(-1), weights, kind)
    moved = length * (weights @ (control.drift(x) * frame.scale).square().mean(-1)).sqrt()
    held = control.scaled((_REACH / moved.clamp_min(1e-300)).clamp_max(1.0))
    return Control(*(part.to(state.x) for part in held))


def _advanced(plan: Plan, state: State, control: Control, i: int, noise: Mapping[str, Tensor]) -> State:
    """One step of the pilot."""
    now, length = plan.coefficients(i), plan.clock.lengths[i].item()
    x = drifted(control, state.x, step.propose(plan, state, i, now, noise), length, kept(plan)[i].item())
    if "back" in plan.used:
        state = replace(state, clean=step.plus(state.x * now.of_x, state.score, now.of_score))
    new = step.evaluate(plan, state, x, i + 1)
    gained = step.gain(plan, state.rate, new.rate, now) + cost(control, plan, state, new, i)
    return step.resample(plan, replace(new, log_weights=state.log_weights + gained), i, noise["resampling"])
