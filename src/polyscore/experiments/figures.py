"""Figures of the report: SW2 against K, the sample grid of a setting, and the paper's Figure 1."""

from __future__ import annotations

import itertools
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from polyscore import plots
from polyscore.algebra import Family, base_composition
from polyscore.errors import DegeneracyWarning
from polyscore.experiments import samples
from polyscore.experiments.cells import ANALYTIC, Cell, Experiment
from polyscore.experiments.compute import reference_of
from polyscore.experiments.store import Store
from polyscore.experiments.tables import SYMBOLS, Entry, Table
from polyscore.files.atomic import printable
from polyscore.paper.settings import setting
from polyscore.samplers import FeynmanKac
from polyscore.targets import exact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 84  # twenty pictures in one file: enough for a screen, and below a megabyte together
FIGURE_ONE = "gaussian-factorized-ood"
_CONDITIONS, _CORRECTED, _POINTS = ("a1", "a2", "base"), 16, 1500
_COLOURS = (plots.PINK, plots.ORANGE, plots.BLUE, plots.GREEN, "#7a5195", "#8c6d31", "#222222")


def against_particles(path: Path | str, tables: Sequence[Table]) -> None:
    """Save SW2 (or another metric) against K, one panel a table: lines are ours, open marks the published values."""
    widths = [3.6] * min(2, len(tables))
    rows = -(-len(tables) // len(widths))
    with plots.Panels(path, widths, 3.1 * rows, rows=rows, dpi=_DPI) as (figure, axes):
        for axis, table in zip(axes, tables, strict=False):
            _curves(axis, table)
        for axis in axes[len(tables) :]:
            axis.set_visible(False)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1 + len(widths))


def _curves(axis: Axes, table: Table) -> None:
    from matplotlib.ticker import LogLocator

    for index, (size, colour) in enumerate(zip(table.columns, itertools.cycle(_COLOURS), strict=False)):
        column = [row[index] for row in table.rows.values()]
        label = f"N = {size}" if size else "analytic"
        _curve(axis, column, colour, label, 1 + 0.04 * (index - 1.5))
    axis.plot([], [], "D", mfc="none", color="#222222", ms=5, label="published ± std")
    axis.set(xscale="log", yscale="log", xlabel="K")
    axis.set_title(textwrap.fill(printable(table.title), 44) + f"\n{table.models} models", parse_math=False)
    axis.set_ylabel(SYMBOLS[table.metric])
    axis.set_xticks(list(table.rows), [str(k) for k in table.rows])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")


def _curve(axis: Axes, column: list[Entry], colour: str, label: str, shift: float) -> None:
    """One column of a table, moved sideways by `shift` so that error bars do not hide each other."""
    done = [entry for entry in column if entry.mean is not None and entry.mean > 0]
    if done:
        x, y = [e.particles * shift for e in done], [e.mean or 0.0 for e in done]
        axis.errorbar(x, y, yerr=[e.std or 0.0 for e in done], color=colour, marker="o", ms=3.5, lw=1.3, capsize=2,
                      label=label)  # fmt: skip
    else:
        axis.plot([], [], color=colour, label=label)
    known = [(e.particles * shift * 1.06, *e.published) for e in column if e.published and e.published.mean > 0]
    for x_at, mean, std in known:
        axis.errorbar([x_at], [mean], yerr=[std], color=colour, marker="D", mfc="none", ms=5, lw=0.7)


def sample_grid(path: Path | str, experiment: Experiment, store: Store) -> bool:
    """Save the grid of samples of run 0, train sizes down and K across, from the store; False where it has none."""
    sizes, counts = (
        [*sorted(experiment.train_sizes), *([0] if experiment.analytic else [])],
        sorted(experiment.particles),
    )
    points = {(size, k): _thumbnail(experiment, store, size, k) for size in sizes for k in counts}
    if not any(value is not None for value in points.values()):
        return False
    example = Cell(experiment.setting, ANALYTIC, 0, 0, 1)
    target = reference_of(example, experiment.protocol)[: samples.POINTS]
    _grid(path, points, target, sizes, counts)
    return True


def _thumbnail(experiment: Experiment, store: Store, size: int, particles: int) -> Tensor | None:
    kind = experiment.models if size else ANALYTIC
    return samples.load(store, Cell(experiment.setting, kind, size, 0, particles), experiment.protocol)


def _grid(
    path: Path | str, points: dict[tuple[int, int], Tensor | None], target: Tensor, sizes: list[int], counts: list[int]
) -> None:
    reach = 1.3 * plots.reach_of(target)
    columns = len(counts) + 1
    with plots.Panels(path, [1.7] * columns, 1.8 * len(sizes), rows=len(sizes), dpi=_DPI) as (_, axes):
        for i, size in enumerate(sizes):
            row = axes[i * columns : (i + 1) * columns]
            for axis, k in zip(row, counts, strict=False):
                _panel(axis, points[size, k], plots.BLUE, reach, f"K = {k}" if i == 0 else "")
            _panel(row[-1], target, plots.GREEN, reach, "exact" if i == 0 else "")
            row[0].set_ylabel(f"N = {size}" if size else "analytic")


def _panel(axis: Axes, values: Tensor | None, colour: str, reach: float, title: str) -> None:
    if values is None:
        axis.text(0.5, 0.5, "–", transform=axis.transAxes, ha="center", va="center")
    else:
        plots.scatter_panel(axis, values, colour, reach)
    axis.set(xticks=[], yticks=[], xlabel="", ylabel="", title=title, xlim=(-reach, reach), ylim=(-reach, reach))
    axis.set_aspect("equal")


class Row(NamedTuple):
    """One row of Figure 1: points of the three conditions, of both compositions, and where they come from."""

    label: str
    origin: str
    sources: list[Tensor]
    composed: list[Tensor]


def figure_one(path: Path | str, learned: Row | None = None, steps: int = 200) -> None:
    """Save the paper's Figure 1: individual distributions and their composition, analytic and learned."""
    rows = [_analytic_row(steps), *([learned] if learned else [])]
    exactly = exact(base_composition(setting(FIGURE_ONE))).sample(_POINTS, 1)
    reach = 1.05 * plots.reach_of(torch.cat([*rows[0].sources, exactly]))
    level = torch.quantile(exactly.norm(dim=-1), 0.95).item()
    count = min(len(points) for row in rows for points in (*row.sources, *row.composed))  # equal: densities compare
    titles = ["individual", "naive (K = 1)", f"Feynman–Kac (K = {_CORRECTED})", "exact composition"]
    with plots.Panels(path, [2.7] * 4, 2.8 * len(rows), rows=len(rows), dpi=_DPI) as (_, axes):
        for i, row in enumerate(rows):
            panels = axes[4 * i : 4 * i + 4]
            colours = (plots.BLUE, plots.ORANGE, plots.GREY)
            for source, colour, points in zip(("$a_1$", "$a_2$", "base"), colours, row.sources, strict=True):
                plots.scatter_panel(panels[0], points[:count], colour, reach)
                panels[0].scatter([], [], color=colour, s=14, label=source)
            panels[0].legend(loc="upper right", handletextpad=0.1, borderaxespad=0.1)
            shown = zip(panels[1:], (*row.composed, exactly), (plots.PINK, plots.BLUE, plots.GREEN), strict=True)
            for axis, points, colour in shown:
                plots.scatter_panel(axis, points[:count], colour, reach)
                plots.circle(axis, level)
            for axis, title in zip(panels, titles, strict=True):
                axis.set(xlabel="", ylabel="", title=title if i == 0 else "")
            panels[0].set_ylabel(row.label)


def _analytic_row(steps: int) -> Row:
    family = setting(FIGURE_ONE)
    sources = [family[name].distribution(name).sample(_POINTS, 1) for name in _CONDITIONS]
    return Row("analytic", "analytic scores", sources, _composed(family, steps))


def sampled_row(family: Family, steps: int = 200) -> Row:
    """Return the learned row, sampled now from `family`."""
    sampler = FeynmanKac.published(1, steps)
    sources = [sampler.sample(family[name], _POINTS, 1).samples.cpu() for name in _CONDITIONS]
    return Row("learned", "learned scores", sources, _composed(family, steps))


def stored_row(experiments: Sequence[Experiment], store: Store) -> Row | None:
    """Return the learned row from the samples that a store keeps of run 0, or None where it lacks one."""
    for e in experiments:
        if e.setting != FIGURE_ONE or e.models != "conditional" or not e.train_sizes:
            continue
        size = max(e.train_sizes)
        cells = [Cell(e.setting, e.models, size, 0, 1, name) for name in _CONDITIONS]
        cells += [Cell(e.setting, e.models, size, 0, k) for k in (1, _CORRECTED)]
        points = [found for cell in cells if (found := samples.load(store, cell, e.protocol)) is not None]
        if len(points) == len(cells):
            return Row(f"learned, N = {size}", f"run 0 learned from {size} points each", points[:3], points[3:])
    return None


def _composed(family: Family, steps: int) -> list[Tensor]:
    q = base_composition(family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)
        return [FeynmanKac.published(k, steps).sample(q, _POINTS, 1).samples.cpu() for k in (1, _CORRECTED)]
