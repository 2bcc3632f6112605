"""Trained networks on disk: tensors as safetensors, everything else as JSON one can read.

Two files: `NAME.safetensors`, which is complete, and `NAME.json`, a copy of its description for people that is never
read back. A file names the kind of its networks, which `NETWORKS` must know: nothing in a file is ever imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import CompositionError, PolyscoreError, check_conditions, listed, shorten
from polyscore.files.atomic import write_text
from polyscore.files.outputs import check_model
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.models.bend import Bent
from polyscore.models.devices import groups_of
from polyscore.models.fitted import Fitted, are_fitted
from polyscore.models.network import common_networks, network_conditions
from polyscore.models.units import Units
from polyscore.nn import NETWORKS, ScoreNetwork, Stack
from polyscore.schedules import Schedule, from_dict

FORMAT = "polyscore-family"
VERSION = 2  # 1, of 0.2.0, has a checksum of its numbers only
_BENT = 3  # the same with a bend, which versions before 0.6.0 would not see
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
    units: Units | None
    training: dict[str, Any]


def checkpoint_of(
    members: Mapping[str, object], schedule: Schedule, units: Units | None, training: dict[str, Any]
) -> Checkpoint:
    """Return members as `fit` makes them, ensembles too; or say that no file holds them."""
    if are_fitted(list(members.values())):
        fitted = {name: member for name, member in members.items() if isinstance(member, Fitted)}
        network = next(iter(fitted.values())).network
        return Checkpoint([network], {name: one.index for name, one in fitted.items()}, schedule, units, training)
    columns = {name: network_conditions(member) for name, member in members.items()}
    foreign = next((name for name, column in columns.items() if not column), None)
    if foreign is not None:
        raise CompositionError(
            f"a family must be one that `fit` trained to be saved; {foreign!r} is of another kind. Save each part by "
            "itself, and a model of your own in files of its own."
        )
    networks = [group.network for group in common_networks(list(columns.values()))]
    aligned = all(len({model.index for model in column}) == 1 for column in columns.values())
    if not aligned or len({(network.kind, network.dim, repr(network.about())) for network in networks}) != 1:
        raise CompositionError(
            "a family must have one network behind all its members to be saved, or the models of one ensemble, alike "
            f"in shape; got {len(groups_of(members.values()))} networks for {len(members)} members. "
            "Save each part by itself."
        )
    indices = {name: column[0].index for name, column in columns.items()}
    return Checkpoint(networks, indices, schedule, units, training)


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> Path:
    """Write both files, unless they would replace another program's; returns the path of the first."""
    path, network = with_suffix(path), checkpoint.networks[0]
    check_model(path)
    _check_schedule(checkpoint.schedule)
    models = zip(_prefixes(len(checkpoint.networks), network.kind), checkpoint.networks, strict=True)
    tensors = {prefix + name: tensor for prefix, model in models for name, tensor in model.tensors().items()}
    if checkpoint.units is not None:
        tensors |= checkpoint.units._asdict()
    if isinstance(checkpoint.units, Bent):
        tensors["bend"] = torch.stack(list(checkpoint.units.bend))
    version = _BENT if "bend" in tensors else VERSION
    about = {
        **network.about(), "format": FORMAT, "version": version, "schedule": checkpoint.schedule.to_dict(),
        "event": [network.dim], "conditions": checkpoint.conditions, "network": network.kind,
        "module": NETWORKS[network.kind].__module__, "models": len(checkpoint.networks),
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
    readable = (_BENT,) if "bend" in tensors else _READABLE
    if about.get("format") != FORMAT or about.get("version") not in readable:
        found = f"{about.get('format')} version {about.get('version')}"[:100]
        raise FileError(f"{path} must hold a {FORMAT} of version {VERSION}; got {found}. Save it with this version.")
    kind, make = _kind(path, about)
    try:
        dim, schedule = _count(about["event"][0]), from_dict(about["schedule"])
        networks = [
            make.from_tensors(_under(prefix, tensors), about, kind, dim, schedule)
            for prefix in _prefixes(about.get("models", 1), kind)
        ]
        conditions = _checked(about["conditions"], min(network.conditions for network in networks))
        return Checkpoint(networks, conditions, schedule, _units(tensors, dim), dict(about["training"]))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise FileError(
            f"{path} must hold every tensor of its network, in shape; {str(error)[:200]} is missing or wrong. "
            "Use a copy, or train again."
        ) from error


def _kind(path: Path, about: dict[str, Any]) -> tuple[str, type[Stack]]:
    """Return the kind of network that a file holds, if it is registered; files of 0.3.0 and before name none."""
    kind = about.get("network", "vanilla")
    if kind not in NETWORKS:
        raise FileError(
            f"{path} must hold networks of a kind that is known here; got {shorten(kind, 100)}, known are "
            f"{listed(NETWORKS, 30, str)}. Import the module that registers it first: it was written from "
            f"{shorten(about.get('module'), 100)}."
        )
    return kind, NETWORKS[kind]


def _check_schedule(schedule: Schedule) -> None:
    """Refuse a schedule that `read_checkpoint` could not build again."""
    try:
        known = from_dict(schedule.to_dict()) == schedule
    except PolyscoreError:
        known = False
    if not known:
        raise FileError(
            f"a model's schedule must be registered to be saved; got {schedule}. "
            "Register it: @polyscore.schedules.SCHEDULES.register(name)."
        )


def _prefixes(models: int, kind: str) -> Iterator[str]:
    """Before the names of each model's tensors: "0.", "1.", ...; nothing for a single one of the first kind."""
    return iter([""]) if models == 1 and kind == "vanilla" else (f"{m}." for m in range(models))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    types = {tensor.dtype for name, tensor in found.items() if name not in ("shift", "scale", "bend")}
    if len(types) > 1 or not all(dtype.is_floating_point for dtype in types):
        raise ValueError(f"one floating type for all weights, not {', '.join(sorted(map(str, types)))},")
    return found


def _checked(conditions: Any, count: int) -> dict[str, int]:
    """Return the indices of conditions if each names a row of the network."""
    if not isinstance(conditions, dict) or not all(type(i) is int and i in range(count) for i in conditions.values()):
        raise ValueError(f"conditions {conditions!r:.100} for a network of {count}")
    check_conditions(conditions)
    return conditions


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"the number {value!r:.50}")
    return value


def _units(tensors: dict[str, Tensor], dim: int) -> Units | None:
    """Return shift and scale `(d,)`, and a bend `(3, d)`, if there are any and they make sense."""
    if not {"shift", "scale", "bend"} & set(tensors):
        return None
    shift, scale = tensors["shift"], tensors["scale"]
    for name, values in (("shift", shift), ("scale", scale)):
        if values.shape != (dim,) or not values.is_floating_point() or not bool(values.isfinite().all()):
            raise ValueError(f"{name} of shape {tuple(values.shape)}")
    if not bool((scale > 0).all()):
        raise ValueError("scale, which must be positive,")
    if "bend" not in tensors:
        return Units(shift, scale)
    power, centre, width = tensors["bend"]
    if not power.is_floating_point():
        raise ValueError(f"bend in {power.dtype}")
    return Bent(shift, scale, (power, centre, width))


def path_of(path: object) -> Path:
    """Return the path of a model, or refuse what is none."""
    if not isinstance(path, (str, PathLike)):
        raise FileError(f"a model's file must be named by a path; got {shorten(path)}. Write 'model.safetensors'.")
    return Path(path)


def with_suffix(path: str | Path) -> Path:
    """Return a model's file: the name with its ending, also where the JSON beside it was named."""
    path = path_of(path)
    if path.suffix == ".json":
        return path.with_suffix(".safetensors")
    return path if path.suffix == ".safetensors" else path.parent / f"{path.name}.safetensors"
