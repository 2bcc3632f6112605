"""References: the points that samples are compared with, by name.

A reference is a function of a `Wanted`; `exact` draws from the exact target, and fixed points come from a file.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from polyscore.algebra import Composition, Family
from polyscore.errors import ArgumentError, require, shorten
from polyscore.experiments.sources import Source, family_of
from polyscore.files.regular import open_regular
from polyscore.registry import Registry
from polyscore.targets import Target, exact

_LARGEST = 10**9  # bytes of a file of points
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, NotImplementedError, RuntimeError,
               zipfile.BadZipFile, zlib.error)  # fmt: skip
Exponents = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Wanted:
    """What a reference is drawn for.

    Attributes:
        family: the family's name.
        exponents: of the composition, in order.
        alone: whether it is one condition by itself.
        count: points.
        run_seed: shared by the cells of a run.
        seed: of this cell alone.
    """

    family: str
    source: Source
    exponents: Exponents
    alone: bool
    count: int
    run_seed: int
    seed: int


Reference = Callable[[Wanted], Tensor]
REFERENCES: Registry[Reference] = Registry("a reference")


def composed(family: Family, exponents: Exponents) -> Composition:
    """Return the composition of exponents."""
    return Composition(family, dict(exponents))


@lru_cache(maxsize=16)
def target_of(source: Source, exponents: Exponents, method: str | None = None) -> Target:
    """Return the exact target: a grid costs a second, and serves every run."""
    return exact(composed(family_of(source), exponents), method)


@REFERENCES.register("exact")
def exact_points(wanted: Wanted) -> Tensor:
    """Return draws from the exact target, of the cell's own seed."""
    return target_of(wanted.source, wanted.exponents).sample(wanted.count, wanted.seed)


@dataclass(frozen=True)
class Points:
    """Points `(n, *event)` that travel and compare as bytes, for families whose exact target nobody knows."""

    data: bytes
    shape: tuple[int, ...]
    digest: str

    def tensor(self) -> Tensor:
        """Return the points in float32."""
        return torch.from_numpy(np.frombuffer(self.data, "<f4").reshape(self.shape).copy())


def read_points(path: Path) -> Points:
    """Return the points of a file as `run.save` writes it: `samples` of an .npz, or rows of a .csv below its head."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            points = np.ascontiguousarray(_rows(file, path.suffix.lower() == ".csv"), "<f4")
    except _UNREADABLE as error:
        raise ArgumentError(
            f"a reference must be a readable .npz with `samples`, or a .csv of numbers; got {shorten(str(path))} "
            f"({shorten(str(error), 100)}). Write one with `run.save`."
        ) from error
    good = points.ndim >= 2 and len(points) >= 2 and bool(np.isfinite(points).all())
    require(good, "a reference", "hold two finite points or more", f"shape {points.shape} in {path.name}",
            "Write another, or delete the file to draw it again.")  # fmt: skip
    return Points(points.tobytes(), points.shape, hashlib.sha256(points.tobytes()).hexdigest()[:16])


def _rows(file: BinaryIO, csv: bool) -> np.ndarray:
    """Return the points of an open file; `ValueError` where it is, or holds, more than a bound."""
    _check_size(os.fstat(file.fileno()).st_size)
    if csv:
        return np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    with zipfile.ZipFile(file) as archive:
        _check_size(archive.getinfo("samples.npy").file_size)
    file.seek(0)
    return np.load(file, allow_pickle=False)["samples"]


def _check_size(size: int) -> None:
    if size > _LARGEST:
        raise ValueError(f"larger than {_LARGEST // 10**6} MB")
