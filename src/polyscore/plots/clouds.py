"""What can be drawn: runs, arrays, DataFrames, whatever can be sampled, as points with the names of coordinates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.data.frames import is_frame, numbers_of
from polyscore.errors import ArgumentError, listed, require, shorten
from polyscore.plots.style import plain


@dataclass(frozen=True)
class Cloud:
    """Points `(n, d)` with the names of their coordinates, if they have any."""

    points: Tensor
    names: tuple[str, ...]
    is_table: bool = False


def cloud_of(source: Any, count: int = 5000) -> Cloud:
    """Return what can be drawn of a run, an array, or anything that can be sampled; far from finite points aside."""
    names = tuple(getattr(source, "variables", ()))
    if is_table := is_frame(source):
        names, source = numbers_of(source)
    elif hasattr(source, "samples"):
        source = source.samples
    elif callable(getattr(source, "log_prob", None)):
        source = source.sample(count, seed=0)
    try:
        array = np.require(source, requirements=["C", "W"]) if isinstance(source, np.ndarray) else source
        points = torch.as_tensor(array).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"what is drawn must be a run, points (n, d), a DataFrame or a distribution; got {type(source).__name__}. "
            "Of a composition q draw ps.auto(q).sample(q, 2000), or ps.exact(q)."
        ) from error
    require(points.ndim >= 2 and points.numel(), "points", "be a matrix (n, d)", f"shape {tuple(points.shape)}",
            "Reshape a vector with points[:, None].")  # fmt: skip
    flat = points.flatten(1)
    finite = flat[flat.isfinite().all(1)]
    require(len(finite), "points", "be finite", "none that are", "Look at why none is: run.summary() may say.")
    return Cloud(finite, names, is_table)


def matched(clouds: Mapping[str, Cloud]) -> dict[str, Cloud]:
    """Return the clouds, tables by their columns' names: one may hold more than a run, and in another order."""
    named = sorted((cloud for cloud in clouds.values() if cloud.names), key=lambda cloud: cloud.is_table)
    names = named[0].names if named else ()
    return {title: _by_name(cloud, names) if cloud.is_table else cloud for title, cloud in clouds.items()}


def _by_name(table: Cloud, names: tuple[str, ...]) -> Cloud:
    """A table's columns of these names; all of them as they stand where nobody named the variables."""
    missing = [name for name in names if name not in table.names]
    if missing and names == numbered(len(names)):
        return table
    require(not missing, "a table that is drawn", f"have the columns {listed(names, 12, str)}",
            listed(table.names, 12, str), "Rename its columns, or pass its values.")  # fmt: skip
    return Cloud(table.points[:, [table.names.index(name) for name in names]], names)


def numbered(dim: int) -> tuple[str, ...]:
    """Return what variables are called that nobody named."""
    return tuple(f"x{k + 1}" for k in range(dim))


def coordinates(
    clouds: Mapping[str, Cloud], variables: Sequence[str | int] | None, most: int
) -> tuple[list[int], list[str], str]:
    """Return which coordinates to show, their labels, and what is said where there are more."""
    dims = {name: cloud.points.shape[1] for name, cloud in clouds.items()}
    require(len(set(dims.values())) == 1, "all points", "have one dimension", dims,
            "Draw points of the same variables.")  # fmt: skip
    dim = next(iter(dims.values()))
    names = next((cloud.names for cloud in clouds.values() if cloud.names), numbered(dim))
    if variables is None:
        chosen = list(range(min(dim, most)))
        note = f"the first {most} of {dim} variables" if dim > most else ""
    else:
        chosen, note = indices(variables, names, dim, most), ""
    return chosen, [plain(names[k]) for k in chosen], note


def indices(variables: Sequence[str | int], names: tuple[str, ...], dim: int, most: int) -> list[int]:
    """Return the places of the variables that are asked for, by name or number."""
    good = isinstance(variables, Collection) and not isinstance(variables, str) and 1 <= len(variables) <= most
    require(good, "variables",
            f"be 1 to {most} names or numbers", shorten(variables, 100), "Name fewer, or one.")  # fmt: skip
    return [_index(variable, names, dim) for variable in variables]


def _index(variable: str | int, names: tuple[str, ...], dim: int) -> int:
    index = names.index(variable) if variable in names else variable
    good = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < dim
    require(good, "a variable", f"be one of {', '.join(names[:12])}, or a number below {dim}", shorten(variable, 100),
            "Choose one of these.")  # fmt: skip
    return int(index)
