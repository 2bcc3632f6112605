"""The paper's catastrophe in small: factorized conditionals, composed out of distribution, with learned scores.

Naive denoising (K = 1), Feynman–Kac correction (K = 16, the library's defaults) and the exact composition side by side.
With exact scores correction is right; with learned ones it amplifies their error where no training point ever was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyscore.algebra import base_composition
from polyscore.experiments import samples
from polyscore.experiments.cells import Cell, Experiment, quick
from polyscore.experiments.report import Opening, write_report
from polyscore.experiments.runner import Event, Worker, batches, missing_cells
from polyscore.experiments.store import Store
from polyscore.experiments.tables import Entry, Table, table
from polyscore.files.atomic import check_directory
from polyscore.paper.demo.scenes import HARMED, Distances, Scene, draw
from polyscore.paper.demo.table import exact_distance
from polyscore.paper.settings import setting
from polyscore.samplers import FeynmanKac
from polyscore.targets import exact

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LearnedDemo:
    """What the demonstration found.

    Attributes:
        scene: the picture and what it shows.
        table: SW2 to the exact composition.
        floor: SW2 between two exact draws of the same size; mean over the runs.
    """

    scene: Scene
    table: Table
    floor: float
    files: list[Path]

    def lines(self) -> list[tuple[str, list[Entry]]]:
        """Return the table's rows with their names."""
        name = {1: "naive (K = 1)"}
        return [(name.get(k, f"Feynman–Kac (K = {k})"), row) for k, row in self.table.rows.items()]

    def distances(self, size: int) -> Distances:
        """Return the distances of one train size; 0 is exact scores."""
        return _distances(self.table, size, self.floor)

    def ratios(self) -> dict[int, float]:
        """Return, by train size, the distance at the largest K over that at the smallest: above 1, correction harms."""
        found = {size: self.distances(size) for size in self.table.columns}
        return {size: one.corrected / (one.naive or 1.0) for size, one in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        rows = [
            {"particles": e.particles, "train_size": e.train_size or "analytic", "mean": e.mean, "std": e.std,
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


def experiment(seed: int = 1, tiny: bool = False) -> Experiment:
    """Return the demonstration's experiment; `tiny` is for looking at the output, not at its numbers."""
    small = dataclasses.replace(quick(Experiment(HARMED)), runs=2, train_sizes=(100, 10_000), conditions_alone=False)
    ours = FeynmanKac()
    changes: dict[str, Any] = {
        "first_seed": seed, "corrected": True, "swarms": 1000, "steps": ours.steps, "clip": ours.clip,
        "grid": ours.grid, "integrator": ours.integrator, "quadrature": ours.quadrature, "start": ours.start,
    }  # fmt: skip
    if tiny:
        changes |= {"swarms": 128, "steps": 20, "train_steps": 50, "width": 16, "projections": 50}
    return dataclasses.replace(small, protocol=dataclasses.replace(small.protocol, **changes))


def run_learned(
    out: Path | str = "runs/demo",
    seed: int = 1,
    device: str | None = None,
    tiny: bool = False,
    progress: Progress | None = None,
    before: Sequence[Scene] = (),
) -> LearnedDemo:
    """Train, sample and measure into `out`; what an earlier call stored there is not computed again.

    Args:
        out: directory, made if missing; checked before the work begins.
        seed: of the first run; the others follow it.
        progress: called with (done, all, what was done).
        before: scenes that open the report before this one.
    """
    out, chosen = check_directory(out), experiment(seed, tiny)
    store = Store(out / "store")
    tell = progress or (lambda done, total, what: None)
    with _one_thread():
        _compute(chosen, store, device, lambda event: tell(event.done, event.total, event.what))
    found, apart = table(chosen, store), _floor(chosen)
    scene = _scene(out, chosen, store, found, apart)
    opening = [Opening.read(one.heading, one.sentence, one.path) for one in (*before, scene)]
    report = write_report([chosen], store, out, title="Composition, repaired and failing", opening=opening)
    return LearnedDemo(scene, found, apart, [scene.path, *report.files])


def _compute(chosen: Experiment, store: Store, device: str | None, listener: Callable[[Event], None]) -> None:
    with store.writing():
        total = missing_cells([chosen], store)
        worker = Worker(store, device or "cpu", save_samples=True, listener=listener, total=total)
        for batch in batches([chosen], store):
            worker.compute(batch)


def _scene(out: Path, chosen: Experiment, store: Store, found: Table, apart: float) -> Scene:
    """Draw run 0 of the largest train size, and say what the means over the runs show."""
    size, seed = max(chosen.train_sizes), chosen.protocol.first_seed
    learned, exactly = (_distances(found, n, apart) for n in (size, 0))
    path = out / "learned.png"
    cells = [Cell(HARMED, chosen.models, size, 0, k) for k in (1, learned.particles)]
    points = [shown for cell in cells if (shown := samples.load(store, cell, chosen.protocol)) is not None]
    draw(path, HARMED, points, learned, f"learned from {size} points each", seed)
    return Scene("With learned scores", explain(learned, exactly, size), path)


def explain(learned: Distances, exactly: Distances, size: int) -> str:
    """Return what correction does with learned scores, beside what it does with exact ones."""
    aside = f"Scores were learned from {size} points a condition; with exact ones the same corrected sampler is at "
    text = f"{learned.sentence()} {aside}{exactly.corrected:.2f}"
    if learned.harmed and not exactly.harmed and not exactly.fails:
        return f"{text}, so it is the networks' error, where no training point ever was, that the weights amplify."
    return f"{text}."


def _distances(found: Table, size: int, apart: float) -> Distances:
    index, (first, *_, last) = found.columns.index(size), found.rows.values()
    return Distances(first[index].mean or 0.0, last[index].mean or 0.0, apart, max(found.rows))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small lose more to the threads' waiting for each other than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _floor(chosen: Experiment) -> float:
    """SW2 between two exact draws: what a perfect sampler would show."""
    protocol = chosen.protocol
    seeds = range(protocol.first_seed, protocol.first_seed + chosen.runs)
    return exact_distance(exact(base_composition(setting(HARMED))), protocol.swarms, protocol.projections, seeds)
