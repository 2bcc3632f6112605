"""Experiments so small that a test can afford them, and tasks that die."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from polyscore import paper
from polyscore.experiments.driver import run
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.jobs import Job, Parcel, work
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.store import Store

PROTOCOL = dataclasses.replace(paper.PROTOCOL, swarms=64, steps=5, projections=16, train_steps=10, width=8, depth=1)


def experiment(models: str = "conditional", runs: int = 2, setting: str = "gaussian-factorized-ood") -> Experiment:
    return paper.experiment(setting, models, train_sizes=(20, 50), particles=(1, 4), runs=runs, protocol=PROTOCOL)


def spec_text(experiments: Mapping[str, Experiment]) -> str:
    """Return the YAML of experiments on the paper's settings, with every default written out."""
    lists = ("models", "train_sizes", "particles", "metrics")
    entries = {
        name: {"family": e.family, "runs": e.runs, "conditions_alone": e.conditions_alone}
        | {key: list(getattr(e, key)) for key in lists}
        | {"protocol": {key: v for key, v in vars(e.protocol).items() if key in Protocol.names() and key != "content"}}
        for name, e in experiments.items()
    }
    return yaml.safe_dump({"experiments": entries}, sort_keys=False)


def filled(path: Path, *experiments: Experiment) -> Store:
    store = Store(path)
    run(experiments or [experiment()], store, device="cpu", save_samples=True)
    return store


def results(store: Store) -> dict[str, dict[str, float]]:
    return {key: record.results for key, record in store.records.items()}


def dying(marker: str) -> Callable[[Job], Parcel]:
    """Return a task whose first call is killed when half of its cells are stored."""

    def task(job: Job) -> Parcel:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return work(job)
        work(dataclasses.replace(job, cells=job.cells[: len(job.cells) // 2]))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    return task


@dataclasses.dataclass(frozen=True)
class Dying:
    """`dying` for engines that pickle by reference."""

    marker: str

    def __call__(self, job: Job) -> Parcel:
        return dying(self.marker)(job)


def always_dying(job: Job) -> Parcel:
    os._exit(1)


def sleeping() -> Callable[[float], int]:
    """Return a task that sleeps, then says who did; a closure travels where this module is not."""

    def task(seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    return task
