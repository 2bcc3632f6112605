"""The composition on a fine grid, exact to its cell, in one and two dimensions."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.errors import ArgumentError, require
from polyscore.rng import generator
from polyscore.targets.draws import check_count
from polyscore.targets.importance import tail_proposal
from polyscore.targets.target import Target

_GAUSSIAN_STEEPNESS = math.sqrt(10)  # of a Gaussian, 5 below its peak, for cells of one deviation


class Grid(Target):
    """A fine grid in one or two dimensions: cell masses, inverse-CDF draws, uniform jitter inside the cell."""

    method = "grid"

    def __init__(self, q: Composition, cells: int | None = None) -> None:
        super().__init__(q)
        dim = q.event[0]
        require(dim <= 2, "a grid", "have one or two dimensions", dim, 'Use method="importance".')
        self.cells = cells or (200_000 if dim == 1 else 2000)
        self.low, self.high = self._box()
        self.width = (self.high - self.low) / self.cells
        self.log_mass = torch.cat([q.log_density(part) for part in self._centres().split(1 << 20)])
        self.log_mass += self.width.log().sum()

    @property
    def coarseness(self) -> float:
        """Width of a cell over the narrowest deviation of the composition; below 1/2 the grid is exact.

        The narrowest that its components allow, or what the cells show where denominators leave edges.
        """
        narrowest = tail_proposal(self.q).components.variances.min().sqrt()
        return max((self.width.max() / narrowest).item(), self._steepness() / _GAUSSIAN_STEEPNESS)

    def _steepness(self) -> float:
        """Largest change of the log-density from a cell that holds mass to the next."""
        mass = self.log_mass.reshape((self.cells,) * self.q.event[0])
        held = mass > mass.max() - 5
        steps = []
        for axis in range(mass.ndim):
            change, either = (
                mass.diff(dim=axis).abs(),
                held.narrow(axis, 0, self.cells - 1) | held.narrow(axis, 1, self.cells - 1),
            )
            steps.append(change[either].max().item())
        return max(steps)

    def _box(self) -> tuple[Tensor, Tensor]:
        """Grow a box around the proposal until its rim holds nothing, then shrink it to what holds something."""
        proposal = tail_proposal(self.q).components
        deviation = proposal.covariances.diagonal(dim1=-2, dim2=-1).sqrt()
        low, high = (proposal.means - 6 * deviation).amin(0), (proposal.means + 6 * deviation).amax(0)
        for _ in range(12):
            density, axes = self._coarse(low, high)
            inside = density > density.max() - 45
            rim = [inside.select(k, end).any() for k in range(density.ndim) for end in (0, -1)]
            if not any(rim):
                break
            centre, half = 0.5 * (low + high), 0.75 * (high - low)
            low, high = centre - half, centre + half
        else:
            raise ArgumentError(
                f"a grid must hold the density; that of {self.q!r} reaches beyond {low.tolist()} to {high.tolist()}. "
                'Use method="importance".'
            )
        kept = [inside.any(dim=tuple(j for j in range(density.ndim) if j != k)).nonzero() for k in range(density.ndim)]
        step = (high - low) / len(axes[0])
        narrow_low, narrow_high = self._narrow_modes(proposal.means, deviation)
        first = torch.tensor([k.min().item() for k in kept], dtype=torch.float64)
        last = torch.tensor([k.max().item() for k in kept], dtype=torch.float64)
        coarse_low, coarse_high = low + (first - 1).clamp_min(0) * step, low + (last + 2).clamp_max(len(axes[0])) * step
        return torch.minimum(coarse_low, narrow_low), torch.maximum(coarse_high, narrow_high)

    def _narrow_modes(self, means: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Return a box around the component means that hold density: the coarse look may miss a narrow one."""
        density = self.q.log_density(means)
        held = density > density.max() - 45
        return (means - 8 * deviation)[held].amin(0), (means + 8 * deviation)[held].amax(0)

    def _coarse(self, low: Tensor, high: Tensor, cells: int = 300) -> tuple[Tensor, list[Tensor]]:
        ticks = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
        axes = [a + (b - a) * ticks for a, b in zip(low, high)]
        points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
        return self.q.log_density(points), axes

    def _centres(self) -> Tensor:
        ticks = torch.arange(self.cells, dtype=torch.float64) + 0.5
        axes = [a + w * ticks for a, w in zip(self.low, self.width)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)

    @cached_property
    def log_evidence(self) -> float:
        """log of the sum of the cells' masses."""
        return torch.logsumexp(self.log_mass, 0).item()

    def sample(self, n: int, seed: int = 0) -> Tensor:
        check_count(n, 3 + 4 * self.q.event[0])
        cumulative = (self.log_mass - self.log_evidence).exp().cumsum(0)
        u = torch.rand(n, generator=generator(seed, "grid cell"), dtype=torch.float64)
        cell = torch.searchsorted(cumulative, u * cumulative[-1], right=True).clamp_max(len(cumulative) - 1)
        dim = self.q.event[0]
        index = torch.stack(torch.unravel_index(cell, (self.cells,) * dim), -1)
        jitter = torch.rand(n, dim, generator=generator(seed, "grid jitter"), dtype=torch.float64)
        return (self.low + (index + jitter) * self.width).float()
