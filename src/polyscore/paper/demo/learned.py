"""The paper's catastrophe in small: factorized conditionals, composed out of distribution, with learned scores.

Naive denoising (K = 1), Feynman–Kac correction (K = 16, the library's defaults) and the exact composition side by side.
With exact scores correction is right; with learned ones it amplifies their error where no training point ever was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyscore.experiments.experiment import Column, Experiment
from polyscore.experiments.store import Store
from polyscore.paper.demo.scenes import HARMED, Distances, Scene, draw, floor, thumbnails
from polyscore.paper.tables import Compared, PaperTable, compared_table


@dataclass(frozen=True)
class LearnedPart:
    """What the demonstration found.

    Attributes:
        scene: the picture and what it shows.
        table: SW2 to the exact composition.
        floor: SW2 between two exact draws of the same size; mean over the runs.
    """

    scene: Scene
    table: PaperTable
    floor: float
    files: list[Path]

    def lines(self) -> list[tuple[str, list[Compared]]]:
        """Return the table's rows with their names."""
        name: dict[Any, str] = {1: "naive (K = 1)"}
        return [(name.get(k, f"Feynman–Kac (K = {k})"), row) for k, row in self.table.rows.items()]

    def distances(self, size: int) -> Distances:
        """Return the distances of one train size; 0 is exact scores."""
        return _distances(self.table, size, self.floor)

    def ratios(self) -> dict[int, float]:
        """Return, by train size, the distance at the largest K over that at the smallest: above 1, correction harms."""
        found = {column.size: self.distances(column.size) for column in self.table.columns}
        return {size: one.corrected / (one.naive or 1.0) for size, one in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        rows = [
            {"particles": e.row, "train_size": e.column.size or "analytic", "mean": e.mean, "std": e.std,
             "runs": e.runs, "published": e.published and e.published.mean}
            for e in self.table.entries
        ]  # fmt: skip
        return {
            "scene": self.scene.to_dict(),
            "setting": HARMED,
            "rows": rows,
            "exact": self.floor,
            "ratios": self.ratios(),
            "files": [str(path) for path in self.files],
        }


def learned_part(out: Path, chosen: Experiment, store: Store) -> LearnedPart:
    """Read the part with learned scores from a store: draw run 0 of the largest train size, say what the means show."""
    found, apart, size = compared_table(chosen, store), floor(chosen), max(chosen.train_sizes)
    learned, exactly = (_distances(found, n, apart) for n in (size, 0))
    scene = Scene("With learned scores", explain(learned, exactly, size), out / "learned.png")
    points = thumbnails(chosen, store, Column(chosen.kinds, size), (1, learned.particles))
    draw(scene.path, HARMED, points, learned, f"learned from {size} points each", chosen.protocol.first_seed)
    return LearnedPart(scene, found, apart, [scene.path])


def explain(learned: Distances, exactly: Distances, size: int) -> str:
    """Return what correction does with learned scores, beside what it does with exact ones."""
    aside = f"Scores were learned from {size} points a condition; with exact ones the same corrected sampler is at "
    text = f"{learned.sentence()} {aside}{exactly.corrected:.2f}"
    if learned.harmed and not exactly.harmed and not exactly.fails:
        return f"{text}, so it is the networks' error, where no training point ever was, that the weights amplify."
    return f"{text}."


def _distances(found: PaperTable, size: int, apart: float) -> Distances:
    index = [column.size for column in found.columns].index(size)
    first, *_, last = found.rows.values()
    return Distances(first[index].mean or 0.0, last[index].mean or 0.0, apart, max(map(int, found.rows)))
