"""A trained network on disk: tensors as safetensors, everything else as JSON one can read.

Two files: `NAME.safetensors`, which is complete, and `NAME.json`, a copy of its description for people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from polyscore.files import write_text
from polyscore.nn.mlp import ScoreNetwork
from polyscore.schedules import Schedule, from_dict
from polyscore.tensor_files import FileError, read_tensors, write_tensors

FORMAT = "polyscore-family"
VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A network with what makes it a family.

    Attributes:
        conditions: from name to its index in the network.
        units: (shift, scale) of the standardisation, or None.
        training: how it came to be.
    """

    network: ScoreNetwork
    conditions: dict[str, int]
    schedule: Schedule
    units: tuple[Tensor, Tensor] | None
    training: dict[str, Any]


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> Path:
    """Write both files; returns the path of the first."""
    path, network = _with_suffix(path), checkpoint.network
    tensors = network.tensors()
    if checkpoint.units is not None:
        tensors |= {"shift": checkpoint.units[0], "scale": checkpoint.units[1]}
    about = {
        "format": FORMAT, "version": VERSION, "schedule": checkpoint.schedule.to_dict(), "event": [network.dim],
        "conditions": checkpoint.conditions, "shared": network.shared, "activation": network.activation,
        "hidden_layers": len(network.hidden),
        "training": checkpoint.training,
    }  # fmt: skip
    write_tensors(path, tensors, about)
    write_text(path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")
    return path


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read what `write_checkpoint` wrote, or say what is wrong with it."""
    path = _with_suffix(path)
    tensors, about = read_tensors(path)
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        found = f"{about.get('format')} version {about.get('version')}"
        raise FileError(f"{path} must hold a {FORMAT} of version {VERSION}; got {found}. Save it with this version.")
    try:
        size = (about["event"][0], about["hidden_layers"])
        network = ScoreNetwork.from_tensors(tensors, *size, about["shared"], about["activation"])
        conditions = _checked(about["conditions"], network.conditions)
        units = (tensors["shift"], tensors["scale"]) if "shift" in tensors else None
        schedule = from_dict(about["schedule"])
        return Checkpoint(network, conditions, schedule, units, about["training"])
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise FileError(
            f"{path} must hold every tensor of its network, in shape; {error} is missing or wrong."
        ) from error


def _checked(conditions: Any, count: int) -> dict[str, int]:
    """Return the indices of conditions if each names a row of the network."""
    if not isinstance(conditions, dict) or not all(index in range(count) for index in conditions.values()):
        raise ValueError(f"conditions {conditions!r} for a network of {count}")
    return conditions


def _with_suffix(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")
