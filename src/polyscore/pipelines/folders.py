"""Models from folders that diffusers saved them to. Only weights in safetensors are read: others can hold programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyscore.errors import ArgumentError, require, shorten
from polyscore.extras import load

_WHAT = "a folder's model"
_MODELS = ("UNet2DModel", "UNet2DConditionModel", "FluxTransformer2DModel")
_LAYERS = ("layers_per_block", "transformer_layers_per_block", "num_layers", "num_single_layers", "num_hidden_layers")
_MOST_LAYERS = 1000  # of any kind; the largest models have some sixty, and each takes time to be made


def read_folder(path: Path, scheduler: Any) -> tuple[Any, Any]:
    """Return the model or pipeline of a folder, and its scheduler where it is a model's; `scheduler` where given."""
    require(path.is_dir(), "model", "be a folder that exists", path,
            "Download a model first: diffusers' from_pretrained(name), then save_pretrained(folder).")  # fmt: skip
    load("diffusers", _WHAT)
    for file in [path / "config.json", *sorted(path.glob("*/config.json"))]:
        if file.is_file():
            _require_few_layers(file)
    if (path / "model_index.json").is_file():
        return _read(path, "DiffusionPipeline"), scheduler
    require((path / "config.json").is_file(), "a model's folder", "hold config.json or model_index.json", path,
            "Save it by save_pretrained(folder).")  # fmt: skip
    kind = _kind(path / "config.json")
    require(kind in _MODELS, "a model's folder", f"hold one of {', '.join(_MODELS)}", shorten(kind),
            "Save the model with save_pretrained, or pass the loaded model itself.")  # fmt: skip
    return _read(path, kind), scheduler or _scheduler(path)


def _require_few_layers(file: Path) -> None:
    """Refuse a network that would be made for hours before its weights are found not to fit."""
    written = _written(file)
    for name in _LAYERS:
        told = written.get(name)
        for count in told if isinstance(told, list) else [told]:
            require(not isinstance(count, (int, float)) or count <= _MOST_LAYERS, f"{name} of {file}",
                    f"be at most {_MOST_LAYERS}", shorten(count), "Take the folder as it was published.")  # fmt: skip


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
    options = {} if kind.endswith("Scheduler") else {"use_safetensors": True}
    try:
        return getattr(diffusers, kind).from_pretrained(str(path), local_files_only=True, **options)
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # of many kinds: torn JSON, torn weights, weights of other shapes
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> ArgumentError:
    said = str(error).strip().split("\n")[0][:300]
    return ArgumentError(
        f"{path} must hold a whole model saved by diffusers, weights in safetensors; got {type(error).__name__}: "
        f"{said}. Save or download it again."
    )
