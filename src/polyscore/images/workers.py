"""Processes that train one network together, started by `accelerate launch` or `torchrun`.

Each computes the gradient of its rows of the batch; sums over processes are what one process would have computed, up to
rounding. Gradients travel as one tensor, so that the network itself, compiled or not, knows nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.devices import check_device
from polyscore.errors import ArgumentError
from polyscore.extras import load


class Alone:
    """One process."""

    first, count = True, 1

    def __init__(self, device: torch.device | str | None) -> None:
        self.device = check_device(device)

    def part(self, size: int) -> slice:
        """Return this process's rows of a batch."""
        return slice(0, size)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over processes."""

    def agree(self, wish: bool, step: int) -> bool:
        """Whether some process wishes it."""
        return wish

    def wait(self) -> None:
        """Wait for all."""


class Together:
    """One process of several, by accelerate."""

    def __init__(self, device: torch.device | str | None) -> None:
        accelerator = load("accelerate", "several processes").Accelerator(
            cpu=device is not None and torch.device(device).type == "cpu"
        )
        self._accelerator, self.device = accelerator, check_device(accelerator.device)
        self.first, self.number, self.count = (
            accelerator.is_main_process, accelerator.process_index, accelerator.num_processes,
        )  # fmt: skip

    def part(self, size: int) -> slice:
        """Return this process's rows of a batch."""
        if size < self.count:
            raise ArgumentError(
                f"a batch must have a row for each process; got {size} for {self.count}. Start fewer, or raise batch."
            )
        return slice(size * self.number // self.count, size * (self.number + 1) // self.count)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over processes."""
        flat = self._accelerator.reduce(torch.cat([tensor.reshape(-1) for tensor in tensors]), "sum")
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, flat.split(sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    def agree(self, wish: bool, step: int) -> bool:
        """Whether some process wishes it; asked at every tenth step, since all must wait for the answer."""
        if step % 10:
            return False
        return bool(self._accelerator.reduce(torch.tensor(float(wish), device=self.device), "sum").item())

    def wait(self) -> None:
        """Wait for all."""
        self._accelerator.wait_for_everyone()


Workers = Alone | Together


def workers(device: torch.device | str | None) -> Workers:
    """Return this process among those that a launcher started, or alone."""
    return Together(device) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone(device)
