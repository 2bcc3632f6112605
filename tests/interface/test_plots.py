"""Pictures of samples against a target: in one, two and more dimensions, in a notebook and as files."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import polyscore as ps
from polyscore import plots
from polyscore.errors import OutputError, PolyscoreError


def run_of(dim: int, names: list[str] | None = None, n: int = 300) -> tuple[ps.Run, ps.Composition]:
    q = ps.Family({"a": ps.Gaussian(mean=[3.0] * dim, cov=np.linspace(1, 2, dim))}, variables=names)["a"]
    return ps.Denoise(steps=30).sample(q, n), q


@pytest.mark.parametrize("dim", [1, 2, 9])
@pytest.mark.parametrize("draw", [plots.scatter, plots.density])
def test_every_dimension_has_a_picture(dim: int, draw) -> None:
    run, q = run_of(dim)
    for target in (None, ps.exact(q), ps.exact(q).sample(200), ps.Gaussian(dim=dim), run):
        figure = draw(run, target)
        labels = [axis.get_xlabel() for axis in figure.axes]
        assert labels[0] == "x1"
        said = figure.get_suptitle()
        most = 2 if draw is plots.scatter else 6
        assert said == (f"the first {most} of {dim} variables" if dim > most else "")


def test_scatter_puts_target_and_samples_on_the_same_axes() -> None:
    run, q = run_of(3, ["CD4", "CD8", "CD19"])
    figure = plots.scatter(run, ps.exact(q), variables=["CD19", 0], title="mine")
    mine, target = figure.axes
    assert (mine.get_title(), target.get_title()) == ("samples", "target")
    assert mine.get_xlim() == target.get_xlim() and mine.get_ylim() == target.get_ylim()
    assert (mine.get_xlabel(), mine.get_ylabel(), figure.get_suptitle()) == ("CD19", "CD4", "mine")
    np.testing.assert_allclose(mine.collections[0].get_offsets(), run.samples[:, [2, 0]].numpy(), rtol=1e-6)
    several = plots.scatter({"naive": run, "fixed": run.samples.numpy(), "list": run.samples.tolist()})
    assert [axis.get_title() for axis in several.axes] == ["naive", "fixed", "list"]


def test_density_draws_the_targets_own_density() -> None:
    assert plots.density(run_of(1)[0])._repr_png_().startswith(b"\x89PNG")
    run, q = run_of(1)
    (axis,) = plots.density(run, ps.exact(q)).axes
    x, y = axis.lines[0].get_data()
    np.testing.assert_allclose(y, np.exp(-0.5 * (np.asarray(x) - 3) ** 2) / np.sqrt(2 * np.pi), rtol=1e-6)
    run, q = run_of(2)
    figure = plots.density(run, ps.exact(q))
    assert len(figure.axes) == 3 and len(figure.axes[-1].collections) == 2  # points, and contours
    # The outer contour of N(3, diag(1, 2)) holds 95 %: an ellipse of half axes sqrt(5.99 var), to the grid's cell.
    paths = np.concatenate([path.vertices for path in figure.axes[-1].collections[1].get_paths()])
    np.testing.assert_allclose(np.abs(paths - 3).max(0), np.sqrt(5.99 * np.array([1, 2])), rtol=0.06)


def test_files_are_written_when_asked_and_not_replaced(tmp_path: Path) -> None:
    run, q = run_of(2)
    for name, head in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")):
        plots.scatter(run, ps.exact(q), path=tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(head)
        with pytest.raises(OutputError, match="replace"):
            plots.density(run, path=tmp_path / name)
        plots.density(run, path=tmp_path / name, force=True)
    with pytest.raises(OutputError, match=r"\.png"):
        plots.scatter(run, path=tmp_path / "a.txt")


def test_variables_of_other_units_have_scales_of_their_own() -> None:
    points = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([250.0, 1e-3])
    for axis in (plots.scatter(points).axes[0], plots.density(points, ps.Gaussian(cov=[250.0**2, 1e-6])).axes[-1]):
        across, up = np.ptp(axis.get_xlim()), np.ptp(axis.get_ylim())
        assert 1000 < across < 4000 and 0.004 < up < 0.016 and axis.get_aspect() == "auto"


def test_skewed_variables_fill_the_picture() -> None:
    """Exponentials end at 0: an axis that is as long on either side of the median would be half empty."""
    points = -torch.rand(4000, 3, generator=torch.Generator().manual_seed(0)).log() * torch.tensor([300.0, 1e-2, 1.0])
    for axis in (*plots.density(points).axes, plots.scatter(points[:, :2]).axes[0]):
        low, high = axis.get_xlim()
        assert -0.1 * high < low < 0 and high > 5 * points.median(0).values.min()


def test_labels_of_ticks_do_not_overlap() -> None:
    """Points within a thousandth of -1 need labels of seven signs."""
    points = torch.tensor([[-1.0, 0.34], [-0.9986, 0.62]])
    figure = plots.scatter(points)
    figure.canvas.draw()
    (axis,) = figure.axes
    low, high = axis.get_xlim()
    labels = [label for label in axis.get_xticklabels() if low <= label.get_position()[0] <= high]
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) > 1 and all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_few_points_are_counted_in_few_bins() -> None:
    """60 bins of 100 points are five points each where most are: noise in place of a shape."""
    for n, most in ((100, 20), (50_000, 60)):
        (axis,) = plots.density(torch.randn(n, 1, generator=torch.Generator().manual_seed(0))).axes
        assert most / 2 < len(axis.patches) <= most


def test_frames_are_drawn_by_the_names_of_their_columns() -> None:
    pandas = pytest.importorskip("pandas")
    run, _ = run_of(2, ["CD4", "CD8"])
    measured = pandas.DataFrame({"CD8": [5.0, 6.0], "cell": ["c1", "c2"], "CD4": [1.0, 2.0], "depth": [8, 9]})
    for draw in (plots.scatter, plots.density):
        assert draw(run, measured).axes[0].get_xlabel() == "CD4"
    (_, target) = plots.scatter(run, measured).axes
    np.testing.assert_allclose(target.collections[0].get_offsets(), [[1, 5], [2, 6]])
    assert (target.get_xlabel(), target.get_ylabel()) == ("CD4", "CD8")
    assert [axis.get_xlabel() for axis in plots.density(measured).axes] == ["CD8", "CD4", "depth"]
    assert plots.scatter(run_of(2)[0], measured[["CD4", "CD8"]])._repr_png_()  # of a run without names, as they stand
    for frame in (measured[["CD4"]], measured[["CD4", "depth"]]):
        with pytest.raises(PolyscoreError, match="have the columns CD4, CD8"):
            plots.scatter(run, frame)


@pytest.mark.filterwarnings("error")
def test_arrays_that_torch_does_not_share_are_drawn() -> None:
    points = np.arange(40.0).reshape(20, 2)
    fixed = points.copy()
    fixed.flags.writeable = False
    for array in (fixed, points[::-1]):
        assert plots.scatter(array, array)._repr_png_()


def test_odd_points_and_names_are_drawn() -> None:
    constant = torch.ones(50, 2)
    holes = torch.cat([torch.randn(50, 2), torch.full((3, 2), torch.nan), torch.full((1, 2), torch.inf)])
    far = torch.cat([torch.randn(5000, 2), torch.tensor([[1e9, 0.0]])])
    for points in (constant, holes, far, torch.ones(1, 2), torch.randn(20, 3, 4)):
        for draw in (plots.scatter, plots.density):
            assert draw(points)._repr_png_()
    assert abs(np.diff(plots.scatter(far).axes[0].get_xlim())[0]) < 20  # one far point does not shrink the rest
    run, _ = run_of(2, ["$x^$", "y"])
    run = dataclasses.replace(run, variables=("$x^$", "a\x1b[31m\nb"))
    figure = plots.scatter({"50 $ and $": run}, title="cost $5 $")
    assert figure._repr_png_() and "\x1b" not in figure.axes[0].get_ylabel()
    assert plots.density(run)._repr_png_()


@pytest.mark.parametrize(
    ("samples", "options"),
    [
        (torch.zeros(0, 2), {}), (torch.zeros(3), {}), ("text", {}), (torch.full((4, 2), torch.nan), {}),
        (torch.zeros(4, 2), {"target": torch.zeros(4, 3)}), (torch.zeros(4, 2), {"variables": ["u"]}),
        (torch.zeros(4, 2), {"variables": [2]}), (torch.zeros(4, 2), {"variables": "x1"}),
        (torch.zeros(4, 2), {"variables": []}),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(samples: object, options: dict[str, object]) -> None:
    for draw in (plots.scatter, plots.density):
        with pytest.raises(PolyscoreError):
            draw(samples, **options)  # type: ignore[arg-type]


def test_plots_are_at_hand() -> None:
    assert ps.plots is plots


def test_no_window_and_no_global_state() -> None:
    script = """
import sys, torch, matplotlib
before = matplotlib.rcParams["font.size"], matplotlib.rcParams["axes.grid"]
from polyscore import plots
plots.scatter(torch.randn(10, 2)); plots.density(torch.randn(10, 2))
after = matplotlib.rcParams["font.size"], matplotlib.rcParams["axes.grid"]
print("matplotlib.pyplot" in sys.modules, after == before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
