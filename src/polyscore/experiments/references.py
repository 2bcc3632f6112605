"""References: the points that samples are compared with, by name.

A reference is a function of a `Wanted`; `exact` draws from the exact target, and fixed points come from a file.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyscore.algebra import Composition, Family
from polyscore.errors import ArgumentError, require, shorten
from polyscore.experiments.sources import Source, family_of
from polyscore.registry import Registry
from polyscore.targets import Target, exact

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
        if path.suffix.lower() == ".csv":
            found = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
        else:
            with np.load(path, allow_pickle=False) as file:
                found = file["samples"]
        points = np.ascontiguousarray(found, "<f4")
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ArgumentError(
            f"a reference must be a readable .npz with `samples`, or a .csv of numbers; got {shorten(str(path))} "
            f"({shorten(str(error), 100)}). Write one with `run.save`."
        ) from error
    good = points.ndim >= 2 and len(points) >= 2 and bool(np.isfinite(points).all())
    require(good, "a reference", "hold two finite points or more", f"shape {points.shape} in {path.name}")
    return Points(points.tobytes(), points.shape, hashlib.sha256(points.tobytes()).hexdigest()[:16])
