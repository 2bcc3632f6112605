"""Outputs drawn from the particles of all swarms at once, every swarm by its evidence.

With Z^ the mean weight of a swarm and f^ what its weighted particles say of f, E[Z^] = Z and E[Z^ f^] = Z E[f]. So one
particle of each swarm is off by Cov(Z^, f^) / Z, which falls with K; N swarms that count by Z^ are one population, off
by the same over N (islands of particles: Verge, Dubarry, Del Moral & Moulines 2015). The price: outputs of a swarm that
holds much evidence are not independent.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from polyscore.rng import generator
from polyscore.samplers.run import Run
from polyscore.smc import Systematic, invert


def pooled(run: Run, seed: int) -> Run:
    """Return the run with as many samples as it has swarms, drawn systematically from all particles, in random order.

    A run without evidence stays as it is.
    """
    swarms = torch.softmax(run.log_evidence.double(), 0)
    if not bool(swarms.isfinite().all()):
        return run
    weights = swarms[:, None] * torch.softmax(run.log_weights.double(), 1)
    n, draw = len(swarms), generator(seed, "pool")
    points = Systematic().points(n, torch.rand(1, generator=draw, dtype=torch.float64))
    chosen = invert(weights.flatten().cumsum(0), points[torch.randperm(n, generator=draw)].to(weights.device))
    return replace(run, samples=run.particles.flatten(0, 1)[chosen], pooled=True)
