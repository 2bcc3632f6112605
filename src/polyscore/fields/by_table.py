"""In the plane, particles interpolated from few nodes: a fine table for many of them, or one that refines itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from polyscore.fields.evaluator import Case, Compose, Evaluator, lengths, relative, worst_error
from polyscore.fields.work import operations, products
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

# What a step by table costs besides what the model is asked there, and a particle or a node of it, in multiplications
# and additions: 0.5 ms and 0.06 us on a core that makes 1e11 of them a second.
_FIXED, _READ = 5e7, 6e3

# The first table of a run: noise is nearly linear, and others follow from its error.
_FIRST = 2

# The order of a spline's error, and the least that is believed of a model with kinks.
_ORDERS = (1.0, 4.0)

# Steps for which no table is tried after none would do, twice as many each time; more where what was asked in vain is
# more than this share of them.
_PAUSE, _IN_VAIN = 8, 0.03


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
        return _work(products, self.case, self.below) >= _HEAVY


class RefinedTable(Evaluator):
    """In the plane on a CPU: a table as coarse as its own check allows, at every step anew.

    With the nodes, the model is evaluated at some of the particles, others at every step. Where scores or excesses by
    table are off there, the table is refined, and where that would not pay, the step is the model's own.
    """

    arithmetic = "table"

    def __init__(self, case: Case, below: Evaluator | None) -> None:
        assert below is not None and case.compose is not None, "a table checks itself against the way below"
        self.case, self.below, self.compose = case, below, case.compose
        self.side, self.order, self.pause, self.rest = _FIRST, _ORDERS[1], _PAUSE, 0
        self.refused = self.used = False

    @staticmethod
    def serves(case: Case) -> bool:
        """Serve the plane on a CPU, in float32 or less, unless asked for something else."""
        return case.network.dim == 2 and not case.on_gpu and case.precision == "auto" and case.compose is not None

    @cached_property
    def work(self) -> float:
        """Multiplications and additions a particle, activations counted as so many of them."""
        return _work(operations, self.case, self.below)

    def __call__(self, x: Tensor, i: int | Tensor) -> Tensor:
        if not isinstance(i, int) or not self._worthwhile(len(x), 0):
            return self.below(x, i)
        if self.rest:
            self.rest -= 1
            return self.below(x, i)
        side, before, asked = min(self.side, self._most(len(x))), None, 0
        while True:
            values, error = self._table(x, i, SIDES[side])
            self._learn(before, side, error)
            if error <= _REFINED_ERROR:
                self.side, self.used = self._enough(side, error), True
                return values
            asked += SIDES[side] ** 2 + _probed(len(x))
            before, side = (side, error), max(side + 1, self._enough(side, error))
            if not self._worthwhile(len(x), side) or error != error:
                return self._directly(x, i, asked)

    def _learn(self, before: tuple[int, float] | None, side: int, error: float) -> None:
        """Learn the order of the error from two tables of one step: kinks make it less than that of splines."""
        if before is not None and 0 < error < math.inf:
            least, most = _ORDERS
            order = math.log(before[1] / error) / math.log(SIDES[side] / SIDES[before[0]])
            self.order = min(max(order, least), most)

    def _table(self, x: Tensor, i: int, side: int) -> tuple[Tensor, float]:
        """The values at all particles by a table of one size, and its error at some of them.

        Nodes and particles go through the model together.
        """
        grid = spline.Grid.around(x, side)
        positions = grid.positions(x)
        far = remote(positions, side, i)
        rows = torch.cat([far, probes(len(x), i)])
        at = x[rows]
        nodes, exact = self.below(torch.cat([grid.points(), at]), i).split([side * side, len(rows)], 1)
        values = grid.table(nodes).at(positions)
        composed = self.compose(torch.cat([values[:, rows], exact], 1), at.repeat(2, 1), i=i)
        remote_error, error = _errors([part.chunk(2) for part in composed if part is not None], len(far))
        return values, _larger(error, remote_error * _REFINED_ERROR / _REMOTE_ERROR)

    def _directly(self, x: Tensor, i: int, asked: int) -> Tensor:
        """Ask the model itself, and try no table for a while; then a coarse one, which costs little."""
        self.side, self.order, self.refused = _FIRST, _ORDERS[1], True
        self.rest, self.pause = max(self.pause, int(asked / (_IN_VAIN * len(x)))), 2 * self.pause
        return self.below(x, i)

    def _worthwhile(self, particles: int, side: int) -> bool:
        """Whether a table costs at most two thirds of what the model itself does."""
        if side >= len(SIDES):
            return False
        nodes = SIDES[side] ** 2
        spare = 2 / 3 * particles - nodes - _probed(particles)
        # Few particles are decided before the model's work is counted, which asks it about a point.
        return spare > 0 and _FIXED + _READ * (nodes + particles) <= spare * self.work

    def _most(self, particles: int) -> int:
        return max(side for side in range(len(SIDES)) if self._worthwhile(particles, side))

    def _enough(self, side: int, error: float) -> int:
        """The coarsest table whose error would be half of what may be, by the order that was seen."""
        fitting = (k for k, m in enumerate(SIDES) if error * (SIDES[side] / m) ** self.order <= _REFINED_ERROR / 2)
        return next(fitting, len(SIDES))

    def says(self, particles: int) -> str:
        """Return "table" where one was read, with the way below where that was needed too."""
        below = self.below.says(particles)
        return (f"table, {below}" if self.refused else "table") if self.used else below

    @staticmethod
    def numbers_per_row(case: Case) -> int:
        """Return none: nodes go piece by piece, and particles too where there is no table."""
        return 0


def _work(count: Callable[[Callable[[], object]], int], case: Case, below: Evaluator) -> float:
    """What is counted of a particle: counted, not timed, so that runs can be repeated."""
    if getattr(case.network, "compiled", False):  # who compiles a model has much of it; and what it does is hidden
        return math.inf
    point = torch.zeros(1, 2, device=case.device, dtype=torch.float32)
    try:
        return count(lambda: below(point, 0))
    except ModelError:  # one that squeezes a batch of one away: it is asked as it is, without a table
        return 0.0


def probes(particles: int, i: int) -> Tensor:
    """Return the rows of some particles, others at every step."""
    count = _probed(particles) // 2
    stride = max(1, particles // count)
    return torch.arange((i * 61) % stride, particles, stride)[:count]


def remote(positions: Tensor, side: int, i: int) -> Tensor:
    """Return the row of one particle of every region that has any, those with the fewest first, others at every step.

    Args:
        positions: of all particles in a grid of so many nodes a side, `(2, B)`.
    """
    count, turn = positions.shape[1], i * 61
    place = ((positions - 1) * (_REGIONS / (side - 1))).int().clamp_(0, _REGIONS - 1)
    region = torch.add(place[1], place[0], alpha=_REGIONS).long()
    order = (torch.arange(count) - turn) % count
    first = torch.full((_REGIONS**2,), count).scatter_reduce(0, region, order, "amin")
    counts = torch.bincount(region, minlength=_REGIONS**2)
    fewest = counts.sort(stable=True).indices[counts.eq(0).sum() :][: _probed(count) // 2]
    return (first[fewest] + turn) % count


def _errors(pairs: Sequence[tuple[Tensor, ...]], first: int) -> tuple[float, float]:
    """The larger relative error of scores and excesses by table, at so many first points and at the others."""
    errors, sizes = (torch.stack([lengths(part) for part in parts]) for parts in zip(*((a - b, b) for a, b in pairs)))
    groups = slice(first), slice(first, None)
    found = torch.stack([relative(errors[:, group], sizes[:, group]) for group in groups]).amax(1).tolist()
    return found[0], found[1]


def _larger(a: float, b: float) -> float:
    """The larger error; what is no number is larger than any."""
    return a if a > b or a != a else b


def _probed(particles: int) -> int:
    least, most = _PROBES
    return min(max(particles // 16, least), most)
