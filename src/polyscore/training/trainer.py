"""The training loop over stacked networks: denoising score matching in noise prediction,

    loss = mean over the batch of |eps_hat(alpha_t x_0 + sigma_t eps, t) - eps|^2,     t uniform on [0, 1].

Random numbers come in pages drawn by one generator a network, so that a model's result depends on its own seed only,
and a training resumed at any step sees the numbers it would have seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.devices import matmul_precision
from polyscore.nn import NETWORKS, ScoreNetwork
from polyscore.nn.stack import Stack, StackNetwork, check_prediction, check_stack
from polyscore.rng import derive
from polyscore.training.pools import Pools
from polyscore.training.recipe import Recipe

PAGE = 100  # steps whose random numbers are drawn at once
REVIEW = 2000  # the step after which held-out points are asked whether to go on; the same however long a training is
_ALL = "all"
_BUFFER = "buffer."  # before its name in a snapshot
_WARM_UP = 3
_STEP = torch.zeros((), dtype=torch.float32, device="cpu")  # how Adam counts its steps


@dataclass
class Snapshot:
    """Everything a training needs to go on: tensors by name, and the step they belong to."""

    step: int
    tensors: dict[str, Tensor]


class Trainer:
    """Trains M models over A conditions as one program; a separate model is A networks of one condition each.

    All G networks are one `Stack` of the recipe's kind, C conditions in the batch of each: G = M, C = A for conditional
    models, G = M A, C = 1 for separate ones.
    """

    def __init__(self, pools: Pools, seeds: Sequence[int], recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device, self.seeds = recipe, device, list(seeds)
        self.dim, architecture = pools.dim, recipe.architecture(pools.dim, len(pools.conditions))
        names = pools.conditions if recipe.separate else [_ALL]
        self.network_seeds = [derive(seed, "network", name) for seed in seeds for name in names]
        self.shape = (len(self.network_seeds), architecture.conditions)  # G, C
        self.points = pools.points.to(device).reshape(*self.shape, *pools.points.shape[2:])
        self.sizes = pools.sizes.to(device).reshape(self.shape)
        self.points_each = max(1, recipe.batch // architecture.conditions)
        self.network = NETWORKS[recipe.kind](architecture, self.network_seeds).to(device)
        check_stack(self.network, len(self.network_seeds))
        self.network.observe(self.points, self.sizes)
        if share := self.network.held_out:
            out = _held_out(self.points, self.sizes, round(1 / share))
            self.held = _chosen(self.points, self.sizes, out)
            self.points, self.sizes = _chosen(self.points, self.sizes, ~out)
        check_prediction(self.network, len(self.network_seeds))
        parameters = list(self.network.parameters())
        self.steps = recipe.steps if parameters else 1  # where there is nothing to train, all was observed
        cuda = device.type == "cuda"
        nothing = [torch.zeros(1, device=device)]
        self.optimiser = torch.optim.Adam(parameters or nothing, lr=recipe.learning_rate, fused=True, capturable=cuda)
        self.average = [torch.zeros_like(p) for p in parameters] if recipe.ema else None
        self.networks_each = len(names)
        self.labels = [_label(m, seed, name, len(seeds)) for m, seed in enumerate(seeds) for name in names]
        self.largest_loss = self._largest_loss()
        self.step, self._page = 0, -1
        self._row = torch.zeros(1, dtype=torch.long, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager_steps = 0
        self._losses = torch.zeros(len(self.network_seeds), device=device, dtype=torch.float32)

    def advance(self) -> Tensor:
        """Take one optimiser step; return each network's loss, `(networks,)`, still on the device.

        On a GPU a step is captured into a graph after a few eager ones: its hundred launches would cost the host more
        than the device.
        """
        self._load(self.step)
        if not self.trains:
            self._losses.copy_(self._loss())
        elif self.device.type != "cuda":
            self._optimise()
        elif self._graph is not None:
            self._graph.replay()
        elif self._eager_steps < _WARM_UP:
            self._on_side_stream(self._optimise)
            self._eager_steps += 1
        else:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._optimise()
            self._graph.replay()
        self.step += 1
        if self.step == REVIEW and self.network.held_out:
            self._review()
        return self._losses

    def _review(self) -> None:
        """Let held-out points say what of the networks is worth going on with."""
        twin = self._twin(self.tensors())
        twin.review(*self.held)
        for name, own in self._buffers().items():
            own.copy_(twin.state_dict()[name.removeprefix(_BUFFER)])
        self._finish_early()

    def _finish_early(self) -> None:
        if self.step >= REVIEW and self.network.is_finished:
            self.steps = self.step

    @property
    def trains(self) -> bool:
        """Whether there is anything to train."""
        return any(True for _ in self.network.parameters())

    def _on_side_stream(self, work: Callable[[], None]) -> None:
        """Run eagerly where a later capture will run, so that libraries allocate their workspaces there."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)

    def _optimise(self) -> None:
        """One step on the row of the page that the device index names."""
        with matmul_precision("high", self.device):
            losses = self._loss()
            self.optimiser.zero_grad(set_to_none=True)
            losses.sum().backward()
        self.optimiser.step()
        self._losses.copy_(losses.detach())
        if self.average is not None:
            decay = self.recipe.ema or 0.0
            torch._foreach_lerp_(self.average, list(self.network.parameters()), 1 - decay)

    def _loss(self) -> Tensor:
        """Mean over the batch of the squared error, `(networks,)`."""
        x0, t, eps = self._batch()
        schedule = self.recipe.schedule
        noisy = schedule.alpha(t) * x0 + schedule.sigma(t) * eps
        error = self.network(noisy, t) - eps
        return error.flatten(1, 2).square().sum(-1).mean(-1)

    @torch.no_grad()
    def next_losses(self) -> Tensor:
        """Return the losses of the present weights on the next batch; `advance` reports those before its step."""
        self._load(self.step)
        return self._loss()

    def _largest_loss(self) -> Tensor:
        """Beyond this a network has diverged, `(networks,)`: predicting no noise costs d, predicting the data d s^2."""
        mean_square = self.points.square().sum((1, 2, 3)) / (self.sizes.sum(1) * self.dim)
        return 1e4 * self.dim * (1 + mean_square)

    def _batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return clean points, times and noise of one step: `(G, C, b, d)`, `(G, C, b, 1)`, `(G, C, b, d)`."""
        uniforms, noise = (page.index_select(0, self._row)[0] for page in (self._uniforms, self._normals))
        which = (uniforms[..., 0] * self.sizes[..., None]).long().clamp_max(self.points.shape[2] - 1)  # (G, C, b)
        clean = torch.gather(self.points, 2, which[..., None].expand(-1, -1, -1, self.dim))
        return clean, uniforms[..., 1:], noise

    def _load(self, step: int) -> None:
        """Put the numbers of a step's page into the buffers, and its row into the index."""
        page, row = divmod(step, PAGE)
        self._row.fill_(row)
        if page == self._page:
            return
        if self._page < 0:
            shape = (PAGE, *self.shape, self.points_each)
            self._uniforms = torch.empty(*shape, 2, device=self.device, dtype=torch.float32)
            self._normals = torch.empty(*shape, self.dim, device=self.device, dtype=torch.float32)
        self._page = page
        for g, seed in enumerate(self.network_seeds):
            source = torch.Generator(device=self.device).manual_seed(derive(seed, "batches", page))
            for buffer, draw in ((self._uniforms, torch.rand), (self._normals, torch.randn)):
                buffer[:, g] = draw(buffer[:, g].shape, generator=source, device=self.device, dtype=torch.float32)

    def tensors(self) -> dict[str, Tensor]:
        """Return what to evaluate with, by name: buffers, and parameters or their average where there is one.

        The average began at 0, so after k steps it holds the share 1 - decay^k of a mean over all weights seen.
        """
        found: dict[str, Tensor] = dict(self.network.state_dict())
        if self.average is not None and self.step:
            share = 1 - (self.recipe.ema or 0.0) ** self.step
            names = (name for name, _ in self.network.named_parameters())
            found |= {name: value / share for name, value in zip(names, self.average, strict=True)}
        return found

    def networks(self) -> list[ScoreNetwork]:
        """Return every model's networks as they are evaluated."""
        tensors, each = self.tensors(), self.networks_each
        rows = [slice(m * each, (m + 1) * each) for m in range(len(self.seeds))]
        if self.network.held_out:
            tensors = self._settled(tensors)
        return [self.network.evaluated({name: t[part].clone() for name, t in tensors.items()}) for part in rows]

    def _settled(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors with what held-out points set; the networks in training stay as they are."""
        twin = self._twin(tensors)
        twin.settle(*self.held)
        return dict(twin.state_dict())

    def _twin(self, tensors: Mapping[str, Tensor]) -> Stack:
        """A stack of copies."""
        return StackNetwork.of(self.network, {name: tensor.clone() for name, tensor in tensors.items()}).stack

    def _buffers(self) -> dict[str, Tensor]:
        """What is kept with the parameters and not trained."""
        trained = {name for name, _ in self.network.named_parameters()}
        return {_BUFFER + name: t for name, t in self.network.state_dict().items() if name not in trained}

    def snapshot(self) -> Snapshot:
        """Return a copy of the whole state on the CPU."""
        tensors = self._kept()
        for i, p in enumerate(self.network.parameters()):
            for key, value in self.optimiser.state.get(p, {}).items():
                tensors[f"adam.{i}.{key}"] = value
        return Snapshot(self.step, {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; the next steps are those that followed it. Nothing changes where it does not fit."""
        moments = self._moments(snapshot.tensors)
        kept = {name: _fitting(name, snapshot.tensors[name], own) for name, own in self._kept().items()}
        self.step, self._page = snapshot.step, -1
        self._graph, self._eager_steps = None, 0
        for name, own in self._kept().items():
            own.copy_(kept[name])
        for p, state in zip(self.network.parameters(), moments, strict=True):
            if state:
                self.optimiser.state[p] = {key: value.to(self.device, copy=True) for key, value in state.items()}
        self._finish_early()

    def _kept(self) -> dict[str, Tensor]:
        """What a snapshot holds beside the optimiser's moments, by name."""
        kept: dict[str, Tensor] = {f"parameter.{i}": p.data for i, p in enumerate(self.network.parameters())}
        return kept | self._buffers() | {f"average.{i}": value for i, value in enumerate(self.average or [])}

    def _moments(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return Adam's state of each parameter, in shape: it is handed to a fused kernel, which does not look."""
        found = []
        for i, p in enumerate(self.network.parameters()):
            like = {"step": _STEP, "exp_avg": p, "exp_avg_sq": p}
            names = {f"adam.{i}.{key}": key for key in like}
            there = any(name.startswith(f"adam.{i}.") for name in tensors)
            found.append({key: _fitting(name, tensors[name], like[key]) for name, key in names.items() if there})
        return found


def _fitting(name: str, value: Tensor, own: Tensor) -> Tensor:
    """Return a tensor of a file that can take the place of one's own; `RuntimeError` otherwise."""
    if value.shape != own.shape or value.dtype != own.dtype:
        raise RuntimeError(f"{name} is {value.dtype} {tuple(value.shape)}, not {own.dtype} {tuple(own.shape)}")
    if own is _STEP and not 0 <= value.item() < math.inf:
        raise RuntimeError(f"{name} is {value.item()}")
    return value


def _held_out(points: Tensor, sizes: Tensor, every: int) -> Tensor:
    """Return which of points `(G, C, n, d)` are held out, `(G, C, n)`: every k-th, and of rows that repeat all or none.

    Few points are all trained on: where a condition has less than two that would be held out, none is.
    """
    places = torch.arange(points.shape[2], device=points.device).repeat(*sizes.shape, 1)
    different = sizes.clone()
    for g, c in itertools.product(*map(range, sizes.shape)):
        pool = points[g, c, : int(sizes[g, c])]
        distinct, which = torch.unique(pool, dim=0, return_inverse=True)
        if len(distinct) < len(pool):
            places[g, c, : len(pool)], different[g, c] = which, len(distinct)
    return (places % every == every - 1) & (different[..., None] >= 2 * every)


def _chosen(points: Tensor, sizes: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Return some of points `(G, C, n, d)`, with sizes: first, in their order; what is beyond is never looked at."""
    chosen = which & (torch.arange(points.shape[2], device=points.device) < sizes[..., None])
    order = (~chosen).int().argsort(dim=-1, stable=True)
    return torch.gather(points, 2, order[..., None].expand_as(points)), chosen.sum(-1)


def _label(model: int, seed: int, name: str, models: int) -> str:
    """What to call a network in a message."""
    whose = f"the model of dataset {model} (seed {seed})" if models > 1 else "the model"
    return whose if name == _ALL else f"{whose}, condition {name!r}"
