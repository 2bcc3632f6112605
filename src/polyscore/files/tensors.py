"""Tensors with a description, in one safetensors file: no pickle, written atomically.

A checksum covers all that means something: the description, and every tensor's name, type, shape and numbers. Files of
0.2.0, whose sum covers names and numbers only, are still read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import PolyscoreError
from polyscore.files.atomic import write_bytes


class FileError(PolyscoreError):
    """A model file that is damaged, foreign, or of another version."""


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write one safetensors file with a JSON description in its header."""
    from safetensors.torch import save as to_bytes

    # Copies: tensors that share memory would be refused.
    packed = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    described = json.dumps({**about, "sum": _seal(packed, about)})  # one entry: several would be in any order
    write_bytes(path, to_bytes(packed, metadata={"polyscore": described}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote, or say what is wrong with the file."""
    from safetensors import SafetensorError, safe_open

    if not _is_file(path):
        raise FileError(f"a model file must exist; got {str(path)[:300]}. Check the path.")
    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("polyscore", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise FileError(
            f"{path} must be a whole safetensors file; it is damaged or foreign ({str(error)[:200]}). Use a copy, or "
            "train again."
        ) from error
    if not isinstance(about, dict):
        raise FileError(f"{path} must be written by polyscore; it is another program's. Wrap that model in ps.Learned.")
    found = about.pop("sum", None)
    if found != _seal(tensors, about) and not (_is_of_0_2(about) and found == _sum_of_0_2(tensors)):
        raise FileError(f"{path} must hold what was written; it is damaged. Use a copy, or train again.")
    return tensors, about


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, a folder that may not be searched
        return False


def _seal(tensors: dict[str, Tensor], about: dict[str, Any]) -> str:
    """A hash of the description and the tensors: a flipped bit would otherwise load as a slightly different model."""
    shapes = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in sorted(tensors.items())]
    total = hashlib.sha256(json.dumps([about, shapes]).encode())
    for name in sorted(tensors):
        total.update(_bytes(tensors[name]))
    return total.hexdigest()


def _is_of_0_2(about: dict[str, Any]) -> bool:
    """Whether a file may carry the old sum: the first version of a family, or a training."""
    return about.get("version", 1) == 1


def _sum_of_0_2(tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(_bytes(tensors[name]))
    return total.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
