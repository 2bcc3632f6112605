"""A record: one result with its origin, as a line that is believed only when it is whole, its own and makes sense.

    {"sum": checksum, "record": {"key", "protocol", "cell", "results", "about"}}

A checksum tells damage, not intent: whoever can write to a store can compute one. So a line must also carry the key
that its cell has under its protocol, names that can be part of a file name, and numbers where numbers belong.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any

from polyscore.experiments.cells import Cell, is_name
from polyscore.experiments.protocol import digest
from polyscore.files.regular import open_regular

LONGEST = 1 << 20  # bytes of a line; a record has some 500
_KEY = re.compile(r"[0-9a-f]{16}")
_LARGEST = 1e100  # of a result; its square still is a number
_MOST = 10**15  # of a count
_NUMBERS, _TEXTS = ("seconds", "train_seconds"), ("version", "torch", "device", "arithmetic")


def is_key(text: object) -> bool:
    """Whether a text is a hash as `protocol.digest` makes them."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Record:
    """A result with its origin.

    Attributes:
        results: numbers by name: the cell's metrics and diagnostics.
        about: where and how: version, device, torch, seconds.
    """

    key: str
    protocol: str
    cell: Cell
    results: dict[str, float]
    about: dict[str, Any]

    def line(self) -> str:
        """Return the record as one line with its checksum."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        body = {**fields, "cell": self.cell.place()}
        return sealed("record", body)

    @classmethod
    def parse(cls, line: str | bytes) -> Record:
        """Return the record of a line; `ValueError` where it is not whole, or not what it says."""
        try:
            outer = json.loads(line)
            body = outer["record"]
            if digest(body) != outer["sum"]:
                raise ValueError("checksum")
            record = cls(**{**body, "cell": Cell.of_place(body["cell"]), **_shared(body)})
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a record: {error!r:.100}") from error
        record.check()
        return record

    def check(self) -> None:
        """Raise `ValueError` unless this can be a result of its cell under its protocol."""
        cell = self.cell
        names = [cell.family, cell.models, cell.target, *cell.metrics, *([cell.sampler] if cell.sampler != "" else [])]
        if not all(map(is_name, names)):
            raise ValueError(f"names {names!r:.150}")
        if not all(type(count) is int and 0 <= count <= _MOST for count in (cell.train_size, cell.run, cell.particles)):
            raise ValueError("counts")
        if not is_key(self.protocol) or self.key != cell.key_under(self.protocol):
            raise ValueError("the key of another cell")
        if not isinstance(self.results, dict) or not all(map(_is_number, self.results.values())):
            raise ValueError("results that are not numbers")
        if not all(name in self.results for name in cell.measured):
            raise ValueError("results that are missing")
        _check_about(self.about)


def _shared(body: dict[str, Any]) -> dict[str, Any]:
    """A store holds the same few texts many times over: one copy of each halves its memory."""
    named = {part: {intern(name): value for name, value in body[part].items()} for part in ("results", "about")}
    return {"protocol": intern(body["protocol"]), **named}


def _check_about(about: Any) -> None:
    """What is summed must be numbers, what is counted texts; other entries may be anything."""
    if not isinstance(about, dict):
        raise ValueError("no description")
    if not all(_is_number(about[name]) and about[name] >= 0 for name in _NUMBERS if name in about):
        raise ValueError("seconds that are not numbers")
    if not all(_is_text(about[name]) for name in _TEXTS if name in about):
        raise ValueError("a description that is no text")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST  # False of nan


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 200 and value.isprintable()


def sealed(name: str, body: dict[str, Any]) -> str:
    """Return a body as one line with its checksum."""
    return json.dumps({"sum": digest(body), name: body}, separators=(",", ":")) + "\n"


def open_own(file: Path | str, flags: int) -> int:
    """Open a regular file as `open_regular` does, and follow no link."""
    return open_regular(file, flags | os.O_NOFOLLOW)


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file that are not empty; one that is too long comes as an empty one."""
    with open(file, "rb", opener=open_own) as handle:
        while line := handle.readline(LONGEST):
            if line.endswith(b"\n") or len(line) < LONGEST:
                if line.strip():
                    yield line
                continue
            while (rest := handle.readline(LONGEST)) and not rest.endswith(b"\n"):
                pass
            yield b""


def read_json(file: Path) -> Any:
    """Return what a small JSON file holds; `OSError` or `ValueError` where it cannot be read."""
    with open(file, "rb", opener=open_own) as handle:
        content = handle.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError("too long")
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
