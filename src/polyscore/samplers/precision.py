"""Precision-weighted composition: denoising along the noised composition itself (from simulation-based inference).

Every other sampler here follows prod_a P_{a,t}^{w_a}, the composition of noised sources. The noised composition is
another path with the same end; its score weighs each source's by how precisely that source knows the clean point
(`polyscore.fields.precision`). For Gaussians it is exact, for every W, so plain denoising ends in the composition.
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
from polyscore.samplers.grids import extent_of
from polyscore.samplers.kernels import Kernel
from polyscore.samplers.moves import AsOne, Move
from polyscore.samplers.sampler import Sampler
from polyscore.schema import number, setting

MOST_COORDINATES = 64  # of a point: Jacobians have their square


@dataclass(frozen=True, repr=False)
class PrecisionWeighted(Sampler):
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
    floor: float = setting(0.1, number(0, 1, ends=False))

    @property
    def graphable(self) -> bool:
        """Whether a matrix is positive is decided by the host."""
        return False

    def check(self, q: Composition) -> None:
        """Refuse points whose Jacobians would be too large."""
        good = len(q.event) == 1 and math.prod(q.event) <= MOST_COORDINATES
        require(good, "points of PrecisionWeighted", f"be vectors of at most {MOST_COORDINATES} coordinates", q.event,
                "It needs whole Jacobians of scores: use FeynmanKac.")  # fmt: skip

    def prepare(self, q: Composition, times: Tensor, like: Tensor) -> Field:
        """Return what gives the weighted score."""
        return PrecisionField(q, times, like, extent_of(q).size, self.floor)
