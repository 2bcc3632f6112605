"""What disks do: cut files short, flip bits, run full, refuse to be written. A record is whole or computed again."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from faults.children import Child, as_nobody
from faults.stores import SETTING, cells, fake, result, tree
from faults.tally import Tally
from polyscore.errors import OutputError, PolyscoreError
from polyscore.experiments.cells import Cell
from polyscore.experiments.lock import StoreError
from polyscore.experiments.store import Store
from polyscore.files.atomic import write_bytes
from small import PROTOCOL, results

FILES = ("records", "protocols", "store.json")


def read(path: Path) -> dict[str, dict[str, float]] | None:
    """What a store holds, or None where it says that it cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            store = Store(path)
            assert set(store.protocols()) <= {PROTOCOL.key}
            return results(store)
        except StoreError:
            return None


def changed(path: Path, whole: dict[str, Any], contents: Iterator[tuple[str, bytes]], file: Path) -> list[str]:
    """Where a damaged file changes a result, or is told of by something else than an error of ours."""
    kept, bad = file.read_bytes(), []
    for what, content in contents:
        file.write_bytes(content)
        try:
            found = read(path)
            if found is not None and not found.items() <= whole.items():
                bad.append(what)
        except Exception as error:
            bad.append(f"{what}: {error!r:.100}")
    file.write_bytes(kept)
    return bad


def flipped(content: bytes, places: list[tuple[int, int]]) -> Iterator[tuple[str, bytes]]:
    for byte, bit in places:
        broken = bytearray(content)
        broken[byte] ^= 1 << bit
        yield f"bit {bit} of byte {byte}", bytes(broken)


@pytest.fixture
def store(memory: Path) -> Store:
    return fake(memory / "store", runs=1)


def files_of(store: Store) -> list[Path]:
    return [path for path in sorted(store.path.rglob("*.json*")) if path.is_file()]


def test_a_cut_loses_the_line_it_cuts(store: Store, tally: Tally) -> None:
    """Every length of every file; of records, those before the cut are all there."""
    whole = results(store)
    for file in files_of(store):
        content = file.read_bytes()
        cuts = range(0, len(content), 1 if len(content) < 3000 else 7)
        tally.add("truncations", len(cuts))
        tally.wrong(changed(store.path, whole, ((f"{file} at {n}", content[:n]) for n in cuts), file))
        for n in cuts if file.suffix == ".jsonl" else ():
            file.write_bytes(content[:n])
            kept = [line for line in content[:n].split(b"\n")[:-1] if line]
            found = read(store.path)
            others = sum(len(other.read_bytes().splitlines()) for other in files_of(store)
                         if other != file and other.suffix == ".jsonl")  # fmt: skip
            tally.lost([] if found is not None and len(found) >= len(kept) + others else [f"{file} at {n}"])
        file.write_bytes(content)


def test_a_flipped_bit_changes_no_result(store: Store, tally: Tally) -> None:
    whole, source = results(store), random.Random(0)
    for file in files_of(store):
        content = file.read_bytes()
        places = [(source.randrange(len(content)), source.randrange(8)) for _ in range(500)]
        if len(content) < 200:
            places = [(byte, bit) for byte in range(len(content)) for bit in range(8)]

        tally.add("flips", len(places))
        tally.wrong(changed(store.path, whole, flipped(content, places), file))


def test_after_any_cut_the_next_writer_goes_on(store: Store, tally: Tally) -> None:
    whole = results(store)
    file = store.path / "records" / f"{SETTING}-analytic.jsonl"
    content = file.read_bytes()
    for n in range(0, len(content), 41):
        file.write_bytes(content[:n])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = Store(store.path)
            with again.writing():
                for cell in again.missing(cells(1), partial(Cell.key, protocol=PROTOCOL)):
                    again.add(cell, PROTOCOL, result(cell), {})
        tally.add("truncations")
        found = read(store.path) or {}
        tally.lost(whole.keys() - found.keys())
        tally.wrong([key for key in found if found[key] != whole[key]])


@pytest.mark.parametrize("size", [1500, 2000, 2001, 2345])
def test_a_disk_that_fills_in_the_middle_of_a_line(tmp_path: Path, size: int, tally: Tally) -> None:
    """The kernel writes what fits and refuses the rest: a limit on a file's size does the same as a full disk."""

    def fill(say: Callable[[str], None]) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = Store(tmp_path / "store")
        with store.writing():
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            try:
                for cell in cells(40):
                    store.add(cell, PROTOCOL, result(cell), {})
            except StoreError as error:
                say(f"{len(store.records)} {error}")

    (said,) = Child(fill).wait()
    tally.add("full disks")
    assert "appending to" in said and "What was stored before is safe" in said
    stored = int(said.split()[0])
    found = read(tmp_path / "store") or {}
    tally.lost(range(max(0, stored - len(found))))
    again = Store(tmp_path / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in again.missing(cells(40), partial(Cell.key, protocol=PROTOCOL)):
            again.add(cell, PROTOCOL, result(cell), {})
    found = read(tmp_path / "store") or {}
    expected = {cell.key(PROTOCOL): result(cell) for cell in cells(40)}
    tally.lost(expected.keys() - found.keys())
    tally.wrong([key for key in found if found[key] != expected[key]])


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace", "mkstemp"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, tally: Tally
) -> None:
    file = write_bytes(tmp_path / "model.bin", b"old")
    before = tree(tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    places = {"open": "pathlib.Path.open", "write": "pathlib.Path.write_bytes",
              "fsync": "polyscore.files.atomic.os.fsync", "replace": "polyscore.files.atomic.os.replace",
              "mkstemp": "polyscore.files.atomic.tempfile.mkstemp"}  # fmt: skip
    monkeypatch.setattr(places[call], refuse)
    tally.add("full disks")
    with pytest.raises(OutputError, match=os.strerror(code)):
        write_bytes(file, b"new")
    monkeypatch.undo()
    tally.lost([] if tree(tmp_path) == before else ["the old file"])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_while_a_store_is_made_or_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tally: Tally
) -> None:
    store = fake(tmp_path / "store", runs=1)
    before = results(store)

    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    for name in ("polyscore.experiments.store.os.fsync", "polyscore.files.atomic.os.fsync"):
        monkeypatch.setattr(name, refuse)
    tally.add("full disks", 2)
    with pytest.raises(PolyscoreError, match=os.strerror(code)):
        fake(tmp_path / "new", runs=1)
    with pytest.raises(PolyscoreError, match=os.strerror(code)):
        fake(store.path, runs=2)
    monkeypatch.undo()
    tally.lost(before.keys() - (read(store.path) or {}).keys())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_a_store_of_another_user_is_read_or_named(memory: Path, tally: Tally) -> None:
    """Readable and not writable; then with records that may not be read: never an empty store instead."""
    store = fake(memory / "store", runs=1)
    memory.chmod(0o755)

    def write() -> None:
        with Store(store.path).writing():
            pass

    def read() -> int:
        return len(Store(store.path).records)

    assert as_nobody(read) == "returned 4"
    assert "StoreError: the store must be writable" in as_nobody(write)
    (store.path / "records").chmod(0o700)
    tally.add("forged files", 3)
    assert "StoreError: a store must be readable" in as_nobody(read)
    (store.path / "records").chmod(0o755)
    (store.path / "records" / f"{SETTING}-analytic.jsonl").chmod(0o600)
    assert "StoreError: a store must be readable" in as_nobody(read)
    (store.path / "records" / f"{SETTING}-analytic.jsonl").chmod(0o644)
    store.path.chmod(0o700)
    assert "StoreError: a store must be readable" in as_nobody(read)
