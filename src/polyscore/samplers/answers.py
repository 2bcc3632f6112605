"""What parts of samplers answer, checked once a run: a part of a user's may answer anything, and tensors broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import require, shorten
from polyscore.samplers.grids import TimeGrid

_APART = 1e-3  # that lengths may differ from those of the times in all; clamped ends do by 1e-5


def called(what: str, part: Any) -> str:
    """Return what to call a part in a message: its registered name, else that of the function or class."""
    name = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
    return f"the {what} {name!r}"


def checked_grid(subject: str, grid: Any) -> TimeGrid:
    """Return a grid whose times fall within [0, 1], with the lengths between them."""
    form = isinstance(grid, TimeGrid) and _is_column(grid.times, None) and _is_column(grid.lengths, len(grid.times) - 1)
    require(form and len(grid.lengths), subject, "return a TimeGrid of times (steps + 1,) and lengths (steps,), floats",
            _form(grid), "Write TimeGrid(times, times[:-1] - times[1:]).")  # fmt: skip
    times, lengths = grid.times, grid.lengths
    inside = bool(times.isfinite().all()) and times.min().item() >= 0 and times.max().item() <= 1
    if not inside:  # to show what is right would take longer than to look at it
        require(False, subject, "have finite times in [0, 1]", shorten(times.tolist()),
                "Go from 1 or less to 0 or more.")  # fmt: skip
    falling = bool((times.diff() <= 1e-12).all()) and times[0].item() > times[-1].item()
    if not falling:
        require(False, subject, "have times that fall, from noise to data", shorten(times.tolist()), "Reverse them.")
    apart = (lengths + times.diff()).abs()
    # A grid that goes to the data in all but name counts its clamped ends as whole steps.
    apart = apart[1:-1] if grid.to_data else apart
    good = bool((lengths >= 0).all()) and apart.sum().item() <= _APART
    if not good:
        require(False, subject, "have the lengths between its times", shorten(lengths.tolist()),
                "Write TimeGrid(times, times[:-1] - times[1:]).")  # fmt: skip
    return grid


def check_columns(subject: str, table: Any, names: Sequence[str], length: int, least: Sequence[str] = ()) -> None:
    """Check that a table has these columns, finite numbers `(length,)` each, at least 0 those named in `least`."""
    good = isinstance(table, tuple) and len(table) == len(names) and all(_is_column(c, length) for c in table)
    require(good, subject, f"be {len(names)} columns ({length},) of floats: {', '.join(names)}", _form(table),
            "Return them as a tuple of tensors, in that order.")  # fmt: skip
    finite = torch.stack(table).isfinite().all(1).tolist()
    for name, column, sound in zip(names, table, finite, strict=True):
        if not sound:
            require(False, f"{name} in {subject}", "be finite", shorten(column.tolist()),
                    "Look at the times where it is not.")  # fmt: skip
        if name in least and column.min().item() < 0:
            require(False, f"{name} in {subject}", "be at least 0", shorten(column.tolist()),
                    "Look at the times where it is not.")  # fmt: skip


def _is_column(value: Any, length: int | None) -> bool:
    shaped = isinstance(value, Tensor) and value.ndim == 1 and torch.is_floating_point(value)
    return shaped and (length is None or len(value) == length)


def _form(value: Any) -> str:
    """A value by its type, a tuple by those of its parts, a tensor by its shape."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"({', '.join(map(_form, value[:8]))})" if isinstance(value, tuple) else type(value).__name__
