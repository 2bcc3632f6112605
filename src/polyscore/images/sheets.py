"""Contact sheets in a store: the first images of a cell as one JPEG, with the classifier's verdict on each.

    sheets/<family>-<models>.jsonl   {"sum": ..., "key": ..., "side": 32, "verdicts": [...], "jpeg": base64}

A line that is damaged costs a picture: it is passed over.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polyscore.experiments.cells import Cell, is_name
from polyscore.experiments.protocol import digest
from polyscore.experiments.records import LONGEST, is_key
from polyscore.experiments.store import Store

SHOWN, COLUMNS = 64, 8
_FOLDER, _WIDEST = "sheets", 4096  # pixels
Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Sheet:
    """Images of a cell and their verdicts.

    Attributes:
        images: uint8 `(n, side, side, 3)`, as JPEG kept them.
    """

    images: Images
    verdicts: tuple[str, ...]


def tiled(images: Images) -> Images:
    """Return images `(n, side, side, 3)` as one, row by row; what is left of the last row is white."""
    side = images.shape[1]
    rows = -(-len(images) // COLUMNS)
    page = np.full((rows * COLUMNS, side, side, 3), 255, dtype=np.uint8)
    page[: len(images)] = images
    return page.reshape(rows, COLUMNS, side, side, 3).swapaxes(1, 2).reshape(rows * side, COLUMNS * side, 3)


def keep(store: Store, cell: Cell, key: str, images: Images, verdicts: Sequence[str]) -> None:
    """Append the sheet of a cell unless the store has it."""
    few = images[:SHOWN]
    for quality in (92, 80, 60, 30):
        body = _body(key, few, list(verdicts[:SHOWN]), quality)
        if len(json.dumps(body)) < LONGEST - 100:
            break
    _add(store, f"{cell.family}-{cell.models}", [body])


def _body(key: str, images: Images, verdicts: list[str], quality: int) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.fromarray(tiled(images)).save(buffer, "JPEG", quality=quality, subsampling=0)
    jpeg = base64.b64encode(buffer.getvalue()).decode()
    return {"key": key, "side": int(images.shape[1]), "verdicts": verdicts, "jpeg": jpeg}


def sheets(store: Store) -> dict[str, Sheet]:
    """Return all sheets of a store by the key of their cell."""
    found: dict[str, Sheet] = {}
    for file in store.files(_FOLDER, ".jsonl"):
        found |= {body["key"]: _sheet(body) for body in _bodies(store.lines(file))}
    return found


def merge(store: Store, other: Store) -> None:
    """Take over another store's sheets."""
    for file in other.files(_FOLDER, ".jsonl"):
        _add(store, file.stem, _bodies(other.lines(file)))


def _add(store: Store, stem: str, bodies: Iterable[dict[str, Any]]) -> None:
    if not is_name(stem):
        return
    files = [file for file in store.files(_FOLDER, ".jsonl") if file.stem == stem]
    known = {body["key"] for file in files for body in _bodies(store.lines(file))}
    for body in bodies:
        if body["key"] not in known:
            known.add(body["key"])
            store.append(_FOLDER, stem, json.dumps({"sum": digest(body), **body}, separators=(",", ":")) + "\n")


def _bodies(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            body = json.loads(line)
            if body.pop("sum") == digest(body) and is_key(body["key"]):
                _sheet(body)
                yield body
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError, Image.DecompressionBombError):
            continue


def _sheet(body: dict[str, Any]) -> Sheet:
    """The images of a line; `ValueError` where they are not what it says."""
    side, verdicts = body["side"], tuple(map(str, body["verdicts"]))
    if type(side) is not int or not 1 <= side * COLUMNS <= _WIDEST or not 1 <= len(verdicts) <= SHOWN:
        raise ValueError("size")
    rows = -(-len(verdicts) // COLUMNS)
    with Image.open(io.BytesIO(base64.b64decode(body["jpeg"], validate=True)), formats=["JPEG"]) as opened:
        if opened.size != (COLUMNS * side, rows * side) or opened.mode != "RGB":
            raise ValueError("size")
        page = np.asarray(opened, dtype=np.uint8)
    tiles = page.reshape(rows, side, COLUMNS, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    return Sheet(tiles[: len(verdicts)], verdicts)
