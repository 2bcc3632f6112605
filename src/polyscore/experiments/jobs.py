"""Jobs: batches of cells that an engine's workers compute, each into a store of its own.

A worker that dies and starts again goes on where its own store ends. What it hands back are records, so machines need
no common file system; where they have one, what a killed driver leaves in `workers/` is taken over at the next start.
A parcel is checked line by line like any file, and names nothing that is written to or removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyscore.errors import DegeneracyWarning, PolyscoreWarning
from polyscore.experiments import samples
from polyscore.experiments.cells import Cell, Experiment, Protocol, digest
from polyscore.experiments.engines import Engine
from polyscore.experiments.records import Record
from polyscore.experiments.runner import MOST_NETWORKS, Batch, Event, Listener, Outcome, Worker, batches, missing_cells
from polyscore.experiments.store import HeldError, Store, StoreError


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
    # Made by the driver, so on its disk; of another user it is something else by the same name.
    if _belongs_to_us(folder.parent, stat.S_IWOTH):
        return Store(folder), True
    place = _private(folder.name)
    try:
        return Store(place), False
    except StoreError:  # what is left of an earlier attempt cannot be gone on with
        shutil.rmtree(place, ignore_errors=True)
        return Store(place), False


def _private(name: str) -> Path:
    """A folder under the temporary one that nobody else can write to or has prepared.

    The same each time, so that a worker started again goes on; where somebody has taken its place, a new one.
    """
    place = Path(tempfile.gettempdir()) / f"polyscore-workers-{os.geteuid()}"
    with contextlib.suppress(OSError):
        place.mkdir(0o700, exist_ok=True)
    if _belongs_to_us(place, stat.S_IRWXG | stat.S_IRWXO):
        return place / name
    return Path(tempfile.mkdtemp(prefix="polyscore-workers-"))


def _belongs_to_us(place: Path, forbidden: int) -> bool:
    """Whether a path is a folder of this user's, no link, without some permissions of others."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & forbidden


def pack(store: Store) -> Parcel:
    """Return all of a store's content as a parcel."""
    lines = [record.line() for record in store.records.values()]
    return Parcel(str(store.path), lines, store.protocols(), samples.pack(store))


def unpack(parcel: Parcel, store: Store) -> int:
    """Put a parcel into a store; return how many records were new."""
    records = []
    for line in parcel.records:
        with contextlib.suppress(ValueError):
            records.append(Record.parse(line))
    if len(records) < len(parcel.records):
        _warn(f"every record of a worker must be whole; {len(parcel.records) - len(records)} were not and are passed "
              "over. Their cells are computed again at the next start.")  # fmt: skip
    new = store.add_records(records, parcel.protocols)
    samples.unpack(store, parcel.samples)
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
        ours = {job.folder for job in jobs}
        for parcel in engine.map(task, jobs) if jobs else ():
            computed += unpack(parcel, store)
            if parcel.folder in ours:
                shutil.rmtree(parcel.folder, ignore_errors=True)
            for text in parcel.warnings:  # a worker's own output goes to logs that nobody reads
                warnings.warn(text, DegeneracyWarning, stacklevel=2)
            tell(Event(f"{len(jobs)} jobs", computed, total))
        with contextlib.suppress(OSError):  # not empty: what could not be taken over stays
            folder.rmdir()
    return Outcome(computed, missing_cells(experiments, store), time.monotonic() - started)


def adopt(store: Store) -> int:
    """Take over what workers of a killed driver left behind; one that still runs is named by the error."""
    for folder in store.folders("workers"):
        if all(entry.name.startswith(".") for entry in folder.iterdir()):  # killed before its first record
            shutil.rmtree(folder, ignore_errors=True)
    return sum(_adopt(left, store) for left in left_behind(store))


def left_behind(store: Store) -> list[Store]:
    """Return the stores of workers that were not handed over; one that cannot be read is named and left alone."""
    found = []
    for folder in store.folders("workers"):
        if (folder / "store.json").exists():  # one killed before its first record has none
            with _passing_over(folder):
                found.append(Store(folder))
    return found


def _adopt(left: Store, store: Store) -> int:
    parcel = None
    with contextlib.ExitStack() as held:
        with _passing_over(left.path):
            held.enter_context(left.writing())
            parcel = pack(left)
        if parcel is None:
            return 0
        new = unpack(parcel, store)
        shutil.rmtree(left.path, ignore_errors=True)
        return new


@contextlib.contextmanager
def _passing_over(folder: Path) -> Iterator[None]:
    """Turn what is wrong with a worker's folder into a warning: it must not keep others from working."""
    try:
        yield
    except HeldError:
        raise
    except StoreError as error:
        _warn(f"a worker's folder must be a whole store; {folder} is not, and stays as it is: {error}")


def _warn(message: str) -> None:
    warnings.warn(message, DegeneracyWarning, stacklevel=4)


def _job(batch: Batch, folder: Path, device: str | None, until: float | None, save_samples: bool) -> Job:
    name = digest([cell.key(batch.protocol) for cell in batch.cells])
    while (folder / name / "store.json").exists():  # of a damaged one that could not be taken over
        name += "-next"
    return Job(batch.cells, batch.protocol, str((folder / name).resolve()), device, until, save_samples)
