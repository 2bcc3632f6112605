"""Run the part with exact scores and write it down: repaired.png, diversity.png, table.md, table.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from polyscore import plots
from polyscore.files.atomic import check_directory, write_text
from polyscore.paper.demo.diversity import Curve, diversity
from polyscore.paper.demo.scenes import REPAIRED, Distances, Scene, draw
from polyscore.paper.demo.table import Cell, Row, Sizes, cells, composed, compute, floor, rows
from polyscore.samplers import FeynmanKac

Progress = Callable[[int, int, str], None]

_SWARMS = (4, 16, 64)
HEADER = ("setting", "K", "published", "the paper's", "z", "ours")


@dataclass(frozen=True)
class Demo:
    """What exact scores give, and the files that hold it.

    Attributes:
        scene: the first picture and what it shows.
        distances: the numbers behind it.
    """

    scene: Scene
    distances: Distances
    rows: list[Row]
    diversity: dict[str, Curve]
    files: list[Path] = field(default_factory=list)

    @property
    def largest_z(self) -> float:
        """The largest |z| of the table."""
        return max(abs(row.z) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        finals = {
            name: {key: curve[key] for key in ("particles", "final", "final_ancestors")}
            for name, curve in self.diversity.items()
        }
        records = [dict(zip(_csv_header(), _csv_row(row), strict=True)) for row in self.rows]
        files = [str(path) for path in self.files]
        return {"scene": self.scene.to_dict(), "rows": records, "diversity": finals, "files": files}


def run_demo(
    out: Path | str = "runs/demo",
    seed: int = 1,
    device: str | None = None,
    sizes: Sizes | None = None,
    progress: Progress | None = None,
) -> Demo:
    """Compute the first picture, the table and the figure of appendix C into `out`.

    Args:
        out: directory, made if missing; checked before the work begins.
        seed: of the first run; the others follow it.
        progress: called with (done, all, what was done).
    """
    out, sizes = check_directory(out), sizes or Sizes()
    work = cells(sizes, seed)
    distances: dict[Cell, float] = {}
    samples: dict[int, Tensor] = {}
    for cell, distance, points in compute(work, sizes, device):
        distances[cell] = distance
        if cell.corrected and (cell.setting, cell.seed) == (REPAIRED, seed):
            samples[cell.particles] = points
        if progress:
            progress(len(distances), len(work) + 1, f"{cell.setting}, K = {cell.particles}")
    curves = diversity(composed("mixture-ood"), _SWARMS, sizes.diversity_swarms, sizes.steps, seed)
    if progress:
        progress(len(work) + 1, len(work) + 1, "figures")
    table = rows(distances, sizes)
    found = _distances(table, sizes, seed)
    scene = Scene("With exact scores", found.sentence(), out / "repaired.png")
    draw(scene.path, REPAIRED, [samples[1], samples[found.particles]], found, "exact scores", seed)
    return Demo(scene, found, table, curves, [scene.path, *_write(out, table, curves)])


def _distances(table: list[Row], sizes: Sizes, seed: int) -> Distances:
    """The numbers of the first picture: means over the runs, samplers by their defaults."""
    ours = {row.particles: row.corrected for row in table if row.setting == REPAIRED}
    return Distances(ours[1], ours[max(ours)], floor(REPAIRED, sizes, seed), max(ours))


def _write(out: Path, table: list[Row], curves: dict[str, Curve]) -> list[Path]:
    paths = [out / name for name in ("diversity.png", "table.md", "table.csv")]
    plots.diversity(paths[0], curves, max(_SWARMS))
    write_text(paths[1], markdown(table))
    write_text(paths[2], _csv(table))
    return paths


def markdown(table: list[Row]) -> str:
    """Return the table as Markdown, with the sentence that explains it."""
    lines = [_line(HEADER), _line(["---"] * len(HEADER)), *(_line(text_row(row)) for row in table)]
    note = (
        f"SW2 to the exact composition with exact scores, mean of {table[0].runs} runs. Published: mean ± standard "
        "deviation over 30 runs. The paper's: its sampler to the letter, computed here; z: its difference to the "
        "published value over the standard error (all settings share their random numbers, so the z's move together). "
        f"Ours: `FeynmanKac(K)`, {FeynmanKac.steps} steps, no clip."
    )
    return "\n".join(["# The paper's analytic columns", "", note, "", *lines, ""])


def text_row(row: Row) -> list[str]:
    """Return a row as text, in the order of the table's header."""
    published = f"{row.published.mean:.4f} ± {row.published.std:.4f}"
    return [row.setting, str(row.particles), published, f"{row.ours:.4f}", f"{row.z:+.1f}", f"{row.corrected:.4f}"]


def _line(texts: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(texts) + " |"


def _csv_header() -> list[str]:
    return ["setting", "particles", "published_mean", "published_std", "ours", "runs", "z", "corrected"]


def _csv_row(row: Row) -> list[Any]:
    return [row.setting, row.particles, *row.published, row.ours, row.runs, row.z, row.corrected]


def _csv(table: list[Row]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_csv_header(), *map(_csv_row, table)])
    return buffer.getvalue()
