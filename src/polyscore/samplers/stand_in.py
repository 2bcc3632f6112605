"""What a composition of learned scores should look like, by what its sources draw alone.

A network is right where it was trained, so its own draws of one condition are sound though its scores elsewhere need
not be. Mixtures fitted to such draws compose in closed form. Where samplers disagree about the composition of the
networks, the one whose outputs are nearest to that of the mixtures has been misled least.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.base import recomposed
from polyscore.algebra.proper import proper
from polyscore.distributions import Distribution
from polyscore.errors import PolyscoreError
from polyscore.metrics import sliced_wasserstein
from polyscore.mixtures import fit_mixture
from polyscore.models.fitted import Fitted
from polyscore.nn.mixture import Mixed, MixtureOptions
from polyscore.nn.network import Architecture
from polyscore.nn.stack import StackNetwork
from polyscore.rng import generator
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.run import Run
from polyscore.samplers.spread import draws_alone

MOST_COORDINATES = 32  # of a point, up to which its sources are drawn
_DRAWS, _STEPS = 2000, 50  # of a source
_EXPECTED = 1000  # swarms of the mixtures' composition that others are compared with
EACH = 8  # particles of a swarm that are looked at: one output says little of how much mass is where
_PROJECTIONS = 200


def stand_in(q: Composition, seed: int) -> Composition | None:
    """Return the composition of mixtures fitted to what each learned source draws alone; None where there is none."""
    if len(q.event) != 1 or q.event[0] > MOST_COORDINATES or q.is_closed_form or q.is_tilted:
        return None
    learned = [name for name in q.exponents if not isinstance(q.family.members[name], Distribution)]
    try:
        draws = [draws_alone(q, name, seed, _DRAWS, _STEPS) for name in learned]
        known = {name: q.family.members[name] for name in q.exponents}
        return proper(recomposed(q, known | _fitted(q, dict(zip(learned, draws, strict=True)), seed)))
    except (PolyscoreError, torch.linalg.LinAlgError):  # sources that cannot be drawn one by one tell nothing
        return None


def outputs(stand: Composition, seed: int, others: int) -> tuple[Tensor, Tensor] | None:
    """Return draws of what a stand-in composes to, and of some other swarms; None where that is nothing."""
    try:
        run = FeynmanKac(64, threshold=0.5).sample(stand, _EXPECTED + others, seed, progress=False, history=False)
    except PolyscoreError:
        return None
    drawn = some_particles(run, seed)
    return drawn[: EACH * _EXPECTED], drawn[EACH * _EXPECTED :]


def some_particles(run: Run, seed: int) -> Tensor:
    """Return a few particles of every swarm, by their weights, `(EACH N, *event)`; all samples where there is one."""
    count = run.log_weights.shape[1]
    if count == 1:
        return run.samples
    shares = torch.softmax(run.log_weights.double().cpu(), 1)
    which = torch.multinomial(shares, EACH, replacement=True, generator=generator(seed, "particles"))
    rows = torch.arange(len(shares))[:, None]
    return run.particles[rows.to(run.particles.device), which.to(run.particles.device)].flatten(0, 1)


def distance(q: Composition, samples: Tensor, expected: Tensor) -> float:
    """Return sliced W2 between samples and what is expected, in deviations of the data.

    Of asinh, so that a few samples that ran away do not decide.
    """
    x, y = (q.family.standardise(part).asinh() for part in (samples, expected.to(samples)))
    return sliced_wasserstein(x, y, _PROJECTIONS)


def _fitted(q: Composition, draws: Mapping[str, Tensor], seed: int) -> dict[str, Fitted]:
    """A mixture a condition."""
    plain = Architecture("mixture", q.event[0], len(draws), True, q.schedule, options=MixtureOptions(dense=0))
    stack = Mixed(plain, [seed])
    for c, points in enumerate(draws.values()):
        stack.put(0, c, fit_mixture(points, seed))
    network = StackNetwork(stack)
    return {name: Fitted(network, c) for c, name in enumerate(draws)}
