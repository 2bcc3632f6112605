"""Models on disk: tensors as safetensors, everything else as JSON one can read. No pickle, written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.algebra import Family
from polyscore.distributions.learned import Network, NetworkCondition
from polyscore.errors import PolyscoreError
from polyscore.files import write_bytes, write_text
from polyscore.nn.mlp import ScoreNetwork
from polyscore.schedules import from_dict

FORMAT = "polyscore-family"
VERSION = 1


class FileError(PolyscoreError):
    """A model file that is damaged, foreign, or of another version."""


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write one safetensors file with a JSON description in its header."""
    from safetensors.torch import save as to_bytes

    packed = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_bytes(path, to_bytes(packed, metadata={"polyscore": json.dumps(about)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, or say what is wrong with the file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(f"a model file must exist; got {path}. Check the path.")
    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("polyscore", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{path} must be a whole safetensors file; it is damaged or foreign ({error}).") from error
    if not isinstance(about, dict):
        raise FileError(f"{path} must be written by polyscore; it is another program's safetensors file.")
    return tensors, about


def save(family: Family, path: str | Path) -> Path:
    """Write a family of learned members: `path` (safetensors) and a readable copy of its description beside it."""
    if len(family.groups) != 1 or len({id(getattr(m, "group", None)) for m in family.members.values()}) != 1:
        raise FileError("save needs a family whose members share one network, as `fit` returns it; got another kind.")
    group, path = family.groups[0], _with_suffix(path)
    network = group.network
    tensors = {
        "time": network.time, "first": network.first, "constant": network.constant, "last": network.last,
        "last_bias": network.last_bias,
        **{f"hidden.{i}": weight for i, weight in enumerate(network.hidden)},
        **{f"hidden_bias.{i}": bias for i, bias in enumerate(network.hidden_biases)},
    }  # fmt: skip
    if family.units is not None:
        tensors |= {"shift": family.units[0], "scale": family.units[1]}
    about = {
        "format": FORMAT, "version": VERSION, "schedule": family.schedule.to_dict(), "event": list(family.event),
        "conditions": {name: member.index for name, member in family.members.items()},  # type: ignore[union-attr]
        "shared": network.shared, "activation": network.activation, "training": getattr(family, "training", {}),
    }  # fmt: skip
    write_tensors(path, tensors, about)
    write_text(path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")
    return path


def load(path: str | Path, device: torch.device | str = "cpu", precision: str = "auto") -> Family:
    """Read a family that `save` wrote."""
    path = _with_suffix(path)
    tensors, about = read_tensors(path)
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        found = f"{about.get('format')} version {about.get('version')}"
        raise FileError(
            f"{path} must hold a {FORMAT} of version {VERSION}; got {found}. Save it again with this version."
        )
    try:
        return _rebuild(tensors, about, device, precision)
    except (KeyError, TypeError, IndexError) as error:
        raise FileError(f"{path} must hold every tensor of its network; {error} is missing or wrong.") from error


def _rebuild(tensors: dict[str, Tensor], about: dict[str, Any], device: torch.device | str, precision: str) -> Family:
    network = object.__new__(ScoreNetwork)
    depth = sum(name.startswith("hidden.") for name in tensors)
    network.__dict__.update(
        dim=about["event"][0], activation=about["activation"], shared=about["shared"],
        conditions=len(tensors["constant"]),
        **{name: tensors[name] for name in ("time", "first", "constant", "last", "last_bias")},
        hidden=[tensors[f"hidden.{i}"] for i in range(depth)],
        hidden_biases=[tensors[f"hidden_bias.{i}"] for i in range(depth)],
    )  # fmt: skip
    units = (tensors["shift"], tensors["scale"]) if "shift" in tensors else None
    family = build_family(network.to(device), about["conditions"], about["schedule"], units, precision)
    family.training = about["training"]
    return family


def build_family(
    network: ScoreNetwork,
    conditions: dict[str, int],
    schedule: dict[str, Any],
    units: tuple[Tensor, Tensor] | None,
    precision: str = "auto",
) -> Family:
    """Return the family of a network's conditions."""
    group = Network(network, from_dict(schedule), precision)
    members = {name: NetworkCondition(group, index, (network.dim,)) for name, index in conditions.items()}
    return Family(members, units=units)


def _with_suffix(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")
