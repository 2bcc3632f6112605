"""Tensors with a description, in one safetensors file: no pickle, written atomically."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import PolyscoreError
from polyscore.files import write_bytes


class FileError(PolyscoreError):
    """A model file that is damaged, foreign, or of another version."""


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write one safetensors file with a JSON description in its header."""
    from safetensors.torch import save as to_bytes

    # Copies: tensors that share memory would be refused.
    packed = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    described = json.dumps({**about, "sum": _digest(packed)})  # one entry: several would be written in any order
    write_bytes(path, to_bytes(packed, metadata={"polyscore": described}))


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
        raise FileError(
            f"{path} must be a whole safetensors file; it is damaged or foreign ({error}). Use a copy, or train again."
        ) from error
    if not isinstance(about, dict):
        raise FileError(f"{path} must be written by polyscore; it is another program's. Wrap that model in ps.Learned.")
    if about.pop("sum", None) != _digest(tensors):
        raise FileError(f"{path} must hold the numbers that were written; it is damaged. Use a copy, or train again.")
    return tensors, about


def _digest(tensors: dict[str, Tensor]) -> str:
    """A hash of all numbers: a flipped bit would otherwise load as a slightly different model."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
