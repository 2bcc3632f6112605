"""An hour of faults: kills at random moments of real runs, writers at once, full disks, damaged and forged files.

    python tests/faults/long.py --minutes 60 [--seed 1]

Each round is one of the attacks below, chosen and made at random; what was computed or stored is compared with an
undisturbed run. Ends with what it counted; the exit code is 1 where anything was lost, wrong or let in.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import polyscore as ps
from faults import tally as counting
from faults.children import Child
from faults.stores import ABOUT, SETTING, body_of, cells, fake, forged, plant, result, tree
from faults.tally import Tally
from faults.test_disks import changed, files_of, flipped, read
from faults.test_models import MEANING, RECIPE, data, refused
from polyscore.errors import PolyscoreError
from polyscore.experiments import thumbnails
from polyscore.experiments.cells import Cell
from polyscore.experiments.driver import run
from polyscore.experiments.engines.local import Local
from polyscore.experiments.jobs import work
from polyscore.experiments.lock import HeldError, StoreError
from polyscore.experiments.protocol import Protocol, digest
from polyscore.experiments.store import Store
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from small import PROTOCOL, experiment, results

NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**18, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "..",
    "../../x", "/etc/passwd", "\x1b[2J", "\n", "\0", "<script>", "é", "\ud800", "x" * 5000, [], [1], [[[]]], {},
    {"a": 1}, {"": None},
)  # fmt: skip
_ROUND = 240  # seconds after which a child is taken for hung


class Faults:
    """The attacks; each takes a fresh folder."""

    def __init__(self, seed: int, place: Path) -> None:
        self.random, self.tally, self.place = random.Random(seed), Tally(), place
        self.experiment = dataclasses.replace(experiment(runs=3), particles=(1, 4))
        self.reference = Store(place / "reference")
        run([self.experiment], self.reference, device="cpu", save_samples=True)
        training = place / "training.safetensors"
        self.models = {"family": ps.fit(data(), **RECIPE, checkpoint=training).save(place / "family"),
                       "training": training}  # fmt: skip
        self.meaning = {kind: MEANING[kind](path) for kind, path in self.models.items()}

    def attacks(self) -> list[Callable[[Path], None]]:
        often = [self.kill_a_runner, self.kill_jobs, self.kill_writers]
        return [*often, *often, self.writers_at_once, self.damage_a_store, self.forge_records, self.forge_store_files,
                self.damage_a_model, self.forge_a_model, self.fill_the_disk, self.kill_a_training]  # fmt: skip

    # Kills

    def _disturb(self, child: Child, longest: float) -> None:
        """Kill a child at a random moment, some after a stop in between; or let it end."""
        time.sleep(self.random.uniform(0, longest))
        with contextlib.suppress(ProcessLookupError):
            if self.random.random() < 0.2:
                child.send(signal.SIGSTOP)
                self.tally.add("stops")
                time.sleep(0.05)
                child.send(signal.SIGCONT)
            child.send(self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        child.wait()
        self.tally.add("kills")

    def _until_done(self, folder: Path, compute: Callable[[Store], Any]) -> None:
        """Disturb runs of a store until one has ended by itself, then compare."""
        before: set[str] = set()

        def work(say: Callable[[str], None]) -> None:
            signal.alarm(_ROUND)
            torch.set_num_threads(1)
            compute(Store(folder))

        for _ in range(self.random.randrange(1, 5)):
            self._disturb(Child(work), self.random.choice([0.05, 0.5, 1.5]))
            now = set(read(folder) or ()) if (folder / "store.json").exists() else set()
            self.tally.lost(before - now)
            before = now
        child = Child(work)
        said = child.wait()
        self.tally.wrong([] if child.status == 0 else [f"a run after kills ended with {child.status}: {said}"])
        self._compare(read(folder) or {})

    def _compare(self, found: dict[str, dict[str, float]]) -> None:
        expected = results(self.reference)
        self.tally.lost(expected.keys() - found.keys())
        for key, values in expected.items():
            apart = [name for name in values if abs(values[name] - found[key][name]) > 1e-4 + 1e-3 * abs(values[name])]
            self.tally.wrong(apart)

    def kill_a_runner(self, folder: Path) -> None:
        self._until_done(folder / "store", lambda store: run([self.experiment], store, device="cpu", save_samples=True))

    def kill_jobs(self, folder: Path) -> None:
        options: dict[str, Any] = {"networks": self.random.choice([1, 2, 90]), "save_samples": True}
        self._until_done(
            folder / "store", lambda store: run([self.experiment], store, Local(), device="cpu", task=work, **options)
        )
        self.tally.lost([] if not (folder / "store" / "workers").exists() else ["a worker's folder was left"])

    def kill_writers(self, folder: Path) -> None:
        before: set[str] = set()
        for _ in range(self.random.randrange(2, 12)):
            self._disturb(Child(_writer(folder / "store", 2000)), 0.1)
            self.tally.add("dead locks")
            now = set(read(folder / "store") or ()) if (folder / "store" / "store.json").exists() else set()
            self.tally.lost(before - now)
            before = now
        expected = {cell.key(PROTOCOL): result(cell) for cell in cells(2000)}
        found = read(folder / "store") or {}
        self.tally.wrong([key for key in found if found[key] != expected[key]])

    def kill_a_training(self, folder: Path) -> None:
        options = {**RECIPE, "steps": 40, "checkpoint_every": 3}
        whole = MEANING["family"](ps.fit(data(), **options).save(folder / "whole"))

        def work(say: Callable[[str], None]) -> None:
            signal.alarm(_ROUND)
            ps.fit(data(), **options, checkpoint=folder / "run").save(folder / "model")

        for _ in range(3):
            self._disturb(Child(work), 0.3)
        child = Child(work)
        said = child.wait()
        self.tally.lost([] if child.status == 0 else [f"a training after kills: {said}"])
        self.tally.wrong([] if MEANING["family"](folder / "model.safetensors") == whole else ["another model"])

    # Writers

    def writers_at_once(self, folder: Path) -> None:
        count, runs = self.random.choice([2, 3]), 30
        children = [Child(_writer(folder / "store", runs)) for _ in range(count)]
        self.tally.add("two writers" if count == 2 else "three writers")
        if self.random.random() < 0.5:
            self._disturb(children.pop(), 0.2)
        if self.random.random() < 0.3:
            with contextlib.suppress(OSError):
                (folder / "store" / ".lock").write_bytes(self.random.randbytes(self.random.randrange(300)))
            self.tally.add("foreign locks")
        for child in children:
            said = child.wait()
            self.tally.lost([] if child.status == 0 else [f"a writer ended with {child.status}: {said}"])
        expected = {cell.key(PROTOCOL): result(cell) for cell in cells(runs)}
        found = read(folder / "store") or {}
        self.tally.lost(expected.keys() - found.keys())
        self.tally.wrong([key for key in found if found[key] != expected[key]])

    # Damage

    def _broken(self, content: bytes, count: int) -> Iterator[tuple[str, bytes]]:
        for _ in range(count):
            at, kind = self.random.randrange(len(content)), self.random.randrange(4)
            if kind == 0:
                self.tally.add("truncations")
                yield f"cut at {at}", content[:at]
            elif kind == 1:
                self.tally.add("forged files")
                noise = self.random.randbytes(self.random.randrange(1, 40))
                yield f"noise at {at}", content[:at] + noise + content[at + len(noise) :]
            elif kind == 2:
                self.tally.add("forged files")
                other = self.random.randrange(len(content))
                yield f"swapped {at}", content[at:] + content[:at][: other + 1]
            else:
                self.tally.add("flips")
                yield next(flipped(content, [(at, self.random.randrange(8))]))

    def damage_a_store(self, folder: Path) -> None:
        store = fake(folder / "store", runs=2)
        thumbnails.keep_points(store, Cell(SETTING, "analytic", 0, 0, 1), PROTOCOL, torch.zeros(5, 2))
        for file in files_of(store):
            whole = results(store)
            self.tally.wrong(changed(store.path, whole, self._broken(file.read_bytes(), 150), file))

    def damage_a_model(self, folder: Path) -> None:
        for kind, path in self.models.items():
            broken = self._broken(path.read_bytes(), 400)
            self.tally.wrong(refused(kind, folder / "broken.safetensors", broken, self.meaning[kind]))

    # Forgery

    def _spoiled(self, value: Any) -> Any:
        """A JSON value with something nasty somewhere in it."""
        if isinstance(value, dict) and value and self.random.random() < 0.8:
            name = self.random.choice(list(value))
            if self.random.random() < 0.1:
                return {key: item for key, item in value.items() if key != name}
            if self.random.random() < 0.1:
                return {**value, "new": self.random.choice(NASTY)}
            return {**value, name: self._spoiled(value[name])}
        if isinstance(value, list) and value and self.random.random() < 0.8:
            at = self.random.randrange(len(value))
            return [*value[:at], self._spoiled(value[at]), *value[at + 1 :]]
        return self.random.choice(NASTY)

    def forge_records(self, folder: Path) -> None:
        """A forged line is believed only under the key of its own cell, with numbers for results."""
        store = fake(folder / "store", runs=1)
        before = results(store)
        good = body_of(Cell(SETTING, "analytic", 0, 9, 1))
        (folder / "outside").mkdir()
        for _ in range(200):
            body = self._spoiled(good)
            if isinstance(body, dict) and isinstance(body.get("cell"), list) and self.random.random() < 0.7:
                with contextlib.suppress(ValueError):
                    body["key"] = digest([body.get("protocol"), *body["cell"]])
            with contextlib.suppress(ValueError):
                plant(store.path, forged(body))
                self.tally.add("forged records")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Store(store.path)
            for key, record in found.records.items():
                mine = record.key == key == record.cell.key_under(record.protocol)
                self.tally.let_in([] if mine and set(map(type, record.results.values())) <= {int, float} else [record])
            self.tally.lost(before.keys() - found.records.keys())
            target = Store(folder / "target")
            target.merge(found)
            thumbnails.merge(target, found)
        inside = {str(folder / "store"), str(folder / "target")}
        self.tally.let_in([path for path in tree(folder) if not any(path.startswith(place) for place in inside)])

    def forge_store_files(self, folder: Path) -> None:
        store = fake(folder / "store", runs=1)
        before = results(store)
        marker = json.loads((store.path / "store.json").read_text())
        for _ in range(40):
            file = self.random.choice([store.path / "store.json", store.path / "protocols" / f"{PROTOCOL.key}.json"])
            kept = file.read_bytes()
            described = marker if file.name == "store.json" else Protocol().to_dict()
            with contextlib.suppress(ValueError):
                file.write_text(json.dumps(self._spoiled(described)), encoding="utf-8")
            self.tally.add("forged files")
            found = read(store.path)
            self.tally.wrong([] if found in (None, before) else [file])
            file.write_bytes(kept)

    def forge_a_model(self, folder: Path) -> None:
        """With its checksum: it loads as what it says, or is refused by an error of ours."""
        tensors, about = read_tensors(self.models["family"])
        for _ in range(60):
            with contextlib.suppress(ValueError, TypeError):
                write_tensors(folder / "forged.safetensors", tensors, self._spoiled(about))
            self.tally.add("forged files")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ps.load(folder / "forged")
            except FileError:
                pass
            except PolyscoreError:
                pass
            except Exception as error:
                self.tally.let_in([f"{error!r:.200}"])

    # Disks

    def fill_the_disk(self, folder: Path) -> None:
        """A file system of 64 kB where one can be mounted, else a limit on the size of files."""
        place = folder / "disk"
        place.mkdir()
        mounted = _mount(place, self.random.randrange(24, 96))
        limit = self.random.randrange(1000, 60_000)

        def work(say: Callable[[str], None]) -> None:
            signal.alarm(_ROUND)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            if not mounted:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            store = Store(place / "store")
            try:
                with store.writing():
                    for cell in cells(2000):
                        store.add(cell, PROTOCOL, result(cell), dict(ABOUT))
            except StoreError:
                say(" ".join(store.records))

        try:
            child = Child(work)
            said = child.wait()
            self.tally.add("full disks")
            self.tally.let_in([] if child.status == 0 else [f"a full disk: {said}"])
            shutil.copytree(place, folder / "copy")
        finally:
            if mounted:
                subprocess.run(["umount", str(place)], check=False)
        stored = set(" ".join(said).split())
        found = read(folder / "copy" / "store") if (folder / "copy" / "store").exists() else {}
        self.tally.lost(stored - (found or {}).keys())
        expected = {cell.key(PROTOCOL): result(cell) for cell in cells(2000)}
        self.tally.wrong([key for key, values in (found or {}).items() if values != expected[key]])


def _writer(path: Path, runs: int) -> Callable[[Callable[[str], None]], None]:
    """What appends results as fast as it can, and tries again where the store is held."""

    def work(say: Callable[[str], None]) -> None:
        signal.alarm(_ROUND)
        while True:
            try:
                store = Store(path)
                with store.writing():
                    for cell in store.missing(cells(runs), partial(Cell.key, protocol=PROTOCOL)):
                        store.add(cell, PROTOCOL, result(cell), {})
                    return
            except HeldError:
                time.sleep(0.005)

    return work


def _mount(place: Path, kilobytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="the name of one attack")
    options = parser.parse_args()
    torch.set_num_threads(1)
    until, rounds = time.monotonic() + 60 * options.minutes, 0
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="polyscore-faults-", dir=base) as place:
        faults = Faults(options.seed, Path(place))
        print(f"seed {options.seed}, {options.minutes:g} minutes, in {place}", flush=True)
        while time.monotonic() < until:
            attack = faults.random.choice(faults.attacks())
            if options.only and attack.__name__ != options.only:
                continue
            folder = Path(place) / f"round-{rounds}"
            folder.mkdir()
            try:
                attack(folder)
            except AssertionError as error:
                print(f"round {rounds}, {attack.__name__}: {error}", flush=True)
            except Exception:
                counting._counts["wrong"] += 1
                print(f"round {rounds}, {attack.__name__}:\n{traceback.format_exc()}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            rounds += 1
            if rounds % 100 == 0:
                print(f"{rounds} rounds: {counting.sentence(counting._counts)}", flush=True)
    print(f"{rounds} rounds: {counting.sentence(counting._counts)}")
    return int(any(counting._counts[kind] for kind in counting.HARMS))


if __name__ == "__main__":
    sys.exit(main())
