"""Models from folders that diffusers saved them to. Only weights in safetensors are read: others can hold programs."""

from __future__ import annotations

import importlib
import json
from os.path import isdir
from pathlib import Path
from typing import Any

from torch import nn

from polyscore.errors import ArgumentError, PolyscoreError, require, shorten
from polyscore.extras import load, read_whole
from polyscore.pipelines.networks import MODELS

_WHAT = "a folder's model"
_LAYERS = ("layers_per_block", "transformer_layers_per_block", "num_layers", "num_single_layers", "num_hidden_layers")
# Layers: the largest models have some sixty, and each takes time to be made. Timesteps: nearly all have a thousand.
_MOST = dict.fromkeys(_LAYERS, 1000) | {"num_train_timesteps": 100_000}


def read_folder(path: Path, scheduler: Any) -> tuple[Any, Any]:
    """Return the model or pipeline of a folder, and its scheduler where it is a model's; `scheduler` where given."""
    require(isdir(path), "model", "be a folder that exists", path,
            "Download a model first: diffusers' from_pretrained(name), then save_pretrained(folder).")  # fmt: skip
    load("diffusers", _WHAT)
    check_sizes(path)
    if (path / "model_index.json").is_file():
        return _read(path, "DiffusionPipeline"), scheduler
    require((path / "config.json").is_file(), "a model's folder", "hold config.json or model_index.json", path,
            "Save it by save_pretrained(folder).")  # fmt: skip
    kind = _kind(path / "config.json")
    require(kind in MODELS, "a model's folder", f"hold one of {', '.join(MODELS)}", shorten(kind),
            "Save the model with save_pretrained, or pass the loaded model itself.")  # fmt: skip
    return _read(path, kind), scheduler or _scheduler(path)


def check_sizes(path: Path) -> None:
    """Refuse what would be made for hours before its weights are found not to fit."""
    for name in ("config.json", "scheduler_config.json"):
        for file in sorted({path / name, *path.glob(f"*/{name}")}):
            if file.is_file():
                _require_small(file)


def _require_small(file: Path) -> None:
    written = _written(file)
    for name, most in _MOST.items():
        told = written.get(name)
        for count in told if isinstance(told, list) else [told]:
            require(not isinstance(count, (int, float)) or count <= most, f"{name} of {file}", f"be at most {most}",
                    shorten(count), "Take the folder as it was published.")  # fmt: skip


def _kind(file: Path) -> str:
    """The class that a configuration names."""
    return str(_written(file).get("_class_name"))


def _written(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _broken(file, error) from error


def _scheduler(path: Path) -> Any:
    """The scheduler beside a model, or in a folder of its own; None where there is none."""
    found = [place for place in (path, path / "scheduler") if (place / "scheduler_config.json").is_file()]
    if not found:
        return None
    kind = _kind(found[0] / "scheduler_config.json")
    require(kind.endswith("Scheduler"), "a scheduler's configuration", "name a scheduler", shorten(kind),
            "Save the pipeline with save_pretrained, or pass scheduler=.")  # fmt: skip
    return _read(found[0], kind)


def _read(path: Path, kind: str) -> Any:
    diffusers = load("diffusers", _WHAT)
    require(hasattr(diffusers, kind), "a class", "be one of diffusers", shorten(kind), "Install a newer diffusers.")
    made: Any = getattr(diffusers, kind)
    try:
        if kind in MODELS:
            return read_whole(made, path, local_files_only=True)
        options = {} if kind.endswith("Scheduler") else {"use_safetensors": True, **whole_parts(path)}
        return made.from_pretrained(str(path), local_files_only=True, **options)
    except (MemoryError, KeyboardInterrupt, PolyscoreError):
        raise
    except Exception as error:  # of many kinds: torn JSON, torn weights, weights of other shapes
        raise _broken(path, error) from error


def whole_parts(path: Path, **options: Any) -> dict[str, Any]:
    """Return the networks of a pipeline's folder by their names, each read by itself: whole, or not at all."""
    found = {name: _network_kind(told) for name, told in _written(path / "model_index.json").items()}
    return {
        name: read_whole(kind, path / name, local_files_only=True, **options)
        for name, kind in found.items()
        if kind is not None
    }


def _network_kind(told: Any) -> Any:
    """The class of a network that a pipeline's index names; None for all else, which the pipeline reads itself."""
    library, name = told if isinstance(told, list) and len(told) == 2 else (None, None)
    if library not in ("diffusers", "transformers") or not isinstance(name, str):
        return None
    kind = getattr(importlib.import_module(library), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) and hasattr(kind, "from_pretrained") else None


def _broken(path: Path, error: Exception) -> ArgumentError:
    said = str(error).strip().split("\n")[0][:300]
    return ArgumentError(
        f"{path} must hold a whole model saved by diffusers, weights in safetensors; got {type(error).__name__}: "
        f"{said}. Save or download it again."
    )
