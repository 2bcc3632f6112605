"""Networks as families: what `fit` returns and `load` reads."""

from __future__ import annotations

from pathlib import Path

import torch

from polyscore.algebra import Family
from polyscore.checkpoints import Checkpoint, read_checkpoint
from polyscore.devices import check_device
from polyscore.distributions.learned import Ensemble, Network, NetworkCondition


def load(path: str | Path, device: torch.device | str = "cpu", precision: str = "auto") -> Family:
    """Return the family that `Family.save` wrote.

    Args:
        device: where its network shall be.
        precision: "auto", "table", "fp16", "tf32" or "float32"; see `polyscore.distributions.learned.Network`.
    """
    where = check_device(device)
    return build_family(read_checkpoint(path)).to(where, precision)


def build_family(checkpoint: Checkpoint) -> Family:
    """Return the family of the networks' conditions; of several networks, one of ensembles."""
    event = (checkpoint.networks[0].dim,)
    groups = [Network(network, checkpoint.schedule, units=checkpoint.units) for network in checkpoint.networks]
    members: dict[str, NetworkCondition | Ensemble] = {}
    for name, index in checkpoint.conditions.items():
        models = [NetworkCondition(group, index, event) for group in groups]
        members[name] = Ensemble(models) if len(models) > 1 else models[0]
    family = Family(members, units=checkpoint.units)
    family.training = checkpoint.training
    return family
