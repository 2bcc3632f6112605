"""Figures of a report: a metric against K or by sampler, and the grid of samples of an experiment."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from polyscore import plots
from polyscore.experiments.compute import reference_of
from polyscore.experiments.experiment import Column, Experiment, Row
from polyscore.experiments.formats import heading, stub
from polyscore.experiments.store import Store
from polyscore.experiments.tables import Entry, ResultTable, symbol, table_of
from polyscore.experiments.thumbnails import POINTS, points_of
from polyscore.files.atomic import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 84  # twenty pictures in one file: enough for a screen, and below a megabyte together
_COLOURS = (plots.PINK, plots.ORANGE, plots.BLUE, plots.GREEN, "#7a5195", "#8c6d31", "#222222")

Marks = Callable[["Axes", list[Any], str, list[float]], None]


def curves(
    path: Path | str, tables: Sequence[ResultTable[Any]], title: Callable[[ResultTable[Any]], str] | None = None,
    marks: Marks | None = None, mark: str = "",
) -> None:  # fmt: skip
    """Save a metric against K, or by sampler, one panel a table.

    Args:
        title: of a table; its own by default.
        marks: draws more into a column's curve: (axis, entries, colour, places).
        mark: the legend's word for them.
    """
    widths = [3.6] * min(2, len(tables))
    rows = -(-len(tables) // len(widths))
    colours = colours_of(tables)
    with plots.Panels(path, widths, 3.1 * rows, rows=rows, dpi=DPI) as (figure, axes):
        for axis, table in zip(axes, tables, strict=False):
            _panel_of(axis, table, colours, marks)
            axis.set_title(title(table) if title else _wrapped(table.title), parse_math=False)
            if mark:
                axis.plot([], [], "D", mfc="none", color="#222222", ms=5, label=mark)
        for axis in axes[len(tables) :]:
            axis.set_visible(False)
        shown = (pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True))
        handles, labels = {label: handle for handle, label in shown}, [*colours, *([mark] if mark else [])]
        figure.legend([handles[label] for label in labels], labels, loc="outside lower center", ncols=1 + len(widths))


def colours_of(tables: Sequence[ResultTable[Any]]) -> dict[str, str]:
    """Return one colour for each heading of a figure's tables: a model has the same in every panel."""
    labels = dict.fromkeys(_label(column, table) for table in tables for column in table.columns)
    return dict(zip(labels, itertools.cycle(_COLOURS), strict=False))


def _label(column: Column, table: ResultTable[Any]) -> str:
    return printable(heading(column, table))


def _wrapped(text: str, width: int = 32) -> str:
    return textwrap.fill(printable(text), width)


def _panel_of(axis: Axes, table: ResultTable[Any], colours: dict[str, str], marks: Marks | None) -> None:
    places = list(range(1, 1 + len(table.rows))) if table.has_samplers else [float(row) for row in table.rows]
    for index, column in enumerate(table.columns):
        entries, shift = [row[index] for row in table.rows.values()], 1 + 0.04 * (index - 1.5)
        at = [place + shift - 1 if table.has_samplers else place * shift for place in places]
        label = _label(column, table)
        _curve(axis, entries, colours[label], label, at, "none" if table.has_samplers else "-")
        if marks:
            marks(axis, entries, colours[label], [1.06 * place for place in at])
    axis.set_xscale("linear" if table.has_samplers else "log")
    axis.set_xlabel("" if table.has_samplers else "K")
    if table.has_samplers:
        axis.set_xlim(0.5, len(places) + 0.5)
    axis.set_ylabel(printable(symbol(table.metric)), parse_math=False)
    axis.set_xticks(places, [printable(stub(row, table), 20) for row in table.rows])
    _scale(axis, [entry.mean for entry in table.entries if entry.mean is not None])
    axis.minorticks_off()


def _scale(axis: Axes, means: list[float]) -> None:
    """Choose the vertical scale: logarithmic where all means are positive, linear around 0 where they reach it.

    An unbiased estimate of a small distance is negative half of the time: what is negative says how large its noise is.
    """
    if not any(means):
        return
    if min(means) > 0:
        axis.set_yscale("log")
        _tick(axis)
    else:
        axis.set_yscale("symlog", linthresh=-min(means) or min(mean for mean in means if mean))
        axis.axhline(0, color=plots.GREY, lw=0.6)
    axis.yaxis.set_major_formatter("{x:g}")


def _tick(axis: Axes) -> None:
    """Mark 1, 2 and 5 of each decade, or equal steps where the range is too short to show two of those."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    ticks, (low, high) = LogLocator(subs=(1, 2, 5)), axis.get_ylim()
    shown = [tick for tick in ticks.tick_values(low, high) if low <= tick <= high]
    axis.yaxis.set_major_locator(ticks if len(shown) > 1 else MaxNLocator(4))


def _curve(axis: Axes, column: list[Entry], colour: str, label: str, places: list[float], line: str) -> None:
    """One column of a table, moved sideways so that error bars do not hide each other; samplers are not joined."""
    done = [(x, entry) for x, entry in zip(places, column, strict=True) if entry.mean is not None]
    if done:
        x, y = [at for at, _ in done], [entry.mean or 0.0 for _, entry in done]
        axis.errorbar(x, y, yerr=[entry.std or 0.0 for _, entry in done], color=colour, marker="o", ms=3.5, lw=1.3,
                      ls=line, capsize=2, label=label)  # fmt: skip
    else:
        axis.plot([], [], color=colour, marker="o", ms=3.5, ls=line, label=label)


def sample_grid(path: Path | str, experiment: Experiment, store: Store) -> bool:
    """Save the grid of samples of run 0, models down and samplers across, from the store; False where it has none.

    Of one dimension a histogram, of several the first two coordinates.
    """
    places = list(itertools.product(experiment.columns, experiment.rows))
    points = {(column, row): _thumbnail(experiment, store, column, row) for column, row in places}
    if all(value is None for value in points.values()):
        return False
    example = experiment.cell(experiment.rows[0], experiment.columns[-1], 0)
    target = reference_of(example, experiment)
    _grid(path, points, None if target is None else target[:POINTS].flatten(1)[:, :2], experiment, store)
    return True


def _thumbnail(experiment: Experiment, store: Store, column: Column, row: Row) -> Tensor | None:
    cell = experiment.cell(row, column, 0)
    return points_of(store, cell, experiment.protocol_of(cell))


def _grid(
    path: Path | str, points: dict[tuple[Column, Row], Tensor | None], target: Tensor | None, experiment: Experiment,
    store: Store,
) -> None:  # fmt: skip
    shown = target if target is not None else next(value for value in points.values() if value is not None)
    reach, table = 1.3 * plots.reach_of(shown), table_of(experiment, store, experiment.metrics[0])
    across, down, known = len(table.rows) + 1, len(table.columns), "reference" if experiment.points else "exact"
    with plots.Panels(path, [1.7] * across, 1.8 * down, rows=down, dpi=DPI) as (_, axes):
        for i, column in enumerate(table.columns):
            panels = axes[i * across : (i + 1) * across]
            for axis, row in zip(panels, table.rows, strict=False):
                title = f"K = {row}" if isinstance(row, int) else _wrapped(row[:45], 15)
                _panel(axis, points[column, row], plots.BLUE, reach, title if i == 0 else "")
            _panel(panels[-1], target, plots.GREEN, reach, known if i == 0 else "")
            panels[0].set_ylabel(_wrapped(heading(column, table)[:60], 20), parse_math=False)


def _panel(axis: Axes, values: Tensor | None, colour: str, reach: float, title: str) -> None:
    if values is None:
        axis.text(0.5, 0.5, "–", transform=axis.transAxes, ha="center", va="center")
    else:
        plots.scatter_panel(axis, values, colour, reach)
    axis.set(xticks=[], yticks=[], xlabel="", ylabel="", xlim=(-reach, reach))
    axis.set_title(title, parse_math=False)
    if values is None or values.shape[1] == 2:
        axis.set(ylim=(-reach, reach), aspect="equal")
