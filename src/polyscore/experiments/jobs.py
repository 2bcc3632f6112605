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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyscore.errors import PolyscoreWarning
from polyscore.experiments import thumbnails
from polyscore.experiments.cells import Cell
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.functions import Module
from polyscore.experiments.lock import HeldError, StoreError
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store
from polyscore.experiments.worker import Batch, Worker
from polyscore.notices import warn


@dataclass(frozen=True)
class Job:
    """A batch, and how to compute it.

    Attributes:
        folder: of the worker's own store; made where the worker runs.
        until: wall-clock time at which to stop.
        imports: modules of the driver's user that register what the experiment names.
    """

    cells: list[Cell]
    experiment: Experiment
    folder: str
    device: str | None = None
    until: float | None = None
    save_samples: bool = False
    imports: tuple[Module, ...] = ()


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
    for module in job.imports:
        module.load()
    store, shared = _own(Path(job.folder))
    seconds = None if job.until is None else job.until - time.time()
    with store.writing(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PolyscoreWarning)
        missing = store.missing(job.cells, job.experiment.key)
        if missing:
            worker = Worker(store, job.device, seconds, job.save_samples, None, len(missing))
            worker.compute(Batch(missing, job.experiment))
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
    return Parcel(str(store.path), lines, store.protocols(), thumbnails.pack(store))


def unpack(parcel: Parcel, store: Store) -> int:
    """Put a parcel into a store; return how many records were new."""
    records = []
    for line in parcel.records:
        with contextlib.suppress(ValueError):
            records.append(Record.parse(line))
    if len(records) < len(parcel.records):
        warn(f"every record of a worker must be whole; {len(parcel.records) - len(records)} were not and are passed "
             "over. Their cells are computed again at the next start.")  # fmt: skip
    new = store.add_records(records, parcel.protocols)
    thumbnails.unpack(store, parcel.samples)
    return new


def adopt(store: Store) -> int:
    """Take over what workers of a killed driver left behind; one that still runs is named by the error."""
    for folder in store.folders("workers"):
        if all(entry.name.startswith(".") for entry in folder.iterdir()):  # killed before its first record
            shutil.rmtree(folder, ignore_errors=True)
    new = sum(_adopt(left, store) for left in left_behind(store))
    leave(store)
    return new


def leave(store: Store) -> None:
    """Remove the workers' folder where it is empty; what could not be taken over stays."""
    with contextlib.suppress(OSError):
        (store.path / "workers").rmdir()


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
        warn(
            f"a worker's folder must be a whole store; {folder} is not ({error}), and stays as it is. Delete it to "
            "compute its cells again."
        )
