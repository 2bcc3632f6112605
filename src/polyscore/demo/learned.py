"""The paper's catastrophe in small: factorized conditionals, composed out of distribution, with learned scores.

Naive denoising (K = 1), Feynman–Kac correction (K = 16) and the exact composition side by side. With analytic scores
correction works; with learned ones it amplifies their error where no training point ever was.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polyscore.algebra import Family, base_composition
from polyscore.experiments.cells import Experiment, quick
from polyscore.experiments.compute import Model, train
from polyscore.experiments.papers.settings import setting
from polyscore.experiments.report import write_report
from polyscore.experiments.runner import Event, Worker, batches, missing_cells
from polyscore.experiments.store import Store
from polyscore.experiments.tables import Entry, Table, table
from polyscore.files import check_directory
from polyscore.metrics import sliced_wasserstein
from polyscore.rng import derive
from polyscore.targets import exact

SETTING = "gaussian-factorized-ood"
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LearnedDemo:
    """What the demonstration found.

    Attributes:
        table: SW2 to the exact composition.
        floor: SW2 between two exact draws of the same size; mean over the runs.
    """

    table: Table
    floor: float
    files: list[Path]

    def lines(self) -> list[tuple[str, list[Entry]]]:
        """Return the table's rows with their names."""
        name = {1: "naive (K = 1)"}
        return [(name.get(k, f"Feynman–Kac (K = {k})"), row) for k, row in self.table.rows.items()]

    def ratios(self) -> dict[int, float]:
        """Return, by train size, the distance at the largest K over that at the smallest: above 1, correction harms."""
        rows = list(self.table.rows.values())
        ends = zip(self.table.columns, rows[0], rows[-1], strict=True)
        return {size: (last.mean or 0.0) / (first.mean or 1.0) for size, first, last in ends}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        rows = [
            {"particles": e.particles, "train_size": e.train_size or "analytic", "mean": e.mean, "std": e.std,
             "runs": e.runs, "published": e.published and e.published.mean}
            for e in self.table.entries
        ]  # fmt: skip
        return {
            "setting": SETTING,
            "rows": rows,
            "exact": self.floor,
            "ratios": self.ratios(),
            "files": [str(path) for path in self.files],
        }


def experiment(seed: int = 1, tiny: bool = False) -> Experiment:
    """Return the demonstration's experiment; `tiny` is for looking at the output, not at its numbers."""
    small = dataclasses.replace(quick(Experiment(SETTING)), runs=2, train_sizes=(100, 10_000))
    changes: dict[str, Any] = {"first_seed": seed}
    if tiny:
        changes |= {"swarms": 128, "steps": 20, "train_steps": 50, "width": 16, "projections": 50}
    return dataclasses.replace(small, protocol=dataclasses.replace(small.protocol, **changes))


def run_learned(
    out: Path | str = "runs/demo",
    seed: int = 1,
    device: str | None = None,
    tiny: bool = False,
    progress: Progress | None = None,
) -> LearnedDemo:
    """Train, sample and measure into `out`; what an earlier call stored there is not computed again.

    Args:
        out: directory, made if missing; checked before the work begins.
        seed: of the first run; the others follow it.
        progress: called with (done, all, what was done).
    """
    out, chosen = check_directory(out), experiment(seed, tiny)
    store = Store(out / "store")
    tell = progress or (lambda done, total, what: None)
    with _one_thread():
        family = _compute(chosen, store, device, lambda event: tell(event.done, event.total, event.what))
        report = write_report([chosen], store, out, family, "Composition out of distribution, in small")
    return LearnedDemo(table(chosen, store), _floor(chosen), [*report.files, out / "figures" / "figure1.png"])


def _compute(chosen: Experiment, store: Store, device: str | None, listener: Callable[[Event], None]) -> Family:
    """Fill the store; return the model of the largest train size, for the figure."""
    wanted: Model = (SETTING, chosen.models, max(chosen.train_sizes), 0)
    with store.writing():
        total = missing_cells([chosen], store)
        worker = Worker(store, device or "cpu", save_samples=True, listener=listener, total=total)
        for batch in batches([chosen], store):
            worker.compute(batch)
    found = worker.families.get(wanted)
    return found if found is not None else train([wanted], chosen.protocol, worker.device)[wanted]


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
    target, protocol = exact(base_composition(setting(SETTING))), chosen.protocol
    distances = []
    for run in range(chosen.runs):
        draws = [target.sample(protocol.swarms, derive(protocol.first_seed + run, "floor", k)) for k in (0, 1)]
        distances.append(sliced_wasserstein(draws[0], draws[1], protocol.projections, run))
    return statistics.fmean(distances)
