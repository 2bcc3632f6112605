"""Run the demonstration: its experiments by the one driver into a store, then pictures, tables and the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from polyscore.experiments.driver import run
from polyscore.experiments.engines.local import Local
from polyscore.experiments.store import Store
from polyscore.files.atomic import check_directory
from polyscore.paper.demo.exact_part import ExactPart, exact_part
from polyscore.paper.demo.experiments import analytic_experiments, learned_experiment
from polyscore.paper.demo.learned import LearnedPart, learned_part
from polyscore.paper.report import Opening, write_paper_report

Tell = Callable[[int, int, str], None]
PARTS = ("analytic", "learned")


@dataclass(frozen=True)
class Demo:
    """What the demonstration found, part by part; None where a part was not asked for."""

    analytic: ExactPart | None
    learned: LearnedPart | None
    report: list[Path]

    @property
    def parts(self) -> dict[str, ExactPart | LearnedPart]:
        """The parts that were asked for, in order."""
        both = {"analytic": self.analytic, "learned": self.learned}
        return {name: part for name, part in both.items() if part is not None}


def run_demo(
    out: Path | str = "runs/demo",
    seed: int = 1,
    device: str | None = None,
    tiny: bool = False,
    progress: Tell | None = None,
    parts: Collection[str] = PARTS,
) -> Demo:
    """Train, sample and measure into `out`; what an earlier call stored there is not computed again.

    Args:
        out: directory, made if missing; checked before the work begins.
        seed: of the first run; the others follow it.
        tiny: sizes for a look at the output, not at its numbers.
        progress: called with (done, all, what was done).
        parts: "analytic" (exact scores) and "learned" (scores learned on the spot).
    """
    out, tell = check_directory(out), progress or (lambda done, total, what: None)
    exactly = analytic_experiments(seed, tiny) if "analytic" in parts else {}
    learning = [learned_experiment(seed, tiny)] if "learned" in parts else []
    chosen = [*learning, *(e for pair in exactly.values() for e in pair)]
    store, engine = Store(out / "store"), Local(1 if tiny or device not in (None, "cpu") else _cores())
    with _one_thread():
        run(chosen, store, engine, device=device or "cpu", save_samples=True, networks=2,
            listener=lambda event: tell(event.done, event.total, event.what))  # fmt: skip
    first = exact_part(out, exactly, store, tiny) if exactly else None
    second = learned_part(out, learning[0], store) if learning else None
    scenes = [part.scene for part in (first, second) if part]
    opening = [Opening.read(one.heading, one.sentence, one.path) for one in scenes]
    written = write_paper_report(chosen, store, out, title="Composition, repaired and failing", opening=opening)
    return Demo(first, second, written.files)


def _cores() -> int:
    """Two processes of one thread beat one of two on small tensors."""
    return min(2, os.cpu_count() or 1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small lose more to the threads' waiting for each other than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
