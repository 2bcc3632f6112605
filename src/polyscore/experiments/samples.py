"""Thumbnails: a few points of a cell in half precision, enough for a picture, packed one line a cell.

{"sum": ..., "key": ..., "shape": [500, 2], "points": base64 of little-endian float16}
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.experiments.cells import Cell, Protocol, digest
from polyscore.experiments.store import Store, append_line

POINTS = 500
_LARGEST = 65504.0  # of float16


def save(store: Store, cell: Cell, protocol: Protocol, points: Tensor) -> None:
    """Append the first `POINTS` of `points` `(n, d)`, unless the store has some of this cell."""
    if (key := cell.key(protocol)) in _keys(store, cell):
        return
    few = points[:POINTS].detach().float().clamp(-_LARGEST, _LARGEST).cpu().numpy().astype("<f2")
    body = {"key": key, "shape": list(few.shape), "points": base64.b64encode(few.tobytes()).decode()}
    append_line(_file(store, cell), json.dumps({"sum": digest(body), **body}, separators=(",", ":")) + "\n")


def load(store: Store, cell: Cell, protocol: Protocol) -> Tensor | None:
    """Return a cell's points `(n, d)` in float32, or None."""
    key = cell.key(protocol)
    for body in _read(store, f"{cell.setting}-{cell.models}"):
        if body["key"] == key:
            few = np.frombuffer(base64.b64decode(body["points"]), "<f2").reshape(body["shape"])
            return torch.from_numpy(few.astype(np.float32))
    return None


def merge(store: Store, other: Store) -> None:
    """Take over another store's points."""
    for file in sorted((other.path / "samples").glob("*.jsonl")):
        known = {body["key"] for body in _read(store, file.stem)}
        for body in _read(other, file.stem):
            if body["key"] not in known:
                line = json.dumps({"sum": digest(body), **body}, separators=(",", ":")) + "\n"
                append_line(store.path / "samples" / file.name, line)


def _file(store: Store, cell: Cell) -> Path:
    return store.path / "samples" / f"{cell.setting}-{cell.models}.jsonl"


def _keys(store: Store, cell: Cell) -> set[str]:
    return {body["key"] for body in _read(store, f"{cell.setting}-{cell.models}")}


def _read(store: Store, stem: str) -> Iterator[dict[str, Any]]:
    """Yield the whole lines; a damaged one costs a picture, so it is passed over."""
    file = store.path / "samples" / f"{stem}.jsonl"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    for line in lines:
        try:
            body = json.loads(line)
            expected = body.pop("sum")
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
        if digest(body) == expected:
            yield body
