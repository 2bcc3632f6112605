"""A training step as a CUDA graph: captured after a few eager ones, replayed on the same memory from then on.

A step of a U-Net is some thousand launches; at 32 x 32 pixels they would cost the host more than the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polyscore.images.pool import Batch
from polyscore.notices import warn

_WARM_UP = 3


class Captured:
    """A step that takes a batch and returns a loss, both on the device."""

    def __init__(self, work: Callable[[Batch], Tensor]) -> None:
        self._work, self._eager, self._refused = work, 0, False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """Run the step on a batch."""
        if self._graph is None and self._eager >= _WARM_UP and not self._refused:
            self._capture(batch)
        if self._graph is None:
            self._eager += 1
            return self._aside(batch)
        for own, given in zip(self._batch, batch, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._loss.clone()

    def _capture(self, batch: Batch) -> None:
        """Record the step, without taking it; what cannot be recorded goes on eagerly."""
        self._batch, graph = Batch(*(tensor.clone() for tensor in batch)), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                self._loss = self._work(self._batch)
        except RuntimeError as error:
            warn(
                f"a training step should be captured; it was not ({str(error)[:200]}), and goes on without. Pass "
                "graph=False to leave it at that."
            )
            self._refused = True
            return
        self._graph = graph

    def _aside(self, batch: Batch) -> Tensor:
        """Run where a later capture will run, so that libraries allocate their workspaces there."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = self._work(batch)
        torch.cuda.current_stream().wait_stream(side)
        return loss
