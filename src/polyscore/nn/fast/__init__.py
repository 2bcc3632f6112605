"""GPU kernels of perceptrons, and functions of the plane by table. The eager `polyscore.nn.perceptron` is their oracle.

Kernels are imported only where there is a GPU. Each layout offers `supports(network, device)` and a class that lays a
network out: `half_offsets` prepares the first layer's constants, `noise` evaluates.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Kernels(Protocol):
    """A perceptron laid out for kernels of its own: fp16 operands, float32 sums."""

    def half_offsets(self, offsets: Tensor) -> Tensor:
        """Return the first layer's constants as `noise` wants them."""

    def noise(self, x: Tensor, half_offset: Tensor) -> Tensor:
        """Return the predicted noise of every condition, `(B, d), (A, width) -> (A, B, d)`."""
