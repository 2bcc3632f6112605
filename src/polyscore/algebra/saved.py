"""Trained networks as families: what `fit` returns and `load` reads."""

from __future__ import annotations

from os.path import isdir, isfile
from pathlib import Path

import torch

from polyscore.algebra.family import Family
from polyscore.devices import check_device, on_cpu_by_default
from polyscore.errors import require
from polyscore.models.checkpoints import Checkpoint, path_of, read_checkpoint, with_suffix
from polyscore.models.ensemble import Ensemble
from polyscore.models.fitted import Fitted, is_a_mixture
from polyscore.models.network import Network, NetworkCondition

# What `polyscore fit` writes into its folder: the model, and the training to go on with.
MODEL, TRAINING = "model.safetensors", "training.safetensors"


def load(path: str | Path, device: torch.device | str = "cpu", precision: str = "auto") -> Family:
    """Return the family that `Family.save` or `polyscore fit` wrote.

    Args:
        path: a model file, with or without its ending, or the folder of a fit.
        device: where its network shall be.
        precision: "auto", "table", "fp16", "bf16", "tf32" or "float32"; see `polyscore.models.network.Network`.
    """
    where = check_device(device)
    with on_cpu_by_default():
        return build_family(read_checkpoint(model_file(path))).to(where, precision)


def model_file(path: str | Path) -> Path:
    """Return the model file that `path` names: itself, or that of a folder which `polyscore fit` wrote."""
    path = path_of(path)
    if isdir(path) and not isfile(with_suffix(path)):  # which answer no to names that no system takes
        require(isfile(path / MODEL), "a folder with a model", f"hold {MODEL}", f"{path} without it", _reader(path))
        return path / MODEL
    return path


def _reader(path: Path) -> str:
    """Return what reads a folder that holds no model of a table, as far as its files tell."""
    if isfile(path / TRAINING):
        return "The same command of `polyscore fit` goes on."
    if isdir(path / "export") or isdir(path / "checkpoints") or any(path.glob("network-*.safetensors")):
        return "A model of images is read by ps.images.load."
    if isfile(path / "model_index.json") or isfile(path / "config.json"):
        return "A model of diffusers is read by ps.from_diffusers."
    return "Check the path."


def build_family(checkpoint: Checkpoint) -> Family:
    """Return the family of the networks' conditions; of several networks, one of ensembles."""
    training, units = checkpoint.training, checkpoint.units
    members = _closed_forms(checkpoint) or _conditions(checkpoint)
    return Family(members, checkpoint.schedule, units, training.get("variables"), training)


def _closed_forms(checkpoint: Checkpoint) -> dict[str, Fitted] | None:
    """The conditions of one network that is a mixture and nothing else, as the distributions that they are."""
    first, *others = checkpoint.networks
    if others or not is_a_mixture(first):
        return None
    return {name: Fitted(first, index) for name, index in checkpoint.conditions.items()}


def _conditions(checkpoint: Checkpoint) -> dict[str, NetworkCondition | Ensemble]:
    groups = [Network(network, checkpoint.schedule, units=checkpoint.units) for network in checkpoint.networks]
    members: dict[str, NetworkCondition | Ensemble] = {}
    for name, index in checkpoint.conditions.items():
        models = [group.condition(index) for group in groups]
        members[name] = Ensemble(models) if len(models) > 1 else models[0]
    return members
