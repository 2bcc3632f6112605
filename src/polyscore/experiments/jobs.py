"""Jobs: batches of cells that an engine's workers compute, each into a store of its own.

A worker that dies and starts again goes on where its own store ends. What it hands back are records, so machines need
no common file system; where they have one, what a killed driver leaves in `workers/` is taken over at the next start.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyscore.errors import DegeneracyWarning, PolyscoreWarning
from polyscore.experiments import samples
from polyscore.experiments.cells import Cell, Experiment, Protocol, digest
from polyscore.experiments.engines import Engine
from polyscore.experiments.runner import MOST_NETWORKS, Batch, Event, Listener, Outcome, Worker, batches, missing_cells
from polyscore.experiments.store import Record, Store


@dataclass(frozen=True)
class Job:
    """A batch, and how to compute it.

    Attributes:
        folder: of the worker's own store; made where the worker runs.
        until: wall-clock time at which to stop.
    """

    cells: list[Cell]
    protocol: Protocol
    folder: str
    device: str | None = None
    until: float | None = None
    save_samples: bool = False


@dataclass(frozen=True)
class Parcel:
    """What a worker hands back: records as lines, their protocols, thumbnails by file name, and what it warned of."""

    folder: str
    records: list[str]
    protocols: dict[str, dict[str, Any]]
    samples: dict[str, str]
    warnings: tuple[str, ...] = ()


def work(job: Job) -> Parcel:
    """Compute a job's missing cells into its own store and hand all of it back."""
    store, shared = _own(Path(job.folder))
    seconds = None if job.until is None else job.until - time.time()
    with store.writing(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PolyscoreWarning)
        missing = store.missing(job.cells, job.protocol)
        if missing:
            Worker(store, job.device, seconds, job.save_samples, None, len(missing)).compute(
                Batch(missing, job.protocol)
            )
    ours = dict.fromkeys(str(w.message) for w in told if issubclass(w.category, PolyscoreWarning))
    for other in (w for w in told if not issubclass(w.category, PolyscoreWarning)):
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    parcel = dataclasses.replace(pack(store), warnings=tuple(ours))
    if not shared:  # the driver cannot see it to delete it
        shutil.rmtree(store.path, ignore_errors=True)
    return parcel


def _own(folder: Path) -> tuple[Store, bool]:
    """The worker's store, and whether the driver sees it; a machine with a disk of its own uses a temporary place."""
    shared = folder.parent.is_dir()  # made by the driver, and on no other disk
    return Store(folder if shared else Path(tempfile.gettempdir()) / "polyscore-workers" / folder.name), shared


def pack(store: Store) -> Parcel:
    """Return all of a store's content as a parcel."""
    files = sorted((store.path / "samples").glob("*.jsonl"))
    lines = [record.line() for record in store.records.values()]
    return Parcel(str(store.path), lines, store.protocols(), {file.name: file.read_text() for file in files})


def unpack(parcel: Parcel, store: Store) -> int:
    """Put a parcel into a store, then delete the worker's; return how many records were new."""
    new = store.add_records((Record.parse(line) for line in parcel.records), parcel.protocols)
    with tempfile.TemporaryDirectory() as place:
        for name, text in parcel.samples.items():
            (Path(place) / "samples").mkdir(exist_ok=True)
            (Path(place) / "samples" / name).write_text(text)
        if parcel.samples:
            (Path(place) / "store.json").write_text((store.path / "store.json").read_text())
            samples.merge(store, Store(place))
    shutil.rmtree(parcel.folder, ignore_errors=True)
    return new


def run_jobs(
    experiments: Sequence[Experiment],
    store: Store,
    engine: Engine,
    *,
    device: str | None = None,
    seconds: float | None = None,
    save_samples: bool = False,
    networks: int = MOST_NETWORKS,
    listener: Listener | None = None,
    task: Callable[[Job], Parcel] = work,
) -> Outcome:
    """Compute the missing cells of `experiments` on an engine; `runner.run` for one process does the same.

    Args:
        networks: trained together in one job; fewer make more jobs.
        task: what a worker does with a job.
    """
    started, tell = time.monotonic(), listener or (lambda event: None)
    until = None if seconds is None else time.time() + seconds
    with store.writing():
        computed = adopt(store)
        total = missing_cells(experiments, store) + computed
        folder = store.subfolder("workers")
        jobs = [_job(batch, folder, device, until, save_samples) for batch in batches(experiments, store, networks)]
        for parcel in engine.map(task, jobs) if jobs else ():
            computed += unpack(parcel, store)
            for text in parcel.warnings:  # a worker's own output goes to logs that nobody reads
                warnings.warn(text, DegeneracyWarning, stacklevel=2)
            tell(Event(f"{len(jobs)} jobs", computed, total))
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(computed, missing_cells(experiments, store), time.monotonic() - started)


def adopt(store: Store) -> int:
    """Take over what workers of a killed driver left behind; one that still runs is named by the error."""
    return sum(_adopt(left, store) for left in left_behind(store))


def left_behind(store: Store) -> list[Store]:
    """Return the stores of workers that were not handed over; one killed before its first record has none."""
    folders = sorted((store.path / "workers").glob("*"))
    return [Store(folder) for folder in folders if (folder / "store.json").exists()]


def _adopt(left: Store, store: Store) -> int:
    with left.writing():
        return unpack(pack(left), store)


def _job(batch: Batch, folder: Path, device: str | None, until: float | None, save_samples: bool) -> Job:
    name = digest([cell.key(batch.protocol) for cell in batch.cells])
    return Job(batch.cells, batch.protocol, str((folder / name).resolve()), device, until, save_samples)
