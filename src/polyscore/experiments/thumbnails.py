"""Thumbnails: a few points of a cell in half precision, enough for a picture, packed one line a cell.

{"sum": ..., "key": ..., "shape": [500, 2], "points": base64 of little-endian float16}

A line that is damaged, or holds something else than finite points, costs a picture: it is passed over.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyscore.experiments.cells import Cell, is_name
from polyscore.experiments.protocol import Protocol, digest
from polyscore.experiments.records import is_key
from polyscore.experiments.store import Store

POINTS = 500
_LARGEST = 65504.0  # of float16


def keep_points(store: Store, cell: Cell, protocol: Protocol, points: Tensor) -> None:
    """Append the first `POINTS` of `points` `(n, *event)`, two coordinates of each, unless the store has some."""
    few = points[:POINTS].flatten(1)[:, :2].detach().float().clamp(-_LARGEST, _LARGEST).cpu().numpy().astype("<f2")
    body = {
        "key": cell.key(protocol),
        "shape": list(few.shape),
        "points": base64.b64encode(few.tobytes()).decode(),
    }
    _add(store, f"{cell.family}-{cell.models}", [body])


def points_of(store: Store, cell: Cell, protocol: Protocol) -> Tensor | None:
    """Return a cell's points `(n, d)` in float32, or None."""
    key = cell.key(protocol)
    for body in _read(store, f"{cell.family}-{cell.models}"):
        if body["key"] == key:
            return torch.from_numpy(_points(body).astype(np.float32))
    return None


def merge(store: Store, other: Store) -> None:
    """Take over another store's points."""
    for file in other.files("samples", ".jsonl"):
        _add(store, file.stem, _read(other, file.stem))


def pack(store: Store) -> dict[str, str]:
    """Return all points as texts by the name of their file."""
    files = store.files("samples", ".jsonl")
    return {file.name: "".join(map(_line, _read(store, file.stem))) for file in files}


def unpack(store: Store, packed: dict[str, str]) -> None:
    """Take over what `pack` returned, from a process that need not be believed."""
    for name, text in packed.items():
        _add(store, name.removesuffix(".jsonl"), _bodies(text.splitlines()))


def _add(store: Store, stem: str, bodies: Iterable[dict[str, Any]]) -> None:
    if not is_name(stem):
        return
    known = {body["key"] for body in _read(store, stem)}
    for body in bodies:
        if body["key"] not in known:
            known.add(body["key"])
            store.append("samples", stem, _line(body))


def _line(body: dict[str, Any]) -> str:
    return json.dumps({"sum": digest(body), **body}, separators=(",", ":")) + "\n"


def _read(store: Store, stem: str) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file."""
    for file in store.files("samples", ".jsonl"):
        if file.stem == stem:
            yield from _bodies(store.lines(file))


def _bodies(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            body = json.loads(line)
            if body.pop("sum") == digest(body) and is_key(body["key"]) and np.isfinite(_points(body)).all():
                yield body
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            continue


def _points(body: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float16]]:
    """The points of a line, `(n, d)`; `ValueError` where they do not fill their shape."""
    count, dim = body["shape"]
    flat = np.frombuffer(base64.b64decode(body["points"], validate=True), "<f2")
    if type(count) is not int or type(dim) is not int or min(count, dim) < 1 or count * dim != flat.size:
        raise ValueError("shape")
    return flat.reshape(count, dim)
