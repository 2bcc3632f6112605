"""Small figures in one style: colours that stay apart for every eye (Okabe & Ito 2008), no chart junk.

`scatter` and `density` compare samples with a target: they return a figure, which a notebook shows, and write it where
asked. The others are the paper's. Figures are built without `pyplot`, so no backend, window or global state is touched;
matplotlib loads on first use.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyscore.errors import ArgumentError, cut, require
from polyscore.files.atomic import write_atomically
from polyscore.files.outputs import check_output

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


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the house's style, leaving the caller's as it is."""

    @functools.wraps(draw)
    def inside(*arguments: Any, **options: Any) -> Figure:
        import matplotlib

        with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
            return draw(*arguments, **options)

    return inside


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


@_styled
def scatter(
    samples: Any,
    target: Any = None,
    *,
    variables: Sequence[str | int] | None = None,
    title: str = "",
    path: Path | str | None = None,
    force: bool = False,
) -> Figure:
    """Draw samples, and a target beside them on the same axes; histograms in one dimension.

    Args:
        samples: a `Run`, points `(n, d)`, or a mapping from title to either: one panel each.
        target: what they should look like: an exact target or distribution, a run, or points.
        variables: the two coordinates to show, by name or number; the first two by default, and then said so.
        path: also write it there, as .png, .pdf or .svg; `force` replaces a file.

    Returns:
        the figure: a notebook shows it, nothing else does.
    """
    given = samples if isinstance(samples, Mapping) else {"samples": samples}
    clouds = {name: _cloud(values) for name, values in given.items()}
    if target is not None:
        clouds["target"] = _cloud(target, max(len(cloud.points) for cloud in clouds.values()))
    chosen, labels, note = _coordinates(clouds, variables, 2)
    place = None if path is None else check_output(path, PICTURES, force)
    shown = {name: cloud.points[:, chosen] for name, cloud in clouds.items()}
    centre = torch.cat(list(shown.values())).median(0).values
    reach = 1.05 * max(reach_of(points - centre) for points in shown.values())
    side = 4.0 if len(shown) == 1 else 2.9
    figure, axes = _figure([side] * len(shown), side + 0.4, "\n".join(filter(None, (plain(title), note))))
    for axis, (name, points) in zip(axes, shown.items(), strict=True):
        scatter_panel(axis, points, GREEN if name == "target" else BLUE, reach, centre.tolist())
        axis.set_title(plain(name))
        _name_axes(axis, labels)
        _stretch(axis, list(shown.values()), centre)
    return _written(figure, place)


@_styled
def density(
    samples: Any,
    target: Any = None,
    *,
    variables: Sequence[str | int] | None = None,
    title: str = "",
    path: Path | str | None = None,
    force: bool = False,
) -> Figure:
    """Draw the density of each variable, samples filled and the target as a line; in the plane, its contours too.

    Args:
        samples: a `Run`, or points `(n, d)`.
        target: an exact target or distribution, a run, or points. One with `log_prob` is drawn exactly in one
            dimension, and in two by the regions that hold 50 and 95 % of it; else its own points are counted.
        variables: those to show, by name or number; the first six by default, and then said so.
        path: also write it there, as .png, .pdf or .svg; `force` replaces a file.

    Returns:
        the figure: a notebook shows it, nothing else does.
    """
    clouds = {"samples": _cloud(samples)}
    if target is not None:
        clouds["target"] = _cloud(target, max(len(clouds["samples"].points), 5000))
    chosen, labels, note = _coordinates(clouds, variables, 6)
    place = None if path is None else check_output(path, PICTURES, force)
    dim = clouds["samples"].points.shape[1]
    known = target if hasattr(target, "log_prob") else None
    plane = dim == 2 and len(chosen) == 2
    heading = "\n".join(filter(None, (plain(title), note)))
    figure, axes = _figure([2.9] * (len(chosen) + plane), 3.2, heading)
    for axis, k, label in zip(axes, chosen, labels, strict=False):
        _marginal(axis, {name: cloud.points[:, k] for name, cloud in clouds.items()}, known if dim == 1 else None)
        axis.set_xlabel(label)
    axes[0].legend()
    if plane:
        _plane(axes[-1], clouds["samples"].points[:, chosen], known if chosen == [0, 1] else None)
        _name_axes(axes[-1], labels)
        _stretch(axes[-1], [clouds["samples"].points[:, chosen]], clouds["samples"].points[:, chosen].median(0).values)
    return _written(figure, place)


PICTURES = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class _Cloud:
    """Points `(n, d)` with the names of their coordinates, if they have any."""

    points: Tensor
    names: tuple[str, ...]


def _cloud(source: Any, count: int = 5000) -> _Cloud:
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
            f"what is drawn must be a run, points (n, d) or a distribution; got {type(source).__name__}."
        ) from error
    require(points.ndim >= 2 and points.numel(), "points", "be a matrix (n, d)", f"shape {tuple(points.shape)}")
    flat = points.flatten(1)
    finite = flat[flat.isfinite().all(1)]
    require(len(finite), "points", "be finite", "none that are")
    return _Cloud(finite, names)


def _coordinates(
    clouds: Mapping[str, _Cloud], variables: Sequence[str | int] | None, most: int
) -> tuple[list[int], list[str], str]:
    """Return which coordinates to show, their labels, and what is said where there are more."""
    dims = {name: cloud.points.shape[1] for name, cloud in clouds.items()}
    require(len(set(dims.values())) == 1, "all points", "have one dimension", dims)
    dim = next(iter(dims.values()))
    names = next((cloud.names for cloud in clouds.values() if cloud.names), tuple(f"x{k + 1}" for k in range(dim)))
    if variables is None:
        chosen = list(range(min(dim, most)))
        note = f"the first {most} of {dim} variables" if dim > most else ""
    else:
        require(not isinstance(variables, str) and 1 <= len(variables) <= most, "variables",
                f"be 1 to {most} names or numbers", repr(variables)[:100])  # fmt: skip
        chosen, note = [_index(variable, names, dim) for variable in variables], ""
    return chosen, [plain(names[k]) for k in chosen], note


def _index(variable: str | int, names: tuple[str, ...], dim: int) -> int:
    index = names.index(variable) if variable in names else variable
    good = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < dim
    require(good, "a variable", f"be one of {', '.join(names[:12])}, or a number below {dim}", repr(variable)[:100])
    return int(index)


def _figure(widths: Sequence[float], height: float, title: str) -> tuple[Figure, list[Axes]]:
    """Return a figure that belongs to no window, with a row of panels."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that shows itself in a notebook, whatever backend is there."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    figure = Picture(figsize=(sum(widths), height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=10, x=0.01, ha="left", va="top")
    grid = figure.add_gridspec(1, len(widths), width_ratios=list(widths))
    return figure, [figure.add_subplot(grid[0, k]) for k in range(len(widths))]


def _written(figure: Figure, path: Path | None) -> Figure:
    if path is not None:
        write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=160))
    return figure


def _stretch(axis: Axes, clouds: Sequence[Tensor], centre: Tensor) -> None:
    """Give each axis its own scale where variables of other units would make a line of the picture."""
    if len(centre) < 2:
        return
    across, up = (1.05 * max(reach_of((points - centre)[:, [k]]) for points in clouds) for k in (0, 1))
    if max(across, up) > 4 * min(across, up):
        axis.set_aspect("auto")
        axis.set_xlim(centre[0].item() - across, centre[0].item() + across)
        axis.set_ylim(centre[1].item() - up, centre[1].item() + up)


def _name_axes(axis: Axes, labels: Sequence[str]) -> None:
    axis.set_xlabel(labels[0])
    if len(labels) > 1:
        axis.set_ylabel(labels[1])


def _marginal(axis: Axes, columns: Mapping[str, Tensor], known: Any) -> None:
    """One variable: samples filled, the target a line, exact where its density is known."""
    centre = columns["samples"].median()
    reach = 1.1 * max(reach_of((values - centre)[:, None]) for values in columns.values())
    span = ((centre - reach).item(), (centre + reach).item())
    axis.hist(columns["samples"].numpy(), bins=60, range=span, density=True, color=BLUE, alpha=0.5, label="samples")
    if known is not None:
        ticks = torch.linspace(*span, 500, dtype=torch.float64)
        axis.plot(ticks.numpy(), known.log_prob(ticks[:, None]).exp().numpy(), color=ORANGE, label="target")
    elif "target" in columns:
        axis.hist(columns["target"].numpy(), bins=60, range=span, density=True, histtype="step", color=ORANGE,
                  label="target")  # fmt: skip
    axis.set_xlim(*span)
    axis.set_yticks([])


def _plane(axis: Axes, points: Tensor, known: Any, cells: int = 160) -> None:
    """Two variables: points, and the regions that hold half and 95 % of a known target."""
    centre = points.median(0).values
    reach = 1.1 * reach_of(points - centre)
    scatter_panel(axis, points, BLUE, reach, centre.tolist())
    if known is None:
        return
    reaches = [1.1 * reach_of((points - centre)[:, [k]]) for k in (0, 1)]
    ticks = [centre[k] + torch.linspace(-reaches[k], reaches[k], cells, dtype=torch.float64) for k in (0, 1)]
    across, up = torch.meshgrid(*ticks, indexing="xy")
    height = known.log_prob(torch.stack([across, up], -1)).exp()
    ordered = height.flatten().sort(descending=True).values
    held = ordered.cumsum(0) / ordered.sum()
    levels = sorted({ordered[int((held < share).sum().clamp_max(len(ordered) - 1))].item() for share in (0.5, 0.95)})
    if levels[0] > 0:
        axis.contour(across.numpy(), up.numpy(), height.numpy(), levels=levels, colors=ORANGE, linewidths=1.2)


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
    """Save sources overlaid in one panel, and one panel a way of composing them: two by two, to be read on a phone.

    Args:
        sources: from condition to points `(n, 2)`.
        results: from the panel's title to points `(n, 2)`, three of them; the last is the exact composition.
        level: radius that holds 95 % of the exact composition, drawn in every panel.
        title: lines of at most 48 characters, else wrapped.
    """
    exactly = list(results.values())[-1]
    reach = 1.25 * max(reach_of(values) for values in [*sources.values(), exactly])
    with Panels(path, [3.1] * 2, 6.6, plain(title), rows=2, dpi=120) as (figure, axes):
        figure.set_layout_engine("constrained", hspace=0.06)
        for colour, (name, values) in zip((BLUE, ORANGE, GREY), sources.items(), strict=False):
            scatter_panel(axes[0], values[:1500], colour, reach)
            axes[0].scatter([], [], color=colour, s=14, label=plain(name))
        axes[0].legend(loc="upper right", handletextpad=0.1, borderaxespad=0.1)
        axes[0].set_title("what is composed")
        for axis, colour, (name, values) in zip(axes[1:], (PINK, BLUE, GREEN), results.items(), strict=False):
            scatter_panel(axis, values[:1500], colour, reach)
            circle(axis, level)
            axis.set_title(plain(name))
        for axis in axes:
            axis.set(xlabel="", ylabel="")


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
