"""The composition on a fine grid, exact to its cell, in one and two dimensions.

Mixtures have cells of one width in a box around their components; other densities have cells where their mass was
found (`search`), which is checked (`held`).
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.devices import on_cpu
from polyscore.errors import is_count, require, shorten
from polyscore.limits import require_memory
from polyscore.rng import generator
from polyscore.smc import invert
from polyscore.targets.axes import Axes, EvenAxes
from polyscore.targets.box import mixture_box
from polyscore.targets.draws import check_count
from polyscore.targets.held import held_axes
from polyscore.targets.importance import tail_proposal
from polyscore.targets.target import Target

_GAUSSIAN_STEEPNESS = math.sqrt(10)  # of a Gaussian, 5 below its peak, for cells of one deviation


class OnGrid(Target):
    """A fine grid in one or two dimensions: cell masses, inverse-CDF draws, uniform jitter inside the cell."""

    method = "grid"

    def __init__(self, q: Composition, cells: int | None = None) -> None:
        super().__init__(q)
        require(q.event in ((1,), (2,)), "a grid", "have one or two dimensions", math.prod(q.event),
                'Use method="importance", or draw a reference by FeynmanKac with many particles.')  # fmt: skip
        cells = (200_000 if q.event == (1,) else 2000) if cells is None else cells
        require(is_count(cells), "cells", "be a whole number of at least 1, or None", shorten(cells),
                "Leave it out.")  # fmt: skip
        require_memory(8 * int(cells) ** len(self.q.event) * 4, f"{shorten(cells)} cells a side", "Use fewer.")
        self.axes: Axes
        if q.mixtures is None:
            self.axes, values = held_axes(q, cells)
        else:
            self.axes = EvenAxes(*mixture_box(q), cells)
            values = torch.cat([q.log_density(part) for part in self.axes.centres().split(1 << 20)])
        self.log_mass = values + self.axes.log_volumes()

    @property
    def coarseness(self) -> float:
        """Width of a cell over the narrowest deviation of the composition; below 1/2 the grid is exact.

        The narrowest that its components allow, or what the cells show where denominators leave edges. Other densities
        are 0: their cells lie where they are needed, which was checked.
        """
        if not isinstance(self.axes, EvenAxes):
            return 0.0
        narrowest = tail_proposal(self.q).components.variances.min().sqrt()
        return max((self.axes.width.max() / narrowest).item(), self._steepness() / _GAUSSIAN_STEEPNESS)

    def _steepness(self) -> float:
        """Largest change of the log-density from a cell that holds mass to the next."""
        mass = self.log_mass.reshape(self.axes.shape)
        held = mass > mass.max() - 5
        steps = []
        for axis, cells in enumerate(mass.shape):
            either = held.narrow(axis, 0, cells - 1) | held.narrow(axis, 1, cells - 1)
            steps.append(mass.diff(dim=axis).abs()[either].max().item())
        return max(steps)

    @cached_property
    @on_cpu
    def log_evidence(self) -> float:
        """log of the sum of the cells' masses."""
        return torch.logsumexp(self.log_mass, 0).item()

    def drawn(self, n: int, seed: int) -> Tensor:
        dim = len(self.axes.shape)
        check_count(n, 3 + 4 * dim)
        cumulative = (self.log_mass - self.log_evidence).exp().cumsum(0)
        u = torch.rand(n, generator=generator(seed, "grid cell"), dtype=torch.float64)
        index = torch.stack(torch.unravel_index(invert(cumulative, u), self.axes.shape), -1)
        jitter = torch.rand(n, dim, generator=generator(seed, "grid jitter"), dtype=torch.float64)
        return self.axes.at(index + jitter)
