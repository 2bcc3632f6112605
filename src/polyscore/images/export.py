"""The export of a training: averaged weights in half precision, in small shards, and what they are.

export/
  model.json                        mixtures, recipe, diffusers' configurations, losses, digest; written last
  network-0001-of-0002.safetensors  at most 15 MiB each
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from polyscore.devices import check_device, plain_defaults
from polyscore.errors import PolyscoreError, differing, is_count, listed, require, shorten
from polyscore.files.atomic import write_text
from polyscore.files.shards import cut
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.images.recipe import Recipe, UNet
from polyscore.images.unet import build, config, scheduler
from polyscore.training.keeper import CheckpointError

if TYPE_CHECKING:
    from polyscore.algebra import Family

FORMAT, VERSION, FOLDER = "polyscore-images", 1, "export"
LARGEST = 15 * 2**20  # bytes of a shard
_HEADER = 2**17  # of them for names and description
Networks = Mapping[str, tuple[tuple[str, ...], dict[str, Tensor]]]  # by name: conditions and weights
History = dict[str, list[dict[str, Any]]]  # by network: what was measured, the newest last
Done = tuple[bool, int, int, dict[str, float], History]  # what `Trained` has of it


def write(folder: Path, identity: dict[str, Any], networks: Networks, history: Mapping[str, Any], steps: int) -> None:
    """Write the export of a training into a folder."""
    recipe = Recipe.from_dict(identity["recipe"])
    told = {name: _write_network(folder, name, *network) for name, network in networks.items()}
    digest = hashlib.sha256(json.dumps([one["digest"] for one in told.values()]).encode()).hexdigest()
    conditions = max(len(one["conditions"]) for one in told.values())
    model = {
        "format": FORMAT, "version": VERSION, **identity, "networks": told, "digest": digest, "steps": steps,
        "history": dict(history), "unet": config(recipe.unet, conditions),
        "scheduler": {key: value for key, value in scheduler().config.items() if not key.startswith("_")},
    }  # fmt: skip
    write_text(folder / "model.json", json.dumps(model, indent=2) + "\n")


def _write_network(folder: Path, name: str, conditions: tuple[str, ...], weights: dict[str, Tensor]) -> dict[str, Any]:
    bad = [key for key, value in weights.items() if not value.isfinite().all()]
    require(not bad, "weights in half precision", "be finite", f"{bad[:3]} that are not", "Train with weight_decay.")
    for key, value in weights.items():
        require(value.nbytes + _HEADER <= LARGEST, "a tensor", f"fit into a shard of {LARGEST} bytes",
                f"{key} of {value.nbytes}", "Train a narrower network.")  # fmt: skip
    parts = list(cut(weights.items(), lambda item: item[1].nbytes, LARGEST - _HEADER))
    files = [f"{name}-{k + 1:04}-of-{len(parts):04}.safetensors" for k in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        write_tensors(folder / file, dict(part), {"kind": "image weights", "network": name})
    return {"conditions": list(conditions), "shards": files, "digest": _digest(weights)}


def _digest(weights: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode())
        total.update(weights[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def about(path: Path | str) -> dict[str, Any]:
    """Return what `model.json` says, of a training's folder or of its export."""
    found = _about(Path(path))
    require(found is not None, "an image model", "be a folder with model.json, or of a training that is complete",
            repr(str(path)), "Check the path, or train on.")  # fmt: skip
    return found or {}


def _about(path: Path) -> dict[str, Any] | None:
    file = next((f for f in (path / "model.json", path / FOLDER / "model.json") if isfile(f)), None)
    if file is None:
        return None
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        good = told["format"] == FORMAT and told["version"] == VERSION
        good = good and all(isinstance(told[name], dict) for name in ("networks", "history", "recipe"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{file} must describe an image model; it is damaged ({error!r:.80}). Use a copy.") from error
    if not good:
        raise FileError(f"{file} must describe an image model of version {VERSION}; it does not. Check the path.")
    return {**told, "folder": str(file.parent)}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say of a model that is damaged or forged that it is, whatever it lacks."""
    try:
        yield
    except PolyscoreError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise FileError(
            f"{path} must hold an image model as it was written; it is damaged ({error!r:.120}). Use a copy."
        ) from error


def find(out: Path, wanted: dict[str, Any]) -> Done | None:
    """Return what is told of a training that is complete, or None; one of another training is refused."""
    told = _about(out / FOLDER) if (out / FOLDER).is_dir() else None
    if told is None:
        return None
    if other := differing(told, json.loads(json.dumps(wanted))):
        raise CheckpointError(
            f"a folder must hold one training; {str(out)!r} has one that differs in {other}. Name another folder."
        )
    with reading(out):
        for name, one in told["networks"].items():
            if not told["history"][name] or not is_history(told["history"][name], one["conditions"]):
                raise ValueError("history")
        if not is_count(told["steps"]):
            raise ValueError("steps")
        return True, told["steps"], told["steps"], newest(told["history"]), told["history"]


def is_history(entries: Any, conditions: Collection[str]) -> bool:
    """Whether a network's history is one: steps, losses, and held-out losses of its conditions."""
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and is_count(entry.get("step")) and type(entry.get("loss")) is float
        and isinstance(held := entry.get("held_out"), dict) and set(held) == set(conditions)
        and all(type(loss) is float for loss in held.values()) for entry in entries
    )  # fmt: skip


def newest(history: History) -> dict[str, float]:
    """Return the newest held-out losses, by condition; something was measured of every network."""
    return {name: loss for entries in history.values() for name, loss in entries[-1]["held_out"].items()}


@plain_defaults()
def networks(path: Path | str, device: torch.device | str | None = None) -> dict[tuple[str, ...], nn.Module]:
    """Return the networks of an export in float32, by the conditions that their labels number."""
    told, where = about(path), check_device(device)
    folder = Path(told["folder"])
    with reading(folder):
        recipe = Recipe.from_dict(told["recipe"])
        found = {_conditions(one): _network(folder, name, one, recipe)
                 for name, one in told["networks"].items()}  # fmt: skip
        named = [name for one in told["networks"].values() for name in one["conditions"]]
        wanted = list(told["mixtures"]["conditions"])
    require(found, "an image model", "have a network", "none", "Use a copy.")
    # The checksum is of weights: what their labels mean is told twice.
    require(named == wanted, "networks of an image model", f"have the conditions of its mixtures, {listed(wanted)}",
            shorten(named, 80), "Use a copy.")  # fmt: skip
    return {conditions: model.to(where) for conditions, model in found.items()}


def shards(told: dict[str, Any]) -> list[str]:
    """Return the names of all shards of a model."""
    files = [file for one in told["networks"].values() for file in one["shards"]]
    for file in files:
        require(Path(file).name == file, "a shard", "be a plain file name", repr(file)[:80],
                "Export the training again.")  # fmt: skip
    require(len(set(files)) == len(files), "a shard", "be named once", f"{len(files)} names of {len(set(files))} files",
            "Export the training again.")  # fmt: skip
    return files


def _conditions(told: dict[str, Any]) -> tuple[str, ...]:
    """The conditions of a network, which its labels number: one that stood twice would be lost without a word."""
    names = told["conditions"]
    good = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    require(good and len(set(names)) == len(names), "conditions", "be a list of different names", shorten(names, 80),
            "Export the training again.")  # fmt: skip
    return tuple(names)


def _fits(shape: UNet, conditions: int, weights: Mapping[str, Tensor]) -> bool:
    """Whether weights are those of a network, asked before one that may be larger than memory is made."""
    with torch.device("meta"):
        wanted = build(shape, conditions).state_dict()
    real = all(value.is_floating_point() for value in weights.values())
    return real and {k: v.shape for k, v in wanted.items()} == {k: v.shape for k, v in weights.items()}


def _network(folder: Path, name: str, told: dict[str, Any], recipe: Recipe) -> nn.Module:
    weights: dict[str, Tensor] = {}
    for file in shards({"networks": {name: told}}):
        weights |= read_tensors(folder / file)[0]
    if _digest(weights) != told["digest"]:
        raise FileError(f"the shards of {name} in {folder} must be of one export; they are not. Use a copy.")
    conditions = len(_conditions(told))
    if not _fits(recipe.unet, conditions, weights):
        raise FileError(f"{folder / 'model.json'} must describe its shards; it does not fit them. Use a copy.")
    model = build(recipe.unet, conditions)
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    return model.eval().requires_grad_(False)


def load(path: Path | str, device: torch.device | str | None = None) -> Family:
    """Return the conditions of an export as a family: one network for all, or one of each.

    Args:
        path: a training's folder, or its `export`.
    """
    from polyscore.pipelines import from_diffusers

    found = networks(path, device)
    ((names, model),) = list(found.items())[:1]
    if len(names) > 1:
        return from_diffusers(model, scheduler=scheduler(), conditions={name: k for k, name in enumerate(names)})
    return from_diffusers({names[0]: model for names, model in found.items()}, scheduler=scheduler())
