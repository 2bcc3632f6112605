"""Figures of the paper's report: a metric against K with the published values, and its Figure 1."""

from __future__ import annotations

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
from polyscore.experiments.experiment import Column, Experiment
from polyscore.experiments.figures import DPI, curves
from polyscore.experiments.store import Store
from polyscore.experiments.thumbnails import points_of
from polyscore.files.atomic import printable
from polyscore.paper.settings import setting
from polyscore.paper.tables import Compared, PaperTable, title_of
from polyscore.samplers import FeynmanKac
from polyscore.targets import exact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE_ONE = "gaussian-factorized-ood"
_CONDITIONS, _CORRECTED, _POINTS = ("a1", "a2", "base"), 16, 1500


def against_particles(path: Path | str, tables: Sequence[PaperTable]) -> None:
    """Save SW2 (or another metric) against K, one panel a table: lines are ours, open marks the published values."""
    curves(path, tables, _title, _published, "published ± std")


def _title(table: PaperTable) -> str:
    return textwrap.fill(printable(title_of(table)), 32) + f"\n{table.models} models"


def _published(axis: Axes, column: list[Compared], colour: str, places: list[float]) -> None:
    for place, entry in zip(places, column, strict=True):
        if entry.published and entry.published.mean > 0:
            mean, std = entry.published
            axis.errorbar([place], [mean], yerr=[std], color=colour, marker="D", mfc="none", ms=5, lw=0.7)


class Strip(NamedTuple):
    """One row of panels of Figure 1: points of the three conditions, of both compositions, and where they come from."""

    label: str
    origin: str
    sources: list[Tensor]
    composed: list[Tensor]


def figure_one(path: Path | str, learned: Strip | None = None, steps: int = 200) -> None:
    """Save the paper's Figure 1: individual distributions and their composition, analytic and learned."""
    rows = [_analytic_row(steps), *([learned] if learned else [])]
    exactly = exact(base_composition(setting(FIGURE_ONE))).sample(_POINTS, 1)
    reach = 1.05 * plots.reach_of(torch.cat([*rows[0].sources, exactly]))
    level = torch.quantile(exactly.norm(dim=-1), 0.95).item()
    count = min(len(points) for row in rows for points in (*row.sources, *row.composed))  # equal: densities compare
    titles = ["individual", "naive (K = 1)", f"Feynman–Kac (K = {_CORRECTED})", "exact composition"]
    with plots.Panels(path, [2.7] * 4, 2.8 * len(rows), rows=len(rows), dpi=DPI) as (_, axes):
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


def _analytic_row(steps: int) -> Strip:
    family = setting(FIGURE_ONE)
    sources = [family[name].distribution(name).sample(_POINTS, 1) for name in _CONDITIONS]
    return Strip("analytic", "analytic scores", sources, _composed(family, steps))


def sampled_row(family: Family, steps: int = 200) -> Strip:
    """Return the learned row, sampled now from `family`."""
    sampler = FeynmanKac.published(1, steps)
    sources = [sampler.sample(family[name], _POINTS, 1).samples.cpu() for name in _CONDITIONS]
    return Strip("learned", "learned scores", sources, _composed(family, steps))


def stored_row(experiments: Sequence[Experiment], store: Store) -> Strip | None:
    """Return the learned row from the samples that a store keeps of run 0, or None where it lacks one."""
    for e in experiments:
        papers = e.family == FIGURE_ONE and e.expression is None
        if not papers or "conditional" not in e.learned or not e.train_sizes:
            continue
        size = max(e.train_sizes)
        column = Column("conditional", size)
        cells = [e.cell(1, column, 0, name) for name in _CONDITIONS]
        cells += [e.cell(k, column, 0) for k in (1, _CORRECTED)]
        points = [found for cell in cells if (found := points_of(store, cell, e.protocol_of(cell))) is not None]
        if len(points) == len(cells):
            return Strip(f"learned, N = {size}", f"run 0 learned from {size} points each", points[:3], points[3:])
    return None


def _composed(family: Family, steps: int) -> list[Tensor]:
    q = base_composition(family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)
        return [FeynmanKac.published(k, steps).sample(q, _POINTS, 1).samples.cpu() for k in (1, _CORRECTED)]
