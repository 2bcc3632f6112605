"""Small figures in one style: colours that stay apart for every eye (Okabe & Ito 2008), no chart junk.

Figures are built without `pyplot`, so no backend, window or global state is touched; matplotlib loads on first use.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyscore.errors import cut
from polyscore.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6E6E6E"
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.labelcolor": "#222222",
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


def plain(text: str) -> str:
    """Return a name as a title or label shows it: no formula where it has dollars, no command, wrapped and cut.

    A label that begins with an underscore would be left out of a legend; a blank before it keeps it.
    """
    lines = [part for line in text.split("\n") for part in textwrap.wrap(cut(line, 140), 48)]
    shown = "\n".join(lines).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


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

        self._style = matplotlib.rc_context(_STYLE)  # type: ignore[arg-type]
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


def scatter(
    path: Path | str, panels: Mapping[str, Tensor], colours: Sequence[str] | None = None, title: str = ""
) -> None:
    """Save one panel of points a name, all on the same axes: the first two coordinates, or a histogram in one.

    Args:
        panels: from title to points `(n, d)`; at most 3000 of each are drawn.
        colours: one a panel.
    """
    points = {name: values.detach().cpu().flatten(1) for name, values in panels.items()}
    centre = torch.cat([values[:, :2] for values in points.values()]).median(0).values
    reach = 1.05 * max(reach_of(values[:, :2] - centre) for values in points.values())
    colours = colours or [BLUE] * len(points)
    side = 4.0 if len(points) == 1 else 2.8
    with Panels(path, [side] * len(points), side + 0.3, plain(title)) as (_, axes):
        for axis, colour, (name, values) in zip(axes, colours, points.items(), strict=True):
            scatter_panel(axis, values, colour, reach, centre.tolist())
            axis.set_title(plain(name))


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


def composition(
    path: Path | str, sources: Mapping[str, Tensor], results: Mapping[str, Tensor], level: float, title: str = ""
) -> None:
    """Save the paper's Figure 1: sources overlaid on the left, one panel a way of composing them on the right.

    Args:
        sources: from condition to points `(n, 2)`.
        results: from the panel's title to points `(n, 2)`; the last is the exact composition.
        level: radius that holds 95 % of the exact composition, drawn in every panel.
    """
    reach = 1.05 * max(reach_of(values) for values in [*sources.values(), *results.values()])
    with Panels(path, [2.8] * (1 + len(results)), 3.3, plain(title)) as (_, axes):
        for colour, (name, values) in zip((BLUE, ORANGE, GREY), sources.items(), strict=False):
            scatter_panel(axes[0], values[:1500], colour, reach)
            axes[0].scatter([], [], color=colour, s=14, label=plain(name))
        axes[0].legend(loc="upper right", handletextpad=0.1, borderaxespad=0.1)
        axes[0].set_title("sources")
        for axis, colour, (name, values) in zip(axes[1:], (PINK, BLUE, GREEN), results.items(), strict=False):
            scatter_panel(axis, values[:1500], colour, reach)
            circle(axis, level)
            axis.set_title(plain(name))
            axis.set_ylabel("")


def circle(axis: Axes, radius: float) -> None:
    """Draw a dashed circle around 0."""
    from matplotlib.patches import Circle

    axis.add_patch(Circle((0, 0), radius, fill=False, color="#222222", linewidth=1.0, linestyle=(0, (4, 2))))


def epsilon(path: Path | str, rows: Sequence[tuple[float, float, float, float, float]]) -> None:
    """Save how much too wide naive denoising is against epsilon (rows of `theory.epsilon_example`)."""
    e, ode_law, sde_law, ode, sde = (list(column) for column in zip(*rows, strict=True))
    with Panels(path, [4.8], 3.4) as (_, (axis,)):
        axis.loglog(e, ode_law, color=ORANGE, label=r"ODE, $(1+\varepsilon^2)/2\varepsilon$ (the paper's)")
        axis.loglog(
            e, sde_law, color=BLUE, label=r"SDE, $\frac{1+\varepsilon^2}{1-\varepsilon^2}\,\log\frac{1}{\varepsilon}$"
        )
        axis.loglog(e, ode, "o", color=ORANGE, ms=4, mfc="white", label="ODE, Lyapunov equation")
        axis.loglog(e, sde, "s", color=BLUE, ms=4, mfc="white", label="SDE, Lyapunov equation")
        axis.set_xlabel(r"$\varepsilon$")
        axis.set_ylabel("variance, naive / exact")
        axis.set_title(r"$\Sigma_1=\varepsilon I,\ \Sigma_2=I/\varepsilon,\ w=(\frac{1}{2},\frac{1}{2})$", loc="left")
        axis.legend()


def diversity(path: Path | str, curves: Mapping[str, Mapping[str, Sequence[float]]], particles: int) -> None:
    """Save how many different positions and ancestors a swarm keeps, SDE against ODE.

    Args:
        curves: `{"SDE": ..., "ODE": ...}`, each with `t`, `positions`, `ancestors` (means over swarms, along time) and
            `particles`, `final` (different final positions, against K).
        particles: K of the curves along time.
    """
    with Panels(path, [4.2, 3.2], 3.3, "Resampling the ODE loses diversity: copies never part again") as (_, axes):
        for colour, (name, curve) in zip((BLUE, ORANGE), curves.items(), strict=False):
            # wide and pale below, thin and dashed above: for the ODE both lines are one
            axes[0].plot(curve["t"], curve["positions"], color=colour, label=f"{name}: positions", lw=4, alpha=0.45)
            axes[0].plot(curve["t"], curve["ancestors"], color=colour, label=f"{name}: ancestors", lw=1.4, ls="--")
            axes[1].plot(curve["particles"], curve["final"], "o-", color=colour, label=name, ms=4)
        axes[0].set(xlim=(1, 0), ylim=(0, 1.04 * particles), xlabel="$t$ (1 = noise, 0 = data)")
        axes[0].set_ylabel(f"different ones in a swarm of K = {particles}")
        axes[0].legend(loc="lower left")
        axes[1].plot(
            curve["particles"], curve["particles"], color="#222222", lw=1.2, ls=":", label="all different", zorder=5
        )
        axes[1].set_xscale("log", base=2)
        axes[1].set_yscale("log", base=2)
        axes[1].set(xlabel="K", ylabel="different final positions")
        for axis in (axes[1].xaxis, axes[1].yaxis):
            axis.set_major_formatter("{x:g}")
        axes[1].legend()
