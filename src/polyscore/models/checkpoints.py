"""A trained network on disk: tensors as safetensors, everything else as JSON one can read.

Two files: `NAME.safetensors`, which is complete, and `NAME.json`, a copy of its description for people that is never
read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from polyscore.errors import PolyscoreError, check_conditions
from polyscore.files.atomic import write_text
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.nn.mlp import ScoreNetwork
from polyscore.schedules import Schedule, from_dict

FORMAT = "polyscore-family"
VERSION = 2  # 1, of 0.2.0, has a checksum of its numbers only
_READABLE = (1, 2)


@dataclass(frozen=True)
class Checkpoint:
    """Networks with what makes them a family: one, or the models of an ensemble.

    Attributes:
        conditions: from name to its index in each network.
        units: (shift, scale) of the standardisation, or None.
        training: how it came to be.
    """

    networks: list[ScoreNetwork]
    conditions: dict[str, int]
    schedule: Schedule
    units: tuple[Tensor, Tensor] | None
    training: dict[str, Any]


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> Path:
    """Write both files; returns the path of the first."""
    _check_schedule(checkpoint.schedule)
    path, network = with_suffix(path), checkpoint.networks[0]
    models = zip(_prefixes(len(checkpoint.networks)), checkpoint.networks, strict=True)
    tensors = {prefix + name: tensor for prefix, model in models for name, tensor in model.tensors().items()}
    if checkpoint.units is not None:
        tensors |= {"shift": checkpoint.units[0], "scale": checkpoint.units[1]}
    about = {
        "format": FORMAT, "version": VERSION, "schedule": checkpoint.schedule.to_dict(), "event": [network.dim],
        "conditions": checkpoint.conditions, "shared": network.shared, "activation": network.activation,
        "hidden_layers": len(network.hidden), "models": len(checkpoint.networks),
        "training": checkpoint.training,
    }  # fmt: skip
    write_tensors(path, tensors, about)
    write_text(path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")
    return path


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read what `write_checkpoint` wrote, or say what is wrong with it."""
    path = with_suffix(path)
    tensors, about = read_tensors(path)
    if about.get("kind") == "training":
        raise FileError(
            f"{path} must hold a finished model; it is a training to go on with. Pass it to fit(checkpoint=)."
        )
    if about.get("format") != FORMAT or about.get("version") not in _READABLE:
        found = f"{about.get('format')} version {about.get('version')}"[:100]
        raise FileError(f"{path} must hold a {FORMAT} of version {VERSION}; got {found}. Save it with this version.")
    try:
        shape = (_count(about["event"][0], 1), _count(about["hidden_layers"], 0), about["shared"], about["activation"])
        networks = [
            ScoreNetwork.from_tensors(_under(prefix, tensors), *shape) for prefix in _prefixes(about.get("models", 1))
        ]
        conditions = _checked(about["conditions"], min(network.conditions for network in networks))
        units = _units(tensors, networks[0].dim)
        schedule = from_dict(about["schedule"])
        return Checkpoint(networks, conditions, schedule, units, dict(about["training"]))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
        raise FileError(
            f"{path} must hold every tensor of its network, in shape; {str(error)[:200]} is missing or wrong. "
            "Use a copy, or train again."
        ) from error


def _check_schedule(schedule: Schedule) -> None:
    """Refuse a schedule that `read_checkpoint` could not build again."""
    try:
        known = from_dict(schedule.to_dict()) == schedule
    except PolyscoreError:
        known = False
    if not known:
        raise FileError(
            f"a model's schedule must be one of polyscore's own to be saved; got {schedule}. "
            "Keep its networks' weights yourself, and build the family again with ps.Learned."
        )


def _prefixes(models: int) -> Iterator[str]:
    """Before the names of each model's tensors: nothing for a single one, "0.", "1.", ... for an ensemble."""
    return iter([""]) if models == 1 else (f"{m}." for m in range(models))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    types = {tensor.dtype for name, tensor in found.items() if name not in ("shift", "scale")}
    if len(types) > 1 or not all(dtype.is_floating_point for dtype in types):
        raise ValueError(f"one floating type for all weights, not {', '.join(sorted(map(str, types)))},")
    return found


def _checked(conditions: Any, count: int) -> dict[str, int]:
    """Return the indices of conditions if each names a row of the network."""
    if not isinstance(conditions, dict) or not all(type(i) is int and i in range(count) for i in conditions.values()):
        raise ValueError(f"conditions {conditions!r:.100} for a network of {count}")
    check_conditions(conditions)
    return conditions


def _count(value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"the number {value!r:.50}")
    return value


def _units(tensors: dict[str, Tensor], dim: int) -> tuple[Tensor, Tensor] | None:
    """Return shift and scale `(d,)` if there are any and they make sense."""
    if not {"shift", "scale"} & set(tensors):
        return None
    shift, scale = tensors["shift"], tensors["scale"]
    for name, values in (("shift", shift), ("scale", scale)):
        if values.shape != (dim,) or not values.is_floating_point() or not bool(values.isfinite().all()):
            raise ValueError(f"{name} of shape {tuple(values.shape)}")
    if not bool((scale > 0).all()):
        raise ValueError("scale, which must be positive,")
    return shift, scale


def with_suffix(path: str | Path) -> Path:
    """Return a model's file: the name with its ending, also where the JSON beside it was named."""
    path = Path(path)
    if path.suffix == ".json":
        return path.with_suffix(".safetensors")
    return path if path.suffix == ".safetensors" else path.parent / f"{path.name}.safetensors"
