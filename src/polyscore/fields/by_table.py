"""In the plane, particles interpolated from few nodes: a fine table for many of them, or one that refines itself."""

from __future__ import annotations

from functools import cached_property, partial

import torch
from torch import Tensor

from polyscore.fields.evaluator import Case, Compose, Evaluator, worst_error
from polyscore.fields.work import products
from polyscore.models.asking import ModelError
from polyscore.nn.fast import plane, spline

# A table is given up where scores or excesses by it are off by more than this, point by point in the quadratic mean:
# fp16 products, within 1e-3 of the noise, may move excesses by more.
_TABLE_ERROR = 5e-3

# A table that refines itself is read only below this, and below the other at particles of all regions alike.
_REFINED_ERROR, _REMOTE_ERROR = 2e-3, 2e-2

# Nodes along each coordinate of tables that refine themselves: each has twice the nodes of the one before.
SIDES = (14, 20, 28, 40, 56, 80, 112, 160, 224)

# Particles at which every table is compared with what it stands for: one in 16, within these bounds. Up to half of
# them come one from each of so many by so many regions: a clump of a few particles far away may hold all the weight.
_PROBES, _REGIONS = (32, 128), 8

# Multiplications and additions a particle from which a table is quicker than a model.
_HEAVY = 1e5

# The first table of a run: noise is nearly linear, and others follow from its error.
_FIRST = 2

# Steps for which no table is tried after none would do; twice as many each time.
_PAUSE = 8


class ByTable(Evaluator):
    """In the plane, many particles interpolated from few nodes; fewer are evaluated by the way below."""

    arithmetic = "table"

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        assert below is not None, "nodes are evaluated by another way"
        self.below = below

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve the plane: where asked to, and on a GPU by itself."""
        return case.network.dim == 2 and case.precision in (("auto", "table") if case.on_gpu else ("table",))

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        if not self.reads(len(x)):
            return self.below(x, i)
        return plane.tabulated(lambda nodes: self.below(nodes, i), x)

    def reads(self, particles: int) -> bool:
        """Whether so many particles are interpolated."""
        return particles >= plane.WORTHWHILE

    def says(self, particles: int) -> str:
        """Return "table" for those that are interpolated."""
        return self.arithmetic if self.reads(particles) else self.below.says(particles)

    def trusts(self, x: Tensor, i: int, exact: Evaluator, compose: Compose) -> bool:
        """Whether the table is the network, where there is one: in float32, rounding to fp16 is another matter."""
        if not self.reads(len(x)):
            return True
        points, nodes = plane.some(x), plane.Nodes.around(x)
        read = plane.interpolate(exact(nodes.points(), i), nodes, points)
        # An error that is no number is the alarm's matter, not the table's.
        return not worst_error(read, exact(points, i), compose, points) > _TABLE_ERROR

    @staticmethod
    def numbers_per_row(case: Case) -> int:
        """Return none on a CPU, where nodes go piece by piece."""
        return case.network.numbers_per_row if case.on_gpu else 0


class ModelTable(ByTable):
    """The same for models of any kind, where they are work enough: a formula is quicker, and exact."""

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        super().__init__(case, below)
        self.case = case

    def reads(self, particles: int) -> bool:
        """Whether so many particles are interpolated; the model is asked about one point, once."""
        return super().reads(particles) and self.heavy

    @cached_property
    def heavy(self) -> bool:
        """Whether a table pays."""
        return _is_heavy(self.case, self.below)


class RefinedTable(Evaluator):
    """In the plane on a CPU: a table as coarse as its own check allows, at every step anew.

    With the nodes, the model is evaluated at some of the particles, others at every step. Where scores or excesses by
    table are off there, the table is refined, and where that would not pay, the step is the model's own.
    """

    arithmetic = "table"

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        assert below is not None and case.compose is not None, "a table checks itself against the way below"
        self.case, self.below, self.compose = case, below, case.compose
        self.side, self.pause, self.rest = _FIRST, _PAUSE, 0
        self.refused = self.used = False

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve the plane on a CPU, in float32 or less, unless asked for something else."""
        return case.network.dim == 2 and not case.on_gpu and case.precision == "auto" and case.compose is not None

    @cached_property
    def heavy(self) -> bool:
        """Whether a table pays."""
        return _is_heavy(self.case, self.below)

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        if not self._worthwhile(len(x), 0) or not isinstance(i, int) or not self.heavy:
            return self.below(x, i)
        if self.rest:
            self.rest -= 1
            return self.below(x, i)
        side = min(self.side, self._most(len(x)))
        while True:
            table, error = self._table(x, i, SIDES[side])
            if error <= _REFINED_ERROR:
                self.side, self.used = _enough(side, error), True
                return table(x)
            side = max(side + 1, _enough(side, error))
            if not self._worthwhile(len(x), side) or error != error:
                return self._directly(x, i, side)

    def _table(self, x: Tensor, i: int, side: int) -> tuple[spline.Table, float]:
        """A table of one size and its error at some particles; nodes and particles go through the model together."""
        grid = spline.Grid.around(x, side)
        far, near = remote(x, grid, i), probes(x, i)
        values = self.below(torch.cat([grid.points(), far, near]), i)
        table, compose = grid.table(values[:, : side * side]), partial(self.compose, i=i)
        exact = values[:, side * side :].split([len(far), len(near)], 1)
        remote_error, error = (worst_error(table(at), e, compose, at) for at, e in zip((far, near), exact, strict=True))
        return table, _larger(error, remote_error * _REFINED_ERROR / _REMOTE_ERROR)

    def _directly(self, x: Tensor, i: int, side: int) -> Tensor:
        """Ask the model itself, and try no table for a while."""
        self.side, self.rest, self.pause, self.refused = min(side, len(SIDES) - 1), self.pause, 2 * self.pause, True
        return self.below(x, i)

    @staticmethod
    def _worthwhile(particles: int, side: int) -> bool:
        """Whether a table has at most half as many nodes as there are particles."""
        return side < len(SIDES) and 2 * (SIDES[side] ** 2 + _probed(particles)) <= particles

    def _most(self, particles: int) -> int:
        return max(side for side in range(len(SIDES)) if self._worthwhile(particles, side))

    def says(self, particles: int) -> str:
        """Return "table" where one was read, with the way below where that was needed too."""
        below = self.below.says(particles)
        return (f"table, {below}" if self.refused else "table") if self.used else below

    @staticmethod
    def numbers_per_row(case: Case) -> int:
        """Return none: nodes go piece by piece, and particles too where there is no table."""
        return 0


def _is_heavy(case: Case, below: Evaluator) -> bool:
    """Whether a model is work enough for a table to pay: counted, not timed, so that runs can be repeated."""
    if getattr(case.network, "compiled", False):  # who compiles a model has thought so; and what it does is hidden
        return True
    point = torch.zeros(1, 2, device=case.device)
    try:
        return products(lambda: below(point, 0)) >= _HEAVY
    except ModelError:  # one that squeezes a batch of one away: it is asked as it is, without a table
        return False


def probes(x: Tensor, i: int) -> Tensor:
    """Return some of the points, others at every step."""
    count = _probed(len(x)) // 2
    stride = max(1, len(x) // count)
    return x[(i * 61) % stride :: stride][:count]


def remote(x: Tensor, grid: spline.Grid, i: int) -> Tensor:
    """Return one point of every region that has any, those with the fewest first, others at every step."""
    place = ((grid.nodes.positions(x) - 1) * (_REGIONS / (grid.side - 1))).long().clamp(0, _REGIONS - 1)
    region, turn = place[:, 0] * _REGIONS + place[:, 1], i * 61
    order = (torch.arange(len(x)) - turn) % len(x)
    first = torch.full((_REGIONS**2,), len(x)).scatter_reduce(0, region, order, "amin")
    counts = torch.bincount(region, minlength=_REGIONS**2)
    fewest = counts.sort(stable=True).indices[counts.eq(0).sum() :][: _probed(len(x)) // 2]
    return x[(first[fewest] + turn) % len(x)]


def _larger(a: float, b: float) -> float:
    """The larger error; what is no number is larger than any."""
    return a if a > b or a != a else b


def _probed(particles: int) -> int:
    least, most = _PROBES
    return min(max(particles // 16, least), most)


def _enough(side: int, error: float) -> int:
    """The coarsest table whose error would be half of what may be, by the fourth order of splines."""
    fitting = (k for k, m in enumerate(SIDES) if error * (SIDES[side] / m) ** 4 <= _REFINED_ERROR / 2)
    return next(fitting, len(SIDES))
