"""GPU kernels; the eager path of `polyscore.nn.mlp` is their oracle. They are imported only where there is a GPU."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from polyscore.nn.mlp import ScoreNetwork, has_triton


class Fused(Protocol):
    """A network laid out for kernels of its own: fp16 operands, float32 sums."""

    def half_offsets(self, offsets: Tensor) -> Tensor:
        """Return the first layer's constants as `noise` wants them."""

    def noise(self, x: Tensor, half_offset: Tensor) -> Tensor:
        """Return the predicted noise of every condition, `(B, d), (A, width) -> (A, B, d)`."""


def fuse(network: ScoreNetwork, device: torch.device) -> Fused | None:
    """Return the fastest kernels that serve this network on this device, or None.

    One kernel for all layers where the width is the paper's and the GPU a Hopper; else one a layer, by Triton.
    """
    if device.type != "cuda":
        return None
    from polyscore.nn.fast import hopper

    if hopper.supports(network, device):
        return hopper.HopperNetwork(network)
    if layered(network, device):
        from polyscore.nn.fast.layered import FusedNetwork

        return FusedNetwork(network)
    return None


def layered(network: ScoreNetwork, device: torch.device) -> bool:
    """Whether the Triton kernels serve this network: SiLU, a width of whole tiles, a copy engine."""
    if network.activation != "silu" or not network.hidden or network.width % 64 or network.dim > 64:
        return False
    return has_triton() and torch.cuda.get_device_capability(device)[0] >= 9
