"""The training loop over stacked networks: denoising score matching in noise prediction,

    loss = mean over the batch of |eps_hat(alpha_t x_0 + sigma_t eps, t) - eps|^2,     t uniform on [0, 1].

Random numbers come in pages drawn by one generator a network, so that a model's result depends on its own seed only,
and a training resumed at any step sees the numbers it would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.nn.mlp import StackedMLP, matmul_precision
from polyscore.rng import derive
from polyscore.training.pools import Pools
from polyscore.training.recipe import Recipe

_PAGE = 50


@dataclass
class Snapshot:
    """Everything a training needs to go on: tensors by name, and the step they belong to."""

    step: int
    tensors: dict[str, Tensor]


class Trainer:
    """Trains M models over A conditions as one program; a separate model is A networks of one condition each."""

    def __init__(self, pools: Pools, seeds: Sequence[int], recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device, self.seeds = recipe, device, list(seeds)
        self.conditions = len(pools.conditions)
        self.dim = pools.dim
        separate = recipe.model == "separate"
        self.groups = 1 if separate else self.conditions  # conditions in one network's batch
        names = pools.conditions if separate else ["all"]
        self.network_seeds = [derive(seed, "network", name) for seed in seeds for name in names]
        shape = (len(self.network_seeds), self.groups)
        self.points = pools.points.to(device).reshape(*shape, *pools.points.shape[2:])
        self.sizes = pools.sizes.to(device).reshape(shape)
        self.per_group = max(1, recipe.batch // self.groups)
        inputs = 1 + self.dim + (0 if separate else self.conditions)
        self.network = StackedMLP(
            inputs, self.dim, self.network_seeds, recipe.width, recipe.depth, recipe.activation
        ).to(device)
        parameters = list(self.network.parameters())
        self.optimiser = torch.optim.Adam(parameters, lr=recipe.learning_rate, fused=True)
        self.average = [p.detach().clone() for p in parameters] if recipe.ema else None
        self.onehot = None if separate else torch.eye(self.conditions, device=device)
        self.step, self._page = 0, -1

    def advance(self) -> Tensor:
        """Take one optimiser step; return each network's loss, `(networks,)`, still on the device."""
        x0, t, eps = self._batch(self.step)
        schedule = self.recipe.schedule
        noisy = schedule.alpha(t) * x0 + schedule.sigma(t) * eps
        with matmul_precision("high"):
            error = self.network(self._inputs(noisy, t)) - eps.flatten(1, 2)
            losses = error.square().sum(-1).mean(-1)
            self.optimiser.zero_grad(set_to_none=True)
            losses.sum().backward()
        self.optimiser.step()
        self.step += 1
        if self.average is not None:
            decay = self.recipe.ema or 0.0
            torch._foreach_lerp_(self.average, list(self.network.parameters()), 1 - decay)
        return losses.detach()

    def _inputs(self, noisy: Tensor, t: Tensor) -> Tensor:
        """[t, x, onehot], `(G, C, b, d) -> (G, C b, in)`."""
        parts = [t, noisy]
        if self.onehot is not None:
            networks, _, batch, _ = noisy.shape
            parts.append(self.onehot[None, :, None].expand(networks, -1, batch, -1))
        return torch.cat(parts, dim=-1).flatten(1, 2)

    def _batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return clean points, times and noise of one step: `(G, C, b, d)`, `(G, C, b, 1)`, `(G, C, b, d)`."""
        page, row = divmod(step, _PAGE)
        if page != self._page:
            self._draw(page)
            self._page = page
        return self._clean(row), self._times[row], self._noise[row]

    def _clean(self, row: int) -> Tensor:
        which = (self._picks[row] * self.sizes[..., None]).long().clamp_max(self.points.shape[2] - 1)  # (G, C, b)
        return torch.gather(self.points, 2, which[..., None].expand(-1, -1, -1, self.dim))

    def _draw(self, page: int) -> None:
        """Draw the numbers of `_PAGE` steps, one generator a network."""
        shape = (_PAGE, self.groups, self.per_group)
        uniforms, normals = [], []
        for seed in self.network_seeds:
            source = torch.Generator(device=self.device).manual_seed(derive(seed, "batches", page))
            uniforms.append(torch.rand(*shape, 2, generator=source, device=self.device))
            normals.append(torch.randn(*shape, self.dim, generator=source, device=self.device))
        both = torch.stack(uniforms, dim=1)  # (page, G, C, b, 2)
        self._picks, self._times = both[..., 0], both[..., 1:]
        self._noise = torch.stack(normals, dim=1)

    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights and biases to evaluate with: the average where there is one."""
        source = self.average or [p.detach() for p in self.network.parameters()]
        half = len(source) // 2
        return source[:half], source[half:]

    def snapshot(self) -> Snapshot:
        """Return a copy of the whole state on the CPU."""
        tensors: dict[str, Tensor] = {f"parameter.{i}": p for i, p in enumerate(self.network.parameters())}
        for i, p in enumerate(self.network.parameters()):
            for key, value in self.optimiser.state.get(p, {}).items():
                tensors[f"adam.{i}.{key}"] = value
        for i, value in enumerate(self.average or []):
            tensors[f"average.{i}"] = value
        return Snapshot(self.step, {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; the next steps are those that followed it."""
        self.step, self._page = snapshot.step, -1
        for i, p in enumerate(self.network.parameters()):
            p.data.copy_(snapshot.tensors[f"parameter.{i}"])
            prefix = f"adam.{i}."
            state = {key[len(prefix) :]: value for key, value in snapshot.tensors.items() if key.startswith(prefix)}
            if state:
                self.optimiser.state[p] = {key: value.to(self.device, copy=True) for key, value in state.items()}
        for i, value in enumerate(self.average or []):
            value.copy_(snapshot.tensors[f"average.{i}"])
