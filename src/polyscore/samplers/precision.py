"""Precision-weighted composition: denoising along the noised composition itself (from simulation-based inference).

Every other sampler here follows prod_a P_{a,t}^{w_a}, the composition of noised sources. The noised composition is
another path with the same end; its score weighs each source's by how precisely that source knows the clean point
(`polyscore.fields.precision`). For Gaussians it is exact, for every W, so plain denoising ends in the composition. As a
proposal under Feynman-Kac weights (`polyscore.fields.proposal`) it is one for everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import require
from polyscore.fields import Field
from polyscore.fields.precision import PrecisionField
from polyscore.fields.proposal import ProposalField
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.grids import extent_of
from polyscore.samplers.kernels import Kernel
from polyscore.samplers.moves import AsOne, Move, Neighbouring
from polyscore.samplers.sampler import Sampler
from polyscore.schema import count, number, optional, setting

MOST_COORDINATES = 64  # of a point: Jacobians have their square
_FEW, _PROBES = 8, 8  # coordinates up to which traces are exact, and the probes beyond
_FLOOR = number(0, 1, ends=False)


class ByJacobians:
    """What both samplers are, whose scores need the Jacobians of every condition's."""

    @property
    def graphable(self) -> bool:
        """Whether a matrix is positive is decided by the host."""
        return False

    def check(self, q: Composition) -> None:
        """Refuse points that are no vectors, or whose Jacobians would be too large."""
        good = len(q.event) == 1 and math.prod(q.event) <= MOST_COORDINATES
        require(good, f"points of {type(self).__name__}", f"be vectors of at most {MOST_COORDINATES} coordinates",
                q.event, "It needs whole Jacobians of scores: use FeynmanKac.")  # fmt: skip


@dataclass(frozen=True, repr=False)
class PrecisionWeighted(ByJacobians, Sampler):
    """Denoise by s = M^-1 sum_a w_a R_a s_a, the score of the noised composition where sources are Gaussian.

    The target is prod_a P_a^{w_a}, without weights; elsewhere than among Gaussians its error is that of taking each
    x_0 given x_t for Gaussian, and nothing in the run tells how large it is. An evaluation needs the Jacobian of every
    condition's score: d backward passes for Gaussians and mixtures, 2 d evaluations more for anything else.

    Args:
        floor: least eigenvalue of M, as a share of what noise and the size of the sources allow; negative exponents can
            ask for less, which is projected, and warned of.
        steps, churn, grid, integrator: as in `Sampler`; the move is that of a single condition.
    """

    move: Move = field(default=AsOne(), init=False)
    start: str | Callable[..., Any] = field(default="noised", init=False)
    kernels: tuple[Kernel, ...] = field(default=(), init=False)
    floor: float = setting(0.1, _FLOOR)

    def prepare(self, q: Composition, times: Tensor, like: Tensor) -> Field:
        """Return what gives the weighted score."""
        return PrecisionField(q, times, like, extent_of(q).size, self.floor)


@dataclass(frozen=True, repr=False)
class PrecisionFeynmanKac(ByJacobians, FeynmanKac):
    """Feynman-Kac correction whose particles are carried by the precision-weighted score.

    Weights make up for what taking every x_0 given x_t for Gaussian leaves wrong, so samples and evidence are those of
    prod_a P_a^{w_a}, whatever the sources are; on Gaussians there is little left to weigh, and at the data nothing with
    churn 0. Rates need the divergence of the drift: exact up to eight dimensions, at 2 d times the Jacobians of
    `PrecisionWeighted`; beyond by probes (Hutchinson). Their errors stand in the exponent of a weight, so that nothing
    stays unbiased. Probes are fixed before the run and the same for all particles, which takes most of it out of the
    weights' ratios, and go round an orthogonal basis, which takes most of it out of sums over steps; what their
    disagreement can do to log Z, which the swarms' agreement does not show, is estimated and told of where it is much.

    Args:
        particles: K, per swarm. One particle at churn 0 and W = 1 moves as in `PrecisionWeighted`; with churn its noise
            is that of Langevin steps on the path that weights belong to.
        threshold: resample a swarm when its ESS is at most this share of K: with little to weigh, seldom.
        floor: as in `PrecisionWeighted`, but higher: a projected drift is paid for as any other, a steep one dearly.
        probes: for traces; None takes the exact ones in up to eight dimensions, and eight probes beyond.
        probe_seed: of their signs, which the run's own seed does not touch.
        steps, clip, churn, ...: as in `FeynmanKac`; the move is its own, and kernels have no place beside it.
    """

    threshold: float = 0.5
    move: Move = field(default=Neighbouring(), init=False)
    kernels: tuple[Kernel, ...] = field(default=(), init=False)
    floor: float = setting(0.5, _FLOOR)
    probes: int | None = setting(None, optional(count(2, 10_000)))
    probe_seed: int = setting(0, count(0))

    def prepare(self, q: Composition, times: Tensor, like: Tensor) -> Field:
        """Return what gives the score of the move, and its rate."""
        probes = _PROBES if self.probes is None and q.event[0] > _FEW else self.probes
        return ProposalField(q, times, like, extent_of(q).size, self.floor, self.churn, probes, self.probe_seed)
