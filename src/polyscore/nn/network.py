"""What trainer, files and samplers need of a network, whatever is inside. It has two faces:

- A `Stack` is what is trained: G networks of one kind side by side, every parameter and buffer with a leading axis G,
  so that models of other seeds and other data train as one program without knowing of each other.
- A `ScoreNetwork` is what is evaluated: some networks of a stack, and the conditions that they serve.

A kind of network is a subclass of `Stack`, registered by name in `polyscore.nn.NETWORKS`. It says how it starts, what
of it depends on time alone (`embed`), and what it predicts (`predict`); `StackNetwork` evaluates any of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polyscore.schedules import Schedule
from polyscore.schema import Checked

At = tuple[Tensor, ...]  # what a network needs of one time


@dataclass(frozen=True)
class Architecture:
    """What decides the shape of a network.

    Attributes:
        kind: its name in `NETWORKS`.
        dim: of a point.
        conditions: C, those in one network: all where it is told the condition, 1 where each has one of its own.
        shared: whether it is told the condition.
        schedule: the noise it will see.
        width, depth, activation: as in `Recipe`; a kind takes those it has a use for.
        options: the kind's own, of its class `Options`.
    """

    kind: str
    dim: int
    conditions: int
    shared: bool
    schedule: Schedule
    width: int = 512
    depth: int = 4
    activation: str = "silu"
    options: Any = field(default_factory=Checked)


class ScoreNetwork(ABC):
    """Networks as they are evaluated: the noise of several conditions at once.

    Attributes:
        kind: the name under which files find it in `NETWORKS`.
        dim: of a point.
        conditions: A, how many it serves.
        has_half: whether `noise` takes a `precision`.
    """

    kind: str
    dim: int
    conditions: int
    has_half: bool = False

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the parameters are."""

    @property
    @abstractmethod
    def numbers_per_row(self) -> int:
        """Numbers held at once for a point and a condition, besides the point."""

    @property
    def alike(self) -> Hashable:
        """What networks must have in common to stand side by side."""
        return self.kind, self.dim, repr(self.about())

    @abstractmethod
    def to(self, device: torch.device | str) -> ScoreNetwork:
        """Move the parameters in place; networks that were picked from this one stay where they are."""

    @abstractmethod
    def pick(self, which: Sequence[int]) -> ScoreNetwork:
        """Return a network for some of the conditions, in that order."""

    @abstractmethod
    def side_by_side(self, others: Sequence[ScoreNetwork]) -> ScoreNetwork:
        """Return this and others that are `alike` as one: all conditions of the first, then of the next."""

    @abstractmethod
    def embed(self, times: Tensor) -> At:
        """Return all that depends on `times` `(T,)` alone, each part with that leading axis."""

    @abstractmethod
    def noise(self, x: Tensor, at: At, precision: torch.dtype | None = None) -> Tensor:
        """Return the noise of every condition, `(B, d) -> (A, B, d)`; `at` holds one row of every part of `embed`."""

    def noise_in_place(self, x: Tensor, at: At) -> Tensor:
        """`noise` for samplers on a CPU: no gradients, and memory may be kept between calls."""
        return self.noise(x, at)

    @abstractmethod
    def noise_at(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the noise at one time or a batch of them, `(..., d), () or (...) -> (A, ..., d)`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter and buffer by name."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return what a file says besides, JSON-ready; networks of one file agree in it."""
