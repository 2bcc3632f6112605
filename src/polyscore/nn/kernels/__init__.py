"""GPU kernels; the eager path of `polyscore.nn.mlp` is their oracle. Triton is imported only where there is a GPU."""

from __future__ import annotations

import torch

from polyscore.nn.mlp import ScoreNetwork, has_triton


def available(network: ScoreNetwork, device: torch.device) -> bool:
    """Whether the fused kernels serve this network on this device."""
    if device.type != "cuda" or network.activation != "silu" or not network.hidden:
        return False
    if network.width % 64 or network.width < 64 or network.dim > 64:
        return False
    return has_triton() and torch.cuda.get_device_capability(device)[0] >= 9
