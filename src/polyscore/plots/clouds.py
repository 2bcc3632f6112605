"""What can be drawn: runs, arrays, and whatever can be sampled, as points with the names of their coordinates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import ArgumentError, require, shorten
from polyscore.plots.style import plain


@dataclass(frozen=True)
class Cloud:
    """Points `(n, d)` with the names of their coordinates, if they have any."""

    points: Tensor
    names: tuple[str, ...]


def cloud_of(source: Any, count: int = 5000) -> Cloud:
    """Return what can be drawn of a run, an array, or anything that can be sampled; far from finite points aside."""
    names = tuple(getattr(source, "variables", ()))
    if hasattr(source, "samples"):
        source = source.samples
    elif callable(getattr(source, "log_prob", None)):
        source = source.sample(count, seed=0)
    try:
        points = torch.as_tensor(source).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"what is drawn must be a run, points (n, d) or a distribution; got {type(source).__name__}. "
            "Of a composition q draw ps.auto(q).sample(q, 2000), or ps.exact(q)."
        ) from error
    require(points.ndim >= 2 and points.numel(), "points", "be a matrix (n, d)", f"shape {tuple(points.shape)}",
            "Reshape a vector with points[:, None].")  # fmt: skip
    flat = points.flatten(1)
    finite = flat[flat.isfinite().all(1)]
    require(len(finite), "points", "be finite", "none that are", "Look at why none is: run.summary() may say.")
    return Cloud(finite, names)


def coordinates(
    clouds: Mapping[str, Cloud], variables: Sequence[str | int] | None, most: int
) -> tuple[list[int], list[str], str]:
    """Return which coordinates to show, their labels, and what is said where there are more."""
    dims = {name: cloud.points.shape[1] for name, cloud in clouds.items()}
    require(len(set(dims.values())) == 1, "all points", "have one dimension", dims,
            "Draw points of the same variables.")  # fmt: skip
    dim = next(iter(dims.values()))
    names = next((cloud.names for cloud in clouds.values() if cloud.names), tuple(f"x{k + 1}" for k in range(dim)))
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
