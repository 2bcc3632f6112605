"""The driver: has the cells computed that a store is missing, and nothing else, by any engine.

An engine that runs in this process computes straight into the store; others are handed jobs, whose parcels are put
into it. A driver that is stopped, by a person, a crash or a time limit, goes on with the same call.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyscore.experiments.cells import ANALYTIC, Cell
from polyscore.experiments.checks import check_experiments
from polyscore.experiments.engines import Engine
from polyscore.experiments.engines.local import Local
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.functions import Module
from polyscore.experiments.jobs import Job, Parcel, adopt, leave, unpack, work
from polyscore.experiments.protocol import digest
from polyscore.experiments.store import Store
from polyscore.experiments.worker import Batch, Event, Listener, Worker
from polyscore.notices import warn

# Networks trained as one program: more do not train faster, and each holds 13 MB with Adam's moments.
MOST_NETWORKS = 90


@dataclass(frozen=True)
class Outcome:
    """What a run achieved."""

    computed: int
    missing: int
    seconds: float


@dataclass(frozen=True)
class Way:
    """How cells are computed.

    Attributes:
        device: of torch; None is the GPU where there is one.
        seconds: stop in time: no training or cell is begun that would outlast this by the pace seen so far, and a
            training that turns out so is abandoned.
        save_samples: keep a few points of every cell of run 0, for pictures.
        networks: trained together; fewer make more, smaller jobs.
        imports: modules that register what specs name, imported by workers too.
    """

    device: str | None = None
    seconds: float | None = None
    save_samples: bool = False
    networks: int = MOST_NETWORKS
    imports: tuple[Module, ...] = ()


def run(
    experiments: Sequence[Experiment],
    store: Store,
    engine: Engine | None = None,
    *,
    listener: Listener | None = None,
    task: Callable[[Job], Parcel] | None = None,
    **way: object,
) -> Outcome:
    """Compute the missing cells of `experiments` on an engine; by default in this process, batch after batch.

    Args:
        listener: called after every cell or job, and now and then while training here.
        task: what a worker does with a job; with one, jobs are handed out in this process too.
        way: fields of `Way`.
    """
    started, how = time.monotonic(), Way(**way)  # type: ignore[arg-type]
    check_experiments(experiments)
    engine = engine or Local()
    with store.writing():
        computed = adopt(store)
        total = missing_cells(experiments, store) + computed
        tell = listener or (lambda event: None)
        if task is None and isinstance(engine, Local) and engine.workers == 1:
            computed += _here(experiments, store, how, tell, total)
        else:
            for done in _handed_out(experiments, store, engine, how, task or work):
                computed += done
                tell(Event("jobs", computed, total))
    return Outcome(computed, missing_cells(experiments, store), time.monotonic() - started)


def missing_cells(experiments: Sequence[Experiment], store: Store) -> int:
    """Return how many cells of the experiments have no record; a cell that two share counts once."""
    return len({e.key(cell) for e in experiments for cell in store.missing(e.cells(), e.key)})


def _here(experiments: Sequence[Experiment], store: Store, way: Way, tell: Listener, total: int) -> int:
    """Compute in this process; a training that does not fit leaves time for what does."""
    worker = Worker(store, way.device, way.seconds, way.save_samples, tell, total)
    for batch in batches(experiments, store, way.networks):
        if not worker.compute(batch) and worker.clock.is_late(time.monotonic()):
            break
    return worker.computed


def _handed_out(
    experiments: Sequence[Experiment], store: Store, engine: Engine, way: Way, task: Callable[[Job], Parcel]
) -> Iterator[int]:
    """Hand jobs to an engine and put what comes back into the store; yields how many records were new."""
    until = None if way.seconds is None else time.time() + way.seconds
    folder = store.subfolder("workers")
    jobs = [_job(batch, folder, way, until) for batch in batches(experiments, store, way.networks)]
    ours = {job.folder for job in jobs}
    for parcel in engine.map(task, jobs) if jobs else ():
        new = unpack(parcel, store)
        if parcel.folder in ours:
            shutil.rmtree(parcel.folder, ignore_errors=True)
        for text in parcel.warnings:  # a worker's own output goes to logs that nobody reads
            warn(text)
        yield new
    leave(store)


def _job(batch: Batch, folder: Path, way: Way, until: float | None) -> Job:
    name = digest([batch.experiment.key(cell) for cell in batch.cells])
    while (folder / name / "store.json").exists():  # of a damaged one that could not be taken over
        name += "-next"
    place = str((folder / name).resolve())
    return Job(batch.cells, batch.experiment, place, way.device, until, way.save_samples, way.imports)


def batches(experiments: Sequence[Experiment], store: Store, networks: int = MOST_NETWORKS) -> Iterator[Batch]:
    """Yield batches of missing cells: each of one family and kind of model, of as many runs as train together.

    Args:
        networks: trained together at most, unless one run alone needs more; fewer give more, smaller batches.
    """
    taken: set[str] = set()
    for experiment in experiments:
        # Experiments of a family may share cells, such as the analytic ones.
        missing = [c for c in store.missing(experiment.cells(), experiment.key) if experiment.key(c) not in taken]
        taken.update(map(experiment.key, missing))
        for kind in sorted(experiment.models, key=lambda kind: kind != ANALYTIC):
            yield from _split([cell for cell in missing if cell.models == kind], experiment, kind, networks)


def _split(cells: list[Cell], experiment: Experiment, kind: str, networks: int) -> Iterator[Batch]:
    """Cut cells of one kind by runs."""
    runs = sorted({cell.run for cell in cells})
    options = experiment.networks.get(kind, {})
    each = len(experiment.targets) if options.get("model", kind) == "separate" else 1
    each *= options.get("ensemble", 1)
    at_once = max(1, networks // (max(1, len({cell.train_size for cell in cells})) * each))
    for first in range(0, len(runs), at_once):
        chosen = set(runs[first : first + at_once])
        yield Batch([cell for cell in cells if cell.run in chosen], experiment)
