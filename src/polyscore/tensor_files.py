"""Tensors with a description, in one safetensors file: no pickle, written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from polyscore.errors import PolyscoreError
from polyscore.files import write_bytes


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
