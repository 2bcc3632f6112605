"""The analytic columns of the four Gaussian settings: published, recomputed to the letter, and by `FeynmanKac`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyscore.algebra import base_composition
from polyscore.experiments.cells import ANALYTIC
from polyscore.experiments.experiment import Column, Experiment
from polyscore.experiments.formats import csv_lines, line
from polyscore.experiments.store import Store
from polyscore.experiments.tables import stored_values
from polyscore.files.atomic import write_text
from polyscore.paper import pictures
from polyscore.paper.demo.diversity import Curve, diversity
from polyscore.paper.demo.scenes import REPAIRED, Distances, Scene, draw, floor, thumbnails
from polyscore.paper.published import RUNS, Published, published
from polyscore.paper.settings import setting
from polyscore.samplers import FeynmanKac

HEADER = ("setting", "K", "published", "the paper's", "z", "ours")
_CSV = ["setting", "particles", "published_mean", "published_std", "ours", "runs", "z", "corrected"]
_SWARMS = (4, 16, 64)  # of the figure of appendix C


@dataclass(frozen=True)
class Line:
    """SW2 at one setting and K: published (`mean`, `std` over 30 runs), the paper's sampler here, and ours."""

    setting: str
    particles: int
    published: Published
    ours: float
    runs: int
    corrected: float

    @property
    def z(self) -> float:
        """(ours - published) / its standard error, both sides having the published spread."""
        variance = self.published.std**2 * RUNS / (RUNS - 1)
        return (self.ours - self.published.mean) / math.sqrt(variance * (1 / RUNS + 1 / self.runs))

    def texts(self) -> list[str]:
        """Return it as text, in the order of the table's header."""
        theirs = f"{self.published.mean:.4f} ± {self.published.std:.4f}"
        numbers = [f"{self.ours:.4f}", f"{self.z:+.1f}", f"{self.corrected:.4f}"]
        return [self.setting, str(self.particles), theirs, *numbers]

    def values(self) -> list[Any]:
        """Return it as values, in the order of the CSV file."""
        return [self.setting, self.particles, *self.published, self.ours, self.runs, self.z, self.corrected]


@dataclass(frozen=True)
class ExactPart:
    """What exact scores give, and the files that hold it.

    Attributes:
        scene: the first picture and what it shows.
        distances: the numbers behind it.
    """

    scene: Scene
    distances: Distances
    rows: list[Line]
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
        records = [dict(zip(_CSV, row.values(), strict=True)) for row in self.rows]
        files = [str(path) for path in self.files]
        return {"scene": self.scene.to_dict(), "rows": records, "diversity": finals, "files": files}


def exact_part(
    out: Path, experiments: Mapping[str, tuple[Experiment, Experiment]], store: Store, tiny: bool
) -> ExactPart:
    """Read the part with exact scores from a store and write repaired.png, diversity.png, table.md and table.csv."""
    rows = [_line(name, k, *pair, store) for name, pair in experiments.items() for k in pair[0].particles]
    letter, ours = experiments[REPAIRED]
    known = {row.particles: row.corrected for row in rows if row.setting == REPAIRED}
    found = Distances(known[1], known[max(known)], floor(ours), max(known))
    scene = Scene("With exact scores", found.sentence(), out / "repaired.png")
    points = thumbnails(ours, store, Column(ANALYTIC), (1, found.particles))
    draw(scene.path, REPAIRED, points, found, "exact scores", ours.protocol.first_seed)
    q, protocol = base_composition(setting("mixture-ood")), letter.protocol
    curves = diversity(q, _SWARMS, 16 if tiny else 100, protocol.steps, protocol.first_seed)
    return ExactPart(scene, found, rows, curves, [scene.path, *_write(out, rows, curves)])


def _line(name: str, particles: int, letter: Experiment, ours: Experiment, store: Store) -> Line:
    theirs, own = (stored_values(e, store, "sw2", particles, Column(ANALYTIC)) for e in (letter, ours))
    cell = published(name, particles=particles)
    return Line(name, particles, cell, statistics.fmean(theirs), len(theirs), statistics.fmean(own))


def _write(out: Path, rows: list[Line], curves: dict[str, Curve]) -> list[Path]:
    paths = [out / name for name in ("diversity.png", "table.md", "table.csv")]
    pictures.diversity(paths[0], curves, max(_SWARMS))
    write_text(paths[1], markdown(rows))
    write_text(paths[2], csv_lines([_CSV, *(row.values() for row in rows)]))
    return paths


def markdown(rows: list[Line]) -> str:
    """Return the table as Markdown, with the sentence that explains it."""
    lines = [line(HEADER), line(["---"] * len(HEADER)), *(line(row.texts()) for row in rows)]
    note = (
        f"SW2 to the exact composition with exact scores, mean of {rows[0].runs} runs. Published: mean ± standard "
        "deviation over 30 runs. The paper's: its sampler to the letter, computed here; z: its difference to the "
        f"published value over the standard error. Ours: `FeynmanKac(K)`, {FeynmanKac.steps} steps, no clip."
    )
    return "\n".join(["# The paper's analytic columns", "", note, "", *lines, ""])
