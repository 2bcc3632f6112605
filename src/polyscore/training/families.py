"""Networks as families: what `fit` returns and `load` reads."""

from __future__ import annotations

from pathlib import Path

import torch

from polyscore.algebra import Family
from polyscore.checkpoints import Checkpoint, read_checkpoint
from polyscore.distributions.learned import Network, NetworkCondition


def load(path: str | Path, device: torch.device | str = "cpu", precision: str = "auto") -> Family:
    """Return the family that `Family.save` wrote.

    Args:
        device: where its network shall be.
        precision: "auto", "tf32" or "float32".
    """
    return build_family(read_checkpoint(path)).to(device, precision)


def build_family(checkpoint: Checkpoint) -> Family:
    """Return the family of a network's conditions."""
    network = checkpoint.network
    group = Network(network, checkpoint.schedule)
    members = {name: NetworkCondition(group, index, (network.dim,)) for name, index in checkpoint.conditions.items()}
    family = Family(members, units=checkpoint.units)
    family.training = checkpoint.training
    return family
