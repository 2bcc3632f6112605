"""Figures of several panels, saved whole, and what is drawn into one panel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyscore.files.atomic import write_atomically
from polyscore.plots.style import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Panels:
    """A figure with rows of panels, saved on leaving the `with` block; the panels come row by row."""

    def __init__(
        self,
        path: Path | str,
        widths: Sequence[float],
        height: float = 3.2,
        title: str = "",
        rows: int = 1,
        dpi: int = 160,
    ) -> None:
        self.path, self.widths, self.height, self.title, self.rows, self.dpi = path, widths, height, title, rows, dpi

    def __enter__(self) -> tuple[Figure, list[Axes]]:
        import matplotlib
        from matplotlib.figure import Figure

        self._style = matplotlib.rc_context(STYLE)  # type: ignore[arg-type]
        self._style.__enter__()
        self.figure = Figure(figsize=(sum(self.widths), self.height), layout="constrained")
        if self.title:
            self.figure.suptitle(self.title, fontsize=11, x=0.01, ha="left", va="top")
        columns = len(self.widths)
        grid = self.figure.add_gridspec(self.rows, columns, width_ratios=list(self.widths))
        return self.figure, [self.figure.add_subplot(grid[i, k]) for i in range(self.rows) for k in range(columns)]

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            write_atomically(self.path, lambda temporary: self.figure.savefig(temporary, dpi=self.dpi))
            if Path(self.path).suffix == ".png":
                write_atomically(self.path, self._index_colours)
        self._style.__exit__(None, None, None)

    def _index_colours(self, temporary: Path) -> None:
        """A picture of points needs few colours: a table of 256 makes its file a third of the size."""
        from PIL import Image

        with Image.open(self.path) as image:
            image.convert("RGB").quantize(256).save(temporary, optimize=True)


def reach_of(values: Tensor) -> float:
    """Return the half side of the square that holds 99.9 % of the points: far ones must not shrink the picture."""
    return torch.quantile(values.abs().amax(-1)[:10_000].double(), 0.999).item() or 1.0


def scatter_panel(axis: Axes, values: Tensor, colour: str, reach: float, centre: Sequence[float] = (0.0, 0.0)) -> None:
    """Draw points `(n, d)` into a square of half side `reach`: two coordinates, or a histogram of one."""
    left, right = centre[0] - reach, centre[0] + reach
    axis.set_xlim(left, right)
    if values.shape[1] == 1:
        axis.hist(values[:, 0].numpy(), bins=60, range=(left, right), color=colour, density=True)
        axis.set_xlabel("$x$")
        return
    shown = values[:3000].numpy()
    axis.scatter(shown[:, 0], shown[:, 1], s=3, alpha=0.35, color=colour, linewidths=0, rasterized=True)
    axis.set_ylim(centre[1] - reach, centre[1] + reach)
    axis.set_aspect("equal")
    axis.set_xlabel("$x_1$")
    axis.set_ylabel("$x_2$")


def circle(axis: Axes, radius: float) -> None:
    """Draw a dashed circle around 0."""
    from matplotlib.patches import Circle

    axis.add_patch(Circle((0, 0), radius, fill=False, color="#222222", linewidth=1.0, linestyle=(0, (4, 2))))
