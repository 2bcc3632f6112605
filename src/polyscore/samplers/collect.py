"""What is kept of a run: the history of its steps, its last state as a `Run`, and chunks made one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from polyscore.samplers.plan import Plan
from polyscore.samplers.run import Run
from polyscore.samplers.step import State, flat_rows
from polyscore.smc import invert, weigh


class History:
    """What is kept of every step: effective sample sizes, whole or summed up, acceptances, and parents if asked for."""

    def __init__(self, plan: Plan, swarms: int) -> None:
        steps, particles, device = plan.steps, plan.sampler.particles, plan.like.device
        wide = torch.promote_types(plan.like.dtype, torch.float32)
        self.lowest = torch.full((swarms,), float(particles), dtype=wide, device=device)
        self.means = torch.full((steps,), float(particles), dtype=wide, device=device)
        self.losses = torch.zeros(steps, dtype=wide, device=device)
        self.weighted = plan.sampler.weighted and particles > 1
        # Without weights every entry is the same number, which takes no room.
        self.whole = torch.full((1, 1), float(particles), dtype=wide, device=device).expand(steps, swarms)
        self.keep = plan.history
        if self.weighted and plan.history:
            self.whole = torch.empty(steps, swarms, dtype=wide, device=device)
        self.parents: list[Tensor] | None = [] if plan.sampler.ancestry else None
        self.proposals = sum(kernel.proposals for kernel in plan.sampler.kernels)  # a step
        self.accepted = torch.zeros(steps + 1 if self.proposals else 0, dtype=wide, device=device)

    def add(self, i: int, state: State) -> None:
        """Note the state after step i."""
        if self.parents is not None:
            self.parents.append(state.parents.clone())
        if self.proposals:
            self.accepted[i + 1] = state.accepted
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
    def acceptance(self) -> Tensor | None:
        """Of the proposals of every step, `(steps,)`; None without any."""
        return self.accepted.diff() / self.proposals if self.proposals else None

    @property
    def ancestry(self) -> Tensor | None:
        """Every step's parents, or None."""
        return None if self.parents is None else torch.stack(self.parents)


def finish(plan: Plan, state: State, history: History, first: int, stop: int) -> Run:
    """Return the result of a chunk: one particle a swarm by its weight, in the data's units, and what was counted."""
    sampler, family = plan.sampler, plan.q.family
    u = plan.stream("output", (1,), first, stop, normal=False, steps=1)(0)
    standard = state.x if plan.last_signal == 1 else state.x / plan.last_signal
    log_weights = _weighed_for_bend(plan, state, standard)
    final = weigh(log_weights)
    slot = invert(final.scaled.cumsum(-1), u)
    particles = family.restore(standard)
    return Run(
        samples=particles.flatten(0, 1)[flat_rows(slot, sampler.particles)],
        particles=particles,
        log_weights=log_weights,
        log_evidence=_log_evidence(plan, state, final.log_mean),
        lowest_ess=torch.minimum(history.lowest, final.ess) if log_weights is not state.log_weights else history.lowest,
        mean_ess=history.means,
        step_losses=history.losses,
        ancestors=state.ancestors,
        clipped_fraction=state.clipped.item() / plan.steps,
        arithmetic=plan.field.arithmetic(state.log_weights.numel()),
        ancestry=history.ancestry,
        acceptance=history.acceptance,
        ess_history=history.ess,
        reach=standard.flatten(0, 1).abs().median(0).values.max().item() if family.units is not None else math.nan,
        width=standard.double().flatten(2).var((0, 1), correction=0).mean().sqrt().item(),
    )


def _weighed_for_bend(plan: Plan, state: State, standard: Tensor) -> Tensor:
    """Return final log-weights with what a bend leaves where W is not 1: (1 - W) log |dy/dx| of every particle."""
    q = plan.q
    if not (q.is_tilted and plan.sampler.weighted):
        return state.log_weights
    return state.log_weights + (1 - q.total) * q.family.log_volume(standard)


def _log_evidence(plan: Plan, state: State, log_mean: Tensor) -> Tensor:
    """Return each swarm's estimate of log Z in the data's units; NaN where there are no weights."""
    # In units of the data, Z gains the volume of one standardised unit to the power 1 - W.
    # So it does with alpha, where the last point is alpha x_0 and a little noise.
    # Of a bend the log-weights have it, point by point.
    family, middle = plan.q.family, torch.zeros(plan.event, dtype=torch.float64)
    volume = 0.0 if family.is_bent else float(family.log_volume(middle))
    scale = volume - math.prod(plan.event) * math.log(plan.last_signal)
    evidence = state.log_evidence + log_mean + (1 - plan.q.total) * scale
    return evidence if plan.sampler.weighted else torch.full_like(evidence, math.nan)


def join(parts: list[Run]) -> Run:
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
    means["acceptance"] = None if parts[0].acceptance is None else mean("acceptance")
    extremes = {name: max(getattr(part, name) for part in parts) for name in ("reach", "width")}
    fields: dict[str, Any] = {**joined, **means, **extremes}
    return Run(**fields, arithmetic=", ".join(dict.fromkeys(part.arithmetic for part in parts)))
