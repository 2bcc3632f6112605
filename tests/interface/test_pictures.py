"""No legend, title or label leaves its picture, and the docs point at what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from polyscore import plots
from polyscore.experiments.driver import run as drive
from polyscore.experiments.experiment import Column
from polyscore.experiments.figures import curves
from polyscore.experiments.report import grids
from polyscore.experiments.spec import parse_spec
from polyscore.experiments.store import Store
from polyscore.experiments.tables import Entry, ResultTable
from polyscore.paper import figures, pictures
from polyscore.paper.tables import Compared

ROOT = Path(__file__).parents[2]
DOCS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, with the layout they were saved in."""
    found: list[Any] = []
    leave = plots.Panels.__exit__

    def kept(self: plots.Panels, kind: object, *others: object) -> None:
        leave(self, kind, *others)
        found.append(self.figure)

    monkeypatch.setattr(plots.Panels, "__exit__", kept)
    return found


def texts_outside(figure: Any) -> list[str]:
    """Return the titles, labels and legends that are, even in part, outside the figure; a pixel of slack."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())]
    shown = [text for legend in legends for text in legend.get_texts()]
    shown += [part for axis in figure.axes for part in (axis.title, axis.xaxis.label, axis.yaxis.label)]
    shown += [figure._suptitle] if figure._suptitle else []
    frame = figure.bbox.padded(1)
    boxes = {text.get_text(): text.get_window_extent(canvas.get_renderer()) for text in shown if text.get_text()}
    return [name for name, box in boxes.items() if not (frame.contains(*box.min) and frame.contains(*box.max))]


def invented(sizes: tuple[int, ...] = (100, 10_000, 0)) -> ResultTable:
    columns = tuple(Column("conditional" if size else "analytic", size) for size in sizes)
    rows = {k: [Compared(k, column, (1.0, 2.0)) for column in columns] for k in (1, 4, 16)}
    return ResultTable("gaussian-factorized-ood", "conditional", "sw2", columns, rows)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("sizes", [(100, 10_000, 0), (100, 1000, 10_000, 0)])
def test_curves_keep_their_legend(drawn: list[Any], tmp_path: Path, count: int, sizes: tuple[int, ...]) -> None:
    figures.against_particles(tmp_path / "a.png", [invented(sizes)] * count)
    (figure,) = drawn
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(sizes) + 1 and texts_outside(figure) == []


def measured(values: dict[int, dict[int, tuple[float, ...]]], label: str = "mine") -> ResultTable:
    """A table of MMD²: values by K and train size."""
    columns = tuple(Column("conditional" if size else "analytic", size) for size in next(iter(values.values())))
    rows = {k: [Entry(k, column, row[column.size]) for column in columns] for k, row in values.items()}
    return ResultTable("f", "conditional", "mmd2", columns, rows, label)


def heights(axis: Any) -> set[float]:
    return {float(y) for bars in axis.containers for y in bars.lines[0].get_ydata()}


def test_means_that_are_not_positive_are_drawn(drawn: list[Any], tmp_path: Path) -> None:
    """An unbiased MMD² of a good cell is negative half of the time: those are the cells to see."""
    curves(tmp_path / "a.png", [measured({1: {100: (0.5,), 0: (-0.01,)}, 4: {100: (0.1,), 0: (0.0,)}})])
    (axis,) = drawn[0].axes
    assert axis.get_yscale() == "symlog" and heights(axis) == {0.5, 0.1, -0.01, 0.0}
    assert axis.get_ylim()[0] < -0.01 and axis.get_ylim()[1] > 0.5


@pytest.mark.parametrize(("values", "scale"), [((1.0, 2.0), "log"), ((0.0, 0.0), "linear"), ((0.0, 2.0), "symlog")])
def test_scales_follow_the_means(drawn: list[Any], tmp_path: Path, values: tuple[float, float], scale: str) -> None:
    curves(tmp_path / "a.png", [measured({1: {0: values[:1]}, 4: {0: values[1:]}})])
    assert drawn[0].axes[0].get_yscale() == scale and heights(drawn[0].axes[0]) == set(values)


def test_a_heading_has_one_colour_in_all_panels(drawn: list[Any], tmp_path: Path) -> None:
    from matplotlib.colors import to_hex

    first = measured({1: {1000: (1.0,), 0: (2.0,)}})
    curves(tmp_path / "a.png", [first, measured({1: {100: (4.0,), 1000: (5.0,), 0: (6.0,)}})])
    shown = [(bars.get_label(), bars.lines[0].get_color()) for axis in drawn[0].axes for bars in axis.containers]
    colours = dict(shown)
    assert len(set(shown)) == len(colours) == len(set(colours.values())) == 3
    (legend,) = drawn[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    found = [to_hex(handle.get_color()[0]) for handle in legend.legend_handles]
    assert dict(zip(names, found, strict=True)) == {name: to_hex(colour) for name, colour in colours.items()}


def test_long_titles_stay_inside(drawn: list[Any], tmp_path: Path) -> None:
    table = measured({1: {0: (1.0,)}}, "MY-EXPERIMENT-WITH-A-WIDE-NAME: (DRUG_A * DRUG_B)^0.5 / CONTROL * MEDIUM")
    curves(tmp_path / "a.png", [table])
    curves(tmp_path / "b.png", [table, table])
    assert [texts_outside(figure) for figure in drawn] == [[], []]


def test_long_titles_of_the_papers_settings_stay_inside(drawn: list[Any], tmp_path: Path) -> None:
    """Labels of small numbers are wide, and move the panel's middle, and with it the title, to the right."""
    column = Column("analytic", 0)
    rows = {k: [Compared(k, column, (0.0312, 0.0401))] for k in (1, 4, 16)}
    label = "gaussian-nonfactorized-ood ours"
    table = ResultTable("gaussian-nonfactorized-ood", "analytic", "sw2", (column,), rows, label)
    figures.against_particles(tmp_path / "a.png", [table] * 2)
    assert texts_outside(drawn[0]) == []


def test_a_short_range_has_ticks_too(drawn: list[Any], tmp_path: Path) -> None:
    """From 0.09 to 0.14 there is one of 1, 2 and 5: a scale that nobody could read."""
    curves(tmp_path / "a.png", [measured({1: {0: (0.09, 0.1)}, 4: {0: (0.11, 0.14)}})])
    (axis,), low, high = drawn[0].axes, *drawn[0].axes[0].get_ylim()
    assert axis.get_yscale() == "log" and sum(low <= tick <= high for tick in axis.get_yticks()) > 1


GRID = """
families: {f: family.yaml}
samplers: {a-sampler-with-a-rather-long-name: {kind: denoise, steps: 4}, short: {kind: denoise, steps: 5}}
protocol: {swarms: 32, projections: 8}
experiments:
  mine: {family: f, expression: a, samplers: [a-sampler-with-a-rather-long-name, short], runs: 1}
"""


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_grids_of_samples_in_any_dimension(drawn: list[Any], tmp_path: Path, dim: int) -> None:
    (tmp_path / "family.yaml").write_text(f"conditions: {{a: {{kind: gaussian, dim: {dim}}}}}")
    mine, store = list(parse_spec(GRID, folder=tmp_path).values()), Store(tmp_path / "store")
    drive(mine, store, device="cpu", save_samples=True)
    (picture,) = grids(tmp_path, mine, store)
    assert ("Shown are x1 and x2, the first two of 5 coordinates." in picture.caption) == (dim == 5)
    (figure,) = drawn
    assert all(bool(axis.patches) == (dim == 1) and bool(axis.collections) == (dim > 1) for axis in figure.axes)
    assert len(figure.axes) == 3 and texts_outside(figure) == []


def test_the_pictures_of_the_demonstration_keep_their_words(drawn: list[Any], tmp_path: Path) -> None:
    points = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    sources = {"a1": points, "a2": 3 * points, "base": points}
    results = {f"{name}: SW2 0.64": points for name in ("naive (K = 1)", "Feynman–Kac (K = 16)", "exact; two draws")}
    title = "a1 · a2 / base, learned from 10000 points each\ndashed: holds 95 % of the exact composition"
    pictures.composition(tmp_path / "c.png", sources, results, 2.0, title)
    line = [64.0, 32.0, 16.0]
    curve = {"t": [1.0, 0.5, 0.0], "positions": line, "ancestors": line, "particles": line, "final": line}
    pictures.diversity(tmp_path / "d.png", {"SDE": curve, "ODE": curve}, 64)
    assert [texts_outside(figure) for figure in drawn] == [[], []]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_of_the_docs_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [link for link in links if link and "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_pictures_of_the_docs_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()}
    assert "choosing.png" in sizes and max(sizes.values()) < 150_000
