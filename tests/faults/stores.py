"""Stores to attack: a small one filled without computing, lines forged with a right checksum, a look at the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyscore.experiments.cells import Cell
from polyscore.experiments.protocol import Protocol, digest
from polyscore.experiments.store import Store
from small import PROTOCOL

SETTING = "gaussian-factorized-ood"
ABOUT = {"version": "0.2.0", "torch": "2.11.0", "device": "cpu", "seconds": 0.1, "train_seconds": 0.2}


def cells(runs: int = 3, setting: str = SETTING) -> Iterator[Cell]:
    for run in range(runs):
        for particles in (1, 4):
            yield Cell(setting, "analytic", 0, run, particles)
            yield Cell(setting, "conditional", 50, run, particles)


def result(cell: Cell) -> dict[str, float]:
    return {"sw2": 0.1 + 0.01 * cell.run + cell.particles, "mmd2": 1e-3, "clipped": 0.0, "ancestors": 1.0, "ess": 1.0}


def fake(path: Path, runs: int = 3, protocol: Protocol = PROTOCOL) -> Store:
    """A store of made-up results."""
    store = Store(path)
    with store.writing():
        for cell in cells(runs):
            store.add(cell, protocol, result(cell), dict(ABOUT))
    return store


def body_of(cell: Cell, protocol: Any = PROTOCOL.key, **changes: Any) -> dict[str, Any]:
    """A record as JSON, its key that of its cell unless changed."""
    place = [cell.family, cell.models, cell.train_size, cell.run, cell.particles, cell.target]
    return {
        "key": digest([protocol, *place]), "protocol": protocol, "cell": place, "results": result(cell),
        "about": dict(ABOUT), **changes,
    }  # fmt: skip


def forged(body: Any) -> str:
    """A line with the checksum that belongs to it."""
    return json.dumps({"sum": digest(body), "record": body}, separators=(",", ":")) + "\n"


def plant(store: Path, text: str, name: str = f"{SETTING}-analytic") -> None:
    """Append text to a file of records."""
    (store / "records").mkdir(parents=True, exist_ok=True)
    with open(store / "records" / f"{name}.jsonl", "a", encoding="utf-8", errors="surrogatepass") as file:
        file.write(text)


def tree(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: files with their content, links with their target."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path)] = path.read_bytes()
    return found
