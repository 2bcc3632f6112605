"""One network in training: its optimiser, the average of its weights, and everything needed to go on.

A step is a function of the state and the step's number alone: batches come from (seed, step), the rate from the step.
Nothing waits for the device; losses are summed there until somebody looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from polyscore.images.captured import Captured
from polyscore.images.pool import Batch, Pool
from polyscore.images.program import Program
from polyscore.images.recipe import Recipe
from polyscore.images.unet import build
from polyscore.images.workers import Workers
from polyscore.rng import derive
from polyscore.training.trainer import Snapshot


class Trainer:
    """Trains the network of a program, from fresh weights of the seed.

    Args:
        program: the network, which belongs to this trainer while it runs.
        steps: of the whole training.
        batch: rows a step, of all processes.
        graph: replay steps as a CUDA graph; for one process.
    """

    def __init__(
        self, program: Program, pool: Pool, recipe: Recipe, steps: int, batch: int, workers: Workers, graph: bool
    ) -> None:
        self.program, self.pool, self.recipe, self.workers = program, pool, recipe, workers
        self.steps, self.rows, self.step = steps, batch, 0
        fresh = build(recipe.unet, len(pool.conditions), derive(pool.seed, "network"))
        program.network.load_state_dict(fresh.state_dict())
        self.parameters: list[Tensor] = list(program.network.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.tally = torch.zeros(2, device=pool.device, dtype=torch.float64)  # losses, and steps, since the last look
        cuda = pool.device.type == "cuda"
        self._rate = torch.zeros((), device=pool.device)
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=self._rate if cuda else 0.0, betas=(0.9, 0.999), eps=1e-8,
            weight_decay=recipe.weight_decay, fused=True, capturable=cuda,
        )  # fmt: skip
        self._graph = Captured(self._optimise) if graph and cuda else None

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: up linearly, down as a cosine."""
        warm = min(self.recipe.warm_up, self.steps // 10)
        if step < warm:
            return self.recipe.learning_rate * (step + 1) / warm
        return self.recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))

    def advance(self) -> None:
        """Take one optimiser step."""
        self._set_rate(self.rate(self.step))
        batch = self.pool.batch(self.step, self.rows).rows(self.workers.part(self.rows))
        loss = (self._graph or self._optimise)(batch)
        self.step += 1
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - self.recipe.decay(self.step))
            self.tally += torch.stack([loss.double(), torch.ones_like(loss, dtype=torch.float64)])

    def _set_rate(self, rate: float) -> None:
        if isinstance(self.optimiser.param_groups[0]["lr"], Tensor):
            self._rate.fill_(rate)
        else:
            self.optimiser.param_groups[0]["lr"] = rate

    def _optimise(self, batch: Batch) -> Tensor:
        """One step; return the loss before it."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.program.losses(batch).sum() / self.rows
        loss.backward()
        loss = loss.detach().clone()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self.workers.add([loss, *gradients])
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip, foreach=True)
        self.optimiser.step()
        return loss

    def look(self) -> float:
        """Return the mean loss since the last look; this waits for the device."""
        total, count = self.tally.tolist()
        self.tally.zero_()
        return total / max(1.0, count)

    def is_sound(self) -> bool:
        """Whether every weight and its average is finite."""
        norms = torch._foreach_norm(self.parameters) + torch._foreach_norm(self.average)
        return bool(torch.stack(list(norms)).isfinite().all())

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        """Return the loss of each condition on held-out pictures, with averaged weights."""
        whole, shares = self.pool.held_out()
        most, found = max(1, min(256, self.rows)), {}
        with self._averaged():
            for number, (name, share) in enumerate(zip(self.pool.conditions, shares, strict=True)):
                seen = (share > 0).nonzero().flatten()
                losses = [self._held_losses(whole, part, number) for part in seen.split(most)]
                found[name] = float((torch.cat(losses).double() * share[seen]).sum())
        return found

    def _held_losses(self, whole: Batch, part: Tensor, number: int) -> Tensor:
        batch = Batch(*(tensor[part] for tensor in whole))
        return self.program.plain(batch._replace(labels=torch.full_like(batch.labels, number)))

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Put the averaged weights into the network for a while."""
        kept = [p.detach().clone() for p in self.parameters]
        torch._foreach_copy_(self.parameters, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(self.parameters, kept)

    def averages(self) -> dict[str, Tensor]:
        """Return the averaged weights by name: the result."""
        names = [name for name, _ in self.program.network.named_parameters()]
        return dict(zip(names, self.average, strict=True))

    def snapshot(self) -> Snapshot:
        """Return a copy of the whole state on the CPU."""
        return Snapshot(self.step, {name: t.detach().to("cpu", copy=True) for name, t in self._kept().items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; the next steps are those that followed it. Nothing changes where it does not fit."""
        self._prepare_moments()
        own = self._kept()
        _check_fit(own, snapshot.tensors)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(snapshot.tensors[name])
        self.step = snapshot.step

    def _prepare_moments(self) -> None:
        """Give the optimiser the state that its first step would make."""
        for p in self.parameters:
            count = torch.zeros((), device=p.device, dtype=torch.float32)
            self.optimiser.state[p] = {
                "step": count, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)
            }  # fmt: skip

    def _kept(self) -> dict[str, Tensor]:
        names = [name for name, _ in self.program.network.named_parameters()]
        kept: dict[str, Tensor] = {"tally": self.tally}
        for name, p, average in zip(names, self.parameters, self.average, strict=True):
            kept |= {f"weight.{name}": p, f"average.{name}": average}
            kept |= {f"adam.{name}.{key}": value for key, value in self.optimiser.state.get(p, {}).items()}
        return kept


def _check_fit(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise `RuntimeError` unless all tensors are there, in shape and type."""
    for name, tensor in own.items():
        other = given.get(name)
        if other is None or other.shape != tensor.shape or other.dtype != tensor.dtype:
            found = None if other is None else (other.dtype, tuple(other.shape))
            raise RuntimeError(f"{name} is {found}, not {(tensor.dtype, tuple(tensor.shape))}")
