"""Engines: the same table whoever computes it, dead workers included; what cannot work is refused in seconds."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polyscore.errors import ArgumentError, DegeneracyWarning
from polyscore.experiments import worker
from polyscore.experiments.driver import run
from polyscore.experiments.engines import EngineError, engine
from polyscore.experiments.engines.local import Local
from polyscore.experiments.engines.on_ray import check_answers
from polyscore.experiments.engines.on_slurm import OnSlurm
from polyscore.experiments.jobs import Job, Parcel, work
from polyscore.experiments.store import Store
from polyscore.experiments.worker import Batch, Worker
from polyscore.paper.settings import setting
from polyscore.training import DivergenceError
from small import Dying, always_dying, dying, experiment, filled, results, sleeping


def agree(store: Store, reference: Store) -> None:
    """The same cells with the same numbers; training shares its program with others, so up to rounding."""
    ours, theirs = results(store), results(reference)
    assert ours.keys() == theirs.keys()
    for key, expected in theirs.items():
        assert ours[key] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_jobs_in_process_give_the_runners_table(tmp_path: Path) -> None:
    reference = filled(tmp_path / "reference")
    store = Store(tmp_path / "store")
    seen: list[int] = []
    outcome = run([experiment()], store, Local(), device="cpu", networks=2, task=work,
                  listener=lambda e: seen.append(e.done))  # fmt: skip
    assert outcome.computed == len(reference.records) and outcome.missing == 0
    assert len(seen) == 3 and seen == sorted(seen) and seen[-1] == outcome.computed
    agree(Store(store.path), reference)
    assert not (store.path / "workers").exists()
    assert run([experiment()], store, Local(), device="cpu").computed == 0


def test_a_killed_driver_leaves_its_workers_results_to_the_next(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    done = filled(store.path / "workers" / "left-behind")
    reference = results(done)
    outcome = run([experiment()], store, Local(), device="cpu")
    assert outcome.computed == len(reference) and results(store) == reference
    assert not (store.path / "workers").exists()


@pytest.mark.slow
def test_the_pool_starts_dead_workers_again(tmp_path: Path) -> None:
    reference = filled(tmp_path / "reference")
    store = Store(tmp_path / "store")
    task = Dying(str(tmp_path / "died"))
    outcome = run([experiment()], store, Local(2), device="cpu", networks=2, task=task)
    assert outcome.missing == 0 and (tmp_path / "died").exists()
    agree(store, reference)


@pytest.mark.slow
def test_the_pool_gives_up_on_a_task_that_always_kills_its_worker(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="a worker died 3 times"):
        run([experiment()], Store(tmp_path / "store"), Local(2), device="cpu", task=always_dying)


@pytest.mark.slow
def test_ray_gives_the_full_table_although_a_worker_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    reference = filled(tmp_path / "reference")
    store = Store(tmp_path / "store")
    task = dying(str(tmp_path / "died"))
    outcome = run([experiment()], store, engine("ray", workers=2), device="cpu", networks=2, task=task)
    assert outcome.missing == 0 and (tmp_path / "died").exists()
    agree(store, reference)


@pytest.mark.slow
def test_ray_refuses_gpus_that_do_not_exist(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(EngineError, match=r"GPUs must exist .* got 64"):
        run([experiment()], Store(tmp_path / "store"), engine("ray", workers=1, gpus=64), device="cpu")


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere"])
def test_an_address_that_does_not_answer_is_told_at_once(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(EngineError, match="--address must be"):
        run([experiment()], Store(tmp_path / "store"), engine("ray", address=address), device="cpu")


def test_something_that_is_not_ray_is_told_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that listens and never speaks, and one that speaks another language."""
    monkeypatch.setattr("polyscore.experiments.engines.on_ray._ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(EngineError, match="does not answer"):
            check_answers(f"127.0.0.1:{silent.getsockname()[1]}")

        def speak() -> None:
            while True:
                with contextlib.suppress(OSError):
                    line, _ = silent.accept()
                    line.sendall(b"220 mail ready\r\n")
                    line.recv(100)

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(EngineError, match="something else listens there"):
            check_answers(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.slow
def test_a_real_ray_answers() -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        check_answers(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Let processes started here heed Ctrl-C: what a shell runs in the background, and all it starts, does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_stopping_submitit_cancels_what_runs(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    slurm = OnSlurm(tmp_path / "logs", cluster="local", poll=0.1)
    tasks = slurm.map(sleeping(), [0.5, 60.0])
    assert next(tasks) != os.getpid()
    assert working(tmp_path / "logs")
    with pytest.raises(KeyboardInterrupt):
        tasks.throw(KeyboardInterrupt)
    deadline = time.monotonic() + 20
    while working(tmp_path / "logs") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not working(tmp_path / "logs")


def working(folder: Path) -> list[str]:
    """Processes whose command line names a folder."""
    return subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True).stdout.split()


def test_submitit_in_this_process_gives_the_table(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    store = Store(tmp_path / "store")
    slurm = OnSlurm(tmp_path / "logs", cluster="debug")
    assert run([experiment()], store, slurm, device="cpu", networks=2).missing == 0
    agree(store, filled(tmp_path / "reference"))


@pytest.mark.slow
def test_submitit_submits_a_killed_task_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    store = Store(tmp_path / "store")
    slurm = OnSlurm(tmp_path / "logs", cluster="local", poll=0.2)
    task = dying(str(tmp_path / "died"))
    assert run([experiment()], store, slurm, device="cpu", task=task).missing == 0
    agree(store, filled(tmp_path / "reference"))


def test_slurm_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="sbatch is not on the path"):
        run([experiment()], Store(tmp_path / "store"), OnSlurm(tmp_path / "logs"), device="cpu")


def test_engines_are_known_by_name() -> None:
    with pytest.raises(ArgumentError, match="local, ray, submitit; got 'dask'"):
        engine("dask")
    with pytest.raises(ArgumentError, match="workers must be at least 1"):
        engine("local", workers=0)
    with pytest.raises(ArgumentError, match="a fraction up to 1 or a whole number"):
        engine("ray", gpus=1.5)


def test_no_time_left_begins_nothing(tmp_path: Path) -> None:
    outcome = run([experiment()], Store(tmp_path), device="cpu", seconds=1e-9)
    assert outcome.computed == 0 and outcome.missing == len(set(experiment().cells()))


def test_a_first_training_that_would_outlast_the_limit_is_abandoned(tmp_path: Path) -> None:
    """Nothing is known of its pace before; ten million steps would take an hour."""
    events = []
    long = dataclasses.replace(
        experiment(), models=("conditional",), protocol=dataclasses.replace(experiment().protocol, train_steps=10**7)
    )
    with pytest.warns(DegeneracyWarning, match="conditional: training 4 models must fit into the time limit"):
        outcome = run([long], Store(tmp_path), device="cpu", seconds=0.5, listener=events.append)
    assert outcome.computed == 0 and outcome.missing
    assert 0 < max(event.done for event in events) < 10**7


class FakeTrainings:
    """Trainings of 20 checks, each of 0.1 s of a clock of our own; the first diverges at the twelfth, model 0."""

    def __init__(self, diverges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.diverges, self.sizes = 0.0, diverges, []
        monkeypatch.setattr(worker.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(worker, "train", self)

    def __call__(self, models: list[Any], chosen: Any, device: str, report: Callable[..., None]) -> dict[Any, Any]:
        if models[0][1] == "analytic":
            return {model: setting(model[0]) for model in models}
        self.sizes.append(len(models))
        for check in range(1, 21):
            self.now += 0.1
            if self.diverges and len(self.sizes) == 1 and check == 12:
                raise DivergenceError("the loss must not diverge.", [0])
            report(100 * check, 2000, 1.0)
        return {model: setting(model[0]) for model in models}


def test_a_forecast_starts_anew_after_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.2 s are lost, 2 s are needed, 8 s are there."""
    trainings = FakeTrainings(True, monkeypatch)
    with pytest.warns(DegeneracyWarning, match="N = 20, run 0 stays without results"):
        outcome = run(
            [dataclasses.replace(experiment(), models=("conditional",))], Store(tmp_path), device="cpu", seconds=8.0
        )
    assert trainings.sizes == [4, 3] and outcome.missing == 2


def test_what_fits_is_computed_after_a_training_that_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = FakeTrainings(False, monkeypatch)
    long, quick = (
        dataclasses.replace(experiment(), models=("conditional",)),
        dataclasses.replace(experiment(), train_sizes=()),
    )
    with pytest.warns(DegeneracyWarning, match="must fit into the time limit"):
        outcome = run([long, quick], Store(tmp_path), device="cpu", seconds=1.0)
    assert trainings.sizes == [4] and trainings.now < 1.0
    assert outcome.computed == len(list(quick.cells()))


def test_what_a_worker_warns_of_reaches_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(job: Job) -> Parcel:
        return dataclasses.replace(work(job), warnings=("this cell stays without a result",))

    with pytest.warns(DegeneracyWarning, match="this cell stays without"):
        run([experiment(runs=1)], Store(tmp_path / "store"), Local(), device="cpu", task=warned)

    def silent(self: Worker, batch: Batch) -> bool:
        warnings.warn("a score was not finite", DegeneracyWarning, stacklevel=2)
        return True

    monkeypatch.setattr(Worker, "compute", silent)
    cells = list(experiment().cells())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the worker keeps them to itself
        parcel = work(Job(cells, experiment(), str(tmp_path / "worker"), "cpu"))
    assert parcel.warnings == ("a score was not finite",)


@pytest.mark.parametrize("address", ["a..b:6379", "[::1]:1", "::1:1", "nowhere.invalid:99999"])
def test_odd_addresses_are_refused_not_raised(address: str) -> None:
    with pytest.raises(EngineError, match="--address must be"):
        check_answers(address)


def test_a_worker_without_the_drivers_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    elsewhere = tmp_path / "results" / "paper" / "workers" / "abc"
    parcel = work(Job(list(experiment(runs=1).cells()), experiment(), str(elsewhere), "cpu"))
    assert len(parcel.records) == 9 and "temporary" in parcel.folder
    assert not elsewhere.parent.parent.exists()
    (place,) = (tmp_path / "temporary").glob("polyscore-workers*")
    assert not list(place.iterdir())
