"""Several runners on one store, killed and stopped ones: named within seconds, nothing lost, nothing doubled."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from faults.children import Child
from faults.stores import cells, fake, result
from faults.tally import Tally
from polyscore.errors import DegeneracyWarning
from polyscore.experiments.cells import Cell
from polyscore.experiments.lock import HeldError, StoreError
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store
from small import PROTOCOL, results


def writer(path: Path, runs: int = 300, patience: float = 60.0) -> Child:
    """A process that appends results as fast as it can, and tries again where the store is held."""

    def work(say: Callable[[str], None]) -> None:
        until = time.monotonic() + patience
        while True:
            try:
                store = Store(path)
                with store.writing():
                    say("holding")
                    for cell in store.missing(cells(runs), partial(Cell.key, protocol=PROTOCOL)):
                        store.add(cell, PROTOCOL, result(cell), {})
                    return
            except HeldError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.005)

    return Child(work)


def holding(path: Path, runs: int = 1000) -> Child:
    """A writer that holds the store."""
    process = writer(path, runs)
    assert process.hear() == "holding"
    return process


def lines(path: Path) -> list[str]:
    return [line for file in (path / "records").glob("*.jsonl") for line in file.read_text().splitlines()]


def whole(path: Path) -> set[str]:
    """Keys of the lines that are whole on disk now."""
    found = set()
    for line in lines(path):
        with contextlib.suppress(ValueError):
            found.add(Record.parse(line).key)
    return found


def quietly(path: Path) -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = Store(path)
        assert store.records is not None
    return store


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_killed_at_random_moments_again_and_again(tmp_path: Path, kind: signal.Signals, tally: Tally) -> None:
    """Every line that was whole before a kill is there after all of them."""
    source, before = random.Random(int(kind)), set[str]()
    for _ in range(8):
        process = holding(tmp_path / "store")
        time.sleep(source.uniform(0.0, 0.1))
        process.send(kind)
        process.wait()
        assert process.status == -kind
        tally.add("kills")
        tally.add("dead locks")
        now = whole(tmp_path / "store")
        tally.lost(before - now)
        before = now
    store = quietly(tmp_path / "store")
    tally.lost(before - store.records.keys())
    expected = {cell.key(PROTOCOL): result(cell) for cell in cells(1000) if cell.key(PROTOCOL) in before}
    tally.wrong([key for key in before if store.records[key].results != expected[key]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with store.writing():
            store.add(next(cells(1)), PROTOCOL, result(next(cells(1))), {})


@pytest.mark.parametrize(("count", "kind"), [(2, "two writers"), (3, "three writers")])
def test_writers_at_once_take_turns(tmp_path: Path, count: int, kind: str, tally: Tally) -> None:
    processes = [writer(tmp_path / "store", runs=40) for _ in range(count)]
    said = [process.wait() for process in processes]
    tally.add(kind)
    assert [process.status for process in processes] == [0] * count, said
    expected = {cell.key(PROTOCOL): result(cell) for cell in cells(40)}
    found = results(Store(tmp_path / "store"))  # no damaged line either: that would be a warning
    tally.lost(expected.keys() - found.keys())
    tally.wrong([key for key in found if found[key] != expected[key]])
    assert len(lines(tmp_path / "store")) == len(expected)


def test_a_stopped_holder_is_named_at_once(tmp_path: Path, tally: Tally) -> None:
    process = holding(tmp_path / "store")
    process.send(signal.SIGSTOP)
    named = rf"held by process {process.pid} on {socket.gethostname()}"
    try:
        with pytest.raises(HeldError, match=named), quietly(tmp_path / "store").writing():
            pass
        before = whole(tmp_path / "store")
        tally.add("stops")
    finally:
        process.send(signal.SIGCONT)
        process.send(signal.SIGKILL)
        process.wait()
    tally.lost(before - quietly(tmp_path / "store").records.keys())


def test_a_holder_that_hides_its_name_is_still_named_as_one(tmp_path: Path, tally: Tally) -> None:
    """What stands in the lock is somebody's text: cut, and harmless to a terminal."""
    store = fake(tmp_path, runs=1)
    for text in (b"", b"\xff\xfe\x00", b"\x1b[2J" * 1000, "process 1 on ü\n".encode()):
        with store.writing():
            (tmp_path / ".lock").write_bytes(text)
            with pytest.raises(HeldError) as told, Store(tmp_path).writing():
                pass
        assert "\x1b" not in str(told.value) and len(str(told.value)) < 800
        tally.add("foreign locks")


def test_a_lock_left_on_another_machine_is_told_of_and_taken(tmp_path: Path, tally: Tally) -> None:
    """Killed there, it could not clear its name; the file system says that nobody holds it."""
    store = fake(tmp_path, runs=1)
    before = results(store)
    (tmp_path / ".lock").write_text("process 4711 on another-machine\n")
    with pytest.warns(DegeneracyWarning, match="process 4711 on another-machine, which held"), store.writing():
        pass
    tally.add("foreign locks")
    with store.writing():  # told once: the name is cleared
        pass
    assert (tmp_path / ".lock").read_text() == ""
    tally.lost(before.keys() - results(Store(tmp_path)).keys())


def test_a_dead_lock_of_this_machine_is_taken_in_silence(tmp_path: Path, tally: Tally) -> None:
    store = fake(tmp_path, runs=1)
    (tmp_path / ".lock").write_text(f"process 999999999 on {socket.gethostname()}\n")
    tally.add("dead locks")
    with store.writing():
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tally: Tally
) -> None:
    store = fake(tmp_path, runs=1)

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("polyscore.experiments.lock.fcntl.flock", refuse)
    tally.add("foreign locks")
    with pytest.raises(StoreError, match="must be on a file system that locks files"), store.writing():
        pass


def test_two_that_lock_nothing_do_work_twice_and_lose_none(tmp_path: Path, tally: Tally) -> None:
    """Where locks do not reach (some network file systems), lines of two writers stand side by side."""
    one, two = Store(tmp_path), Store(tmp_path)
    for left, right in zip(cells(10), reversed(list(cells(10))), strict=True):
        one.add(left, PROTOCOL, result(left), {})
        two.add(right, PROTOCOL, result(right), {})
    tally.add("two writers")
    expected = {cell.key(PROTOCOL): result(cell) for cell in cells(10)}
    found = results(Store(tmp_path))
    tally.lost(expected.keys() - found.keys())
    tally.wrong([key for key in found if found[key] != expected[key]])
