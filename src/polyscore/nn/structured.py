"""A mixture that is right far out, and a network for what it leaves: noise = noise of the mixture + gate * residual.

A perceptron is trained on what the mixture does not explain, by the same loss. Whether it is to be believed is asked of
points that neither was trained on: at each noise level, and in each shell of the mixture's density, the residual is
multiplied by the least-squares factor that held-out noise gives it, less two standard errors,

    gate = clip(<r, eps - eps_mixture> / <r, r> - 2 se, 0, 1).

So where the mixture is right the residual is noise and vanishes; where it is wrong the gate is near 1; and beyond the
data, where nothing was ever learned, it is 0. The same is asked once early in a training: a condition of which no gate
opens then is its mixture, and where that is so of all, the training is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyscore.nn.mixture import Mixed
from polyscore.nn.mlp import StackedMLP, time_feature
from polyscore.nn.network import Architecture, At
from polyscore.nn.stack import Stack, StackNetwork, uniform_start
from polyscore.rng import generator
from polyscore.schedules import T_MAX, T_MIN

_TOLD = 8  # numbers by which a network knows its condition
_LOWEST, _APART = -4.0, 0.5
# of log(sigma / alpha), at which the gate is asked for
_LEVELS = torch.linspace(_LOWEST, 3.0, 15, dtype=torch.float32, device="cpu")
_SHELLS = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0)  # quantiles of the mixture's density that bound them
_DRAWS, _FEWEST_DRAWS, _ALL_DRAWS = 16_384, 2048, 200_000  # noised points that set a gate; at least; of one network
_FEWEST = 20  # held-out points below which nothing is believed
_ERRORS = 2.0
_CORE, _WORTH = 3, 0.05  # shells that hold 95 % of the points, and the mean gate there from which a network is kept


class Structured(Mixed):
    """G perceptrons on top of their mixtures, each multiplied by the gate of its condition."""

    per_condition: ClassVar[tuple[str, ...]] = (*Mixed.per_condition, "embedding", "shells", "gates")
    held_out: ClassVar[float] = 0.2
    suggested: ClassVar[Mapping[str, Any]] = {
        "steps": 10_000, "width": 256, "depth": 3, "learning_rate": 5e-4, "bend": "auto",
    }  # fmt: skip
    shells: Tensor
    gates: Tensor

    def __init__(self, architecture: Architecture, seeds: Sequence[int]) -> None:
        super().__init__(architecture, seeds)
        dim, count = architecture.dim, architecture.conditions
        self.embedding = nn.Parameter(uniform_start(seeds, (count, _TOLD), 1, "embedding"))
        self.mlp = StackedMLP(1 + dim + _TOLD, dim, seeds, architecture.width, architecture.depth,
                              architecture.activation)  # fmt: skip
        shape = (len(seeds), count, len(_LEVELS), len(_SHELLS))
        self.register_buffer("shells", torch.arange(len(_SHELLS), dtype=torch.float32).expand(shape).clone())
        self.register_buffer("gates", torch.ones(shape, dtype=torch.float32))

    def embed(self, t: Tensor) -> At:
        """Return what the mixture needs, and shells and gates at that noise level, `(..., J)`."""
        schedule = self.architecture.schedule
        ratio = (schedule.sigma(t) / schedule.alpha(t).clamp_min(1e-30)).clamp_min(1e-30).log()
        return *super().embed(t), *(_between(part[:, :, None], ratio) for part in (self.shells, self.gates))

    def predict(self, x: Tensor, at: At) -> Tensor:
        """Return the noise, like x `(G, C, b, d)`."""
        noise, log_density = self.noised(x, at)
        return noise + _gate(-log_density, *at[4:]) * self.residual(x, at)

    def residual(self, x: Tensor, at: At) -> Tensor:
        """Return what the network adds, like x."""
        told = self.embedding[:, :, None].expand(-1, -1, x.shape[2], -1)
        time = time_feature(at[0]).expand(*x.shape[:-1], 1)
        return self.mlp(torch.cat([time, x, told], -1).flatten(1, 2)).view(x.shape)

    def review(self, points: Tensor, sizes: Tensor) -> None:
        """Shut the gates of conditions to which the network adds nothing by now, for good."""
        self.gates.mul_(_opened(self._found(points, sizes)[1]))

    @classmethod
    def check_values(cls, tensors: Mapping[str, Tensor]) -> None:
        """Refuse mixtures, shells and gates that cannot be."""
        super().check_values(tensors)
        gates, shells = tensors["gates"], tensors["shells"]
        if not bool(((gates >= 0) & (gates <= 1)).all()) or not bool(shells.isfinite().all()):
            raise ValueError("a gate outside of 0 to 1, or a shell that is no number")

    def settle(self, points: Tensor, sizes: Tensor) -> None:
        """Set shells and gates from held-out points."""
        shells, gates = self._found(points, sizes)
        self.shells.copy_(shells)
        self.gates.copy_(gates * _opened(gates) * _opened(self.gates))

    @property
    def is_a_mixture(self) -> bool:
        """Whether every gate is shut."""
        return not bool(self.gates.any())

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing to train, every gate being shut."""
        return self.is_a_mixture

    def _found(self, points: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Shells and gates by held-out points, `(G, C, T, J)` each: network by network, whoever stands beside it."""
        found = []
        for g in range(len(sizes)):
            own = StackNetwork.of(self, {name: part[g : g + 1] for name, part in self.state_dict().items()}).stack
            assert isinstance(own, Structured)
            found.append(own._found_alone(points[g : g + 1], sizes[g : g + 1]))
        shells, gates = zip(*found, strict=True)
        return torch.cat(shells), torch.cat(gates)

    @torch.no_grad()
    def _found_alone(self, points: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Shells and gates of one network."""
        shells, gates = torch.empty_like(self.shells), torch.empty_like(self.gates)
        draws = max(_FEWEST_DRAWS, min(_DRAWS, _ALL_DRAWS // sizes.numel()))
        rows = torch.arange(draws, device=sizes.device) % sizes.clamp_min(1)[..., None]  # (G, C, draws)
        clean = torch.gather(points, 2, rows[..., None].expand(-1, -1, -1, points.shape[-1]))
        for k, level in enumerate(_LEVELS.tolist()):
            depth, residual, left = self._left(clean, level)
            for g, c in torch.cartesian_prod(*(torch.arange(size) for size in sizes.shape)).tolist():
                found = shrunk(depth[g, c], residual[g, c], left[g, c], rows[g, c])
                shells[g, c, k], gates[g, c, k] = found
        gates = _joined(gates)
        gates[sizes < _FEWEST] = 0
        return shells, gates

    @classmethod
    def numbers(cls, architecture: Architecture) -> tuple[int, int]:
        """Return how many numbers mixture and perceptron have, and activations a row of a batch."""
        mixture, perceptron = super().numbers(architecture), Stack.numbers(architecture)
        return mixture[0] + perceptron[0], mixture[1] + perceptron[1]

    def _left(self, clean: Tensor, level: float) -> tuple[Tensor, Tensor, Tensor]:
        """Minus log-densities `(G, C, n)` of noised points, what the network says there, and what there is to say."""
        schedule = self.architecture.schedule
        t = schedule.time_at(torch.tensor(level, dtype=torch.float64)).clamp(T_MIN, T_MAX).to(clean)
        eps = torch.randn(clean.shape, generator=generator(0, "gate", level)).to(clean)
        x, at = schedule.alpha(t) * clean + schedule.sigma(t) * eps, self.embed(t.view(1, 1, 1, 1))
        noise, log_density = self.noised(x, at)
        return -log_density[..., 0], self.residual(x, at), eps - noise


def shrunk(depth: Tensor, residual: Tensor, left: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return where gates are given, as depths `(J,)`, and the gates `(J,)`: the last is 0, beyond all that was seen.

    Args:
        depth: minus log-densities `(n,)`.
        residual, left: what the network says and what there is to say, `(n, d)`.
        rows: the point that each belongs to `(n,)`.
    """
    ends = torch.quantile(depth, torch.tensor(_SHELLS, dtype=depth.dtype, device=depth.device))
    along, size = (residual * left).sum(-1), residual.square().sum(-1)
    found = []
    for low, high in itertools.pairwise(ends):
        inside = ((depth >= low) & (depth <= high)).to(depth)
        found.append(_believed(along * inside, size * inside, rows))
    middles = 0.5 * (ends[:-1] + ends[1:])
    last = ends[-1] + 0.5 * (ends[-1] - ends[1]).clamp_min(1e-6)
    return torch.cat([middles, last[None]]), torch.stack([*found, torch.zeros_like(found[0])])


def _believed(along: Tensor, size: Tensor, rows: Tensor) -> Tensor:
    """The factor sum <r, l> / sum <r, r>, less two standard errors over the points, within [0, 1]."""
    total = size.sum().clamp_min(1e-30)
    factor = along.sum() / total
    by_point = torch.zeros_like(along).index_add(0, rows, (along - factor * size) / total)
    return (factor - _ERRORS * by_point.square().sum().sqrt()).clamp(0, 1)


def _opened(gates: Tensor) -> Tensor:
    """1 for the conditions whose gates are open enough to be worth a network, else 0: `(G, C, T, J) -> (G, C, 1, 1)`.

    Few that are open by chance would cost a closed form: they are looked at over all levels, and where most points are.
    """
    return (gates[..., :_CORE].mean((-2, -1), keepdim=True) >= _WORTH).to(gates)


def _joined(gates: Tensor) -> Tensor:
    """Gates `(..., T, J)` that are no larger than at both levels beside them: one alone was opened by chance."""
    beside = torch.nn.functional.pad(gates, (0, 0, 1, 1))
    return torch.minimum(gates, torch.maximum(beside[..., :-2, :], beside[..., 2:, :]))


def _between(table: Tensor, ratio: Tensor) -> Tensor:
    """Rows of a table `(G, C, 1, T, J)` at log(sigma / alpha) `(..., 1)`, by the line between two: `(..., J)`."""
    place = ((ratio - _LOWEST) / _APART).clamp(0, len(_LEVELS) - 1)
    nodes = torch.arange(len(_LEVELS), device=ratio.device, dtype=ratio.dtype)
    shares = (1 - (place - nodes).abs()).clamp_min(0)  # (..., T): two that are not 0
    return (shares[..., None] * table).sum(-2)


def _gate(depth: Tensor, shells: Tensor, gates: Tensor) -> Tensor:
    """The line through (shells, gates) `(..., J)` at depths `(..., 1)`, level before its beginning and past its end."""
    spans = (shells[..., 1:] - shells[..., :-1]).clamp_min(1e-6)
    share = ((depth - shells[..., :-1]) / spans).clamp(0, 1)
    return gates[..., :1] + (share * (gates[..., 1:] - gates[..., :-1])).sum(-1, keepdim=True)
