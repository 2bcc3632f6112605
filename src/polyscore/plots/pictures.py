"""`scatter` and `density` compare samples with a target: they return a figure, which a notebook shows, and write it
where asked. Figures are built without `pyplot`, so no backend, window or global state is touched; matplotlib loads on
first use.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyscore.files.atomic import write_atomically
from polyscore.files.outputs import check_output
from polyscore.plots.clouds import cloud_of, coordinates, matched
from polyscore.plots.panels import reach_of, scatter_panel
from polyscore.plots.style import BLUE, GREEN, ORANGE, PICTURES, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def scatter(
    samples: Any, target: Any = None, *, variables: Sequence[str | int] | None = None, title: str = "",
    path: Path | str | None = None, force: bool = False,
) -> Figure:  # fmt: skip
    """Draw samples, and a target beside them on the same axes; histograms in one dimension.

    Args:
        samples: a `Run`, points `(n, d)`, or a mapping from title to either: one panel each.
        target: what they should look like: an exact target or distribution, a run, points, or a DataFrame, whose
            columns are taken by their names.
        variables: the two coordinates to show, by name or number; the first two by default, and then said so.
        path: also write it there, as .png, .pdf or .svg; `force` replaces a file.

    Returns:
        the figure: a notebook shows it, nothing else does.
    """
    given = samples if isinstance(samples, Mapping) else {"samples": samples}
    clouds = {name: cloud_of(values) for name, values in given.items()}
    if target is not None:
        clouds["target"] = cloud_of(target, max(len(cloud.points) for cloud in clouds.values()))
    clouds = matched(clouds)
    chosen, labels, note = coordinates(clouds, variables, 2)
    place = None if path is None else check_output(path, PICTURES, force)
    shown = {name: cloud.points[:, chosen] for name, cloud in clouds.items()}
    centre = torch.cat(list(shown.values())).median(0).values
    reach = 1.05 * max(reach_of(points - centre) for points in shown.values())
    side = 4.0 if len(shown) == 1 else 2.9
    figure, axes = _figure([side] * len(shown), side + 0.4, "\n".join(filter(None, (plain(title), note))))
    for axis, (name, points) in zip(axes, shown.items(), strict=True):
        scatter_panel(axis, points, GREEN if name == "target" else BLUE, reach, centre.tolist())
        axis.set_title(plain(name))
        axis.locator_params("x", nbins=5)
        _name_axes(axis, labels)
        _stretch(axis, list(shown.values()), centre)
    return _written(figure, place)


@styled
def density(
    samples: Any, target: Any = None, *, variables: Sequence[str | int] | None = None, title: str = "",
    path: Path | str | None = None, force: bool = False,
) -> Figure:  # fmt: skip
    """Draw the density of each variable, samples filled and the target as a line; in the plane, its contours too.

    Args:
        samples: a `Run`, or points `(n, d)`.
        target: an exact target or distribution, a run, points, or a DataFrame, whose columns are taken by their
            names. One with `log_prob` is drawn exactly in one dimension, and in two by the regions that hold 50 and
            95 % of it; else its own points are counted.
        variables: those to show, by name or number; the first six by default, and then said so.
        path: also write it there, as .png, .pdf or .svg; `force` replaces a file.

    Returns:
        the figure: a notebook shows it, nothing else does.
    """
    clouds = {"samples": cloud_of(samples)}
    if target is not None:
        clouds["target"] = cloud_of(target, max(len(clouds["samples"].points), 5000))
    clouds = matched(clouds)
    chosen, labels, note = coordinates(clouds, variables, 6)
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
        axis.set_xlim(*_span([points[:, 0] for points in clouds]))
        axis.set_ylim(*_span([points[:, 1] for points in clouds]))


def _span(columns: Iterable[Tensor]) -> tuple[float, float]:
    """From where to where a variable is shown: all but a thousandth on either side, however far that is."""
    ends = torch.tensor([0.001, 0.999], dtype=torch.float64)
    found = torch.stack([torch.quantile(values[:10_000].double(), ends) for values in columns])
    low, high = found[:, 0].min().item(), found[:, 1].max().item()
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def _name_axes(axis: Axes, labels: Sequence[str]) -> None:
    axis.set_xlabel(labels[0])
    if len(labels) > 1:
        axis.set_ylabel(labels[1])


def _marginal(axis: Axes, columns: Mapping[str, Tensor], known: Any) -> None:
    """One variable: samples filled, the target a line, exact where its density is known."""
    span = _span(columns.values())
    axis.hist(
        columns["samples"].numpy(),
        bins=_bins(columns["samples"]),
        range=span,
        density=True,
        color=BLUE,
        alpha=0.5,
        label="samples",
    )
    if known is not None:
        ticks = torch.linspace(*span, 500, dtype=torch.float64)
        axis.plot(ticks.numpy(), known.log_prob(ticks[:, None]).exp().numpy(), color=ORANGE, label="target")
    elif "target" in columns:
        axis.hist(columns["target"].numpy(), bins=_bins(columns["target"]), range=span, density=True, histtype="step",
                  color=ORANGE, label="target")  # fmt: skip
    axis.set_xlim(*span)
    axis.set_yticks([])


def _bins(values: Tensor) -> int:
    """How many bins show a shape and not the noise of counts: twice Rice's rule, up to sixty."""
    return min(60, 1 + int(4 * len(values) ** (1 / 3)))


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
