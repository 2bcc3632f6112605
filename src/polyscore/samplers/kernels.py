"""Kernels: what moves particles at one time of the grid, after the step that led there.

A kernel that leaves the path prod_a P_{a,t}^{w_a} at that time as it is (Langevin steps with an acceptance; exchanges
between particles) changes no weight: samples mix better, and evidence keeps its meaning. Unadjusted Langevin steps do
so up to an error of the order of their size, which more grid times do not remove.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from polyscore.registry import Registry

if TYPE_CHECKING:
    from polyscore.samplers.plan import Plan
    from polyscore.samplers.step import State


class Kernel(ABC):
    """A pure function of a state at one time; a frozen dataclass, with its options as fields.

    Attributes:
        normals, uniforms: how many of each it takes a step, for every particle (and coordinate, of normals).
        proposals: how many of its steps are accepted or rejected; it adds the share of particles that accept one to
            `state.accepted`, and the run says what came of it.
        graphable: whether it is tensor code without decisions of the host, which a CUDA graph can hold.
        movable: whether it does the same about another origin, as what asks plan and state alone does.
    """

    normals: int = 1
    uniforms: int = 0
    proposals: int = 0
    graphable: bool = True
    movable: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, plan: Plan, state: State, i: int | Tensor, z: Tensor, u: Tensor) -> State:
        """Return the state after it, at the same time.

        Args:
            state: with the score and rate of its x; `step.evaluate(plan, state, x, i)` gives those of another x.
            i: the time's index: a number, or a device tensor inside a CUDA graph. `plan.coefficients(i)` has alpha,
                sigma and the move's scalars there, `fields.row(table, i)` a row of a table of one's own.
            z: standard normals, `(normals, N, K, *event)`.
            u: uniforms on [0, 1), `(uniforms, N, K)`.
        """


KERNELS: Registry[type[Kernel]] = Registry("kernel", hint="Register one of your own: KERNELS.register(name).")
