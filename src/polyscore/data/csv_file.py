"""Csv files, by the standard library, in blocks; whatever parts their cells and marks their decimals."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyscore.data.table import Column, Numbers, Table, TableError, Where, assemble, choose, labels_of
from polyscore.errors import require

_BLOCK = 20_000


def read_csv(path: Path, condition_column: str, columns: Sequence[str] | None) -> Table:
    """Return the points of a csv file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.read(1 << 16)
        require("\0" not in head, path.name, "be text", "binary data", "Export it as csv.")
        require(head.strip(), path.name, "hold a table", "an empty file",
                "Export it again, with the columns' names in the first line.")  # fmt: skip
        file.seek(0)
        separator = _separator(head)
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
        names = [name.strip() for name in next((cells for cells in reader if cells), [])]
        require(not all(_is_number(name) for name in names), path.name, "begin with the columns' names", names[:6],
                "Add a first line with them.")  # fmt: skip
        condition, wanted = choose(names, condition_column, columns, path.name)
        parsers = {k: _Parser(separator) for k in wanted}
        labels: list[str] = []
        lines: list[int] = []
        for rows in _blocks(reader, len(names), path.name, lines):
            labels += [row[condition].strip() for row in rows]
            for k, parser in parsers.items():
                parser.add([row[k] for row in rows])
    where = _line(lines)
    _check_decimals({names[k]: parser for k, parser in parsers.items()}, path.name)
    found = {k: parser.column() for k, parser in parsers.items()}
    text = labels_of(labels, path.name, names[condition], where)
    return assemble(found, names, text, columns is not None, condition, path.name, where)


def _line(lines: list[int]) -> Where:
    return lambda k: f"line {lines[k]}"


def _separator(head: str) -> str:
    """The sign that parts the most cells of the first line, quoted ones aside."""
    first = re.sub(r'"[^"]*"', "", head).lstrip("\r\n").splitlines()[0]
    return max((",", ";", "\t", "|"), key=first.count)


def _blocks(reader: Any, width: int, source: str, lines: list[int]) -> Iterator[list[list[str]]]:
    """Yield rows of cells, some thousands at a time; `lines` grows by the line of each."""

    def rows() -> Iterator[list[str]]:
        for cells in reader:
            if not cells or not any(map(str.strip, cells)):
                continue
            require(len(cells) == width, f"{source}, line {reader.line_num},", f"have {width} cells like the first",
                    len(cells), "Quote cells that hold the separator.")  # fmt: skip
            lines.append(reader.line_num)
            yield cells

    source_rows = rows()
    while block := list(itertools.islice(source_rows, _BLOCK)):
        yield block


class _Parser:
    """Turns the cells of one column into numbers, block by block; knows which decimal sign it saw."""

    def __init__(self, separator: str) -> None:
        self.commas = separator != ","
        self.blocks: list[Numbers] = []
        self.signs: dict[str, str] = {}  # decimal sign to the first cell that has it
        self.odd: list[tuple[int, str]] = []
        self.rows = self.count = 0

    def add(self, cells: list[str]) -> None:
        """Parse a block."""
        joined = "\n".join(cells)
        try:
            if "_" in joined or "," in joined:
                raise ValueError
            numbers = np.array(list(map(float, cells)))
            if "." in joined and "." not in self.signs:
                self.signs["."] = next(cell for cell in cells if "." in cell)
        except ValueError:
            numbers = np.array([self._number(cell) for cell in cells])
        bad = np.flatnonzero(np.isnan(numbers))
        if len(bad) and not self.odd:
            self.odd = [(self.rows + int(bad[0]), cells[bad[0]].strip())]
        self.count += len(bad)
        self.rows += len(cells)
        self.blocks.append(numbers)

    def _number(self, cell: str) -> float:
        """A cell as a number, NaN where it is none; a comma is a decimal sign where it does not part cells."""
        text = cell.strip()
        comma = self.commas and text.count(",") == 1 and "." not in text
        try:
            value = float(text.replace(",", ".") if comma else text) if "_" not in text else math.nan
        except ValueError:
            return math.nan
        if comma or "." in text:
            self.signs.setdefault("," if comma else ".", text)
        return value

    def column(self) -> Column:
        """Return the whole column."""
        numbers = np.concatenate(self.blocks) if self.blocks else np.zeros(0)
        return Column(numbers, self.odd, self.count)


def _check_decimals(parsers: dict[str, _Parser], source: str) -> None:
    """Refuse a file in which both signs part decimals: in one of them the comma means thousands."""
    seen = {sign: (name, cell) for name, parser in parsers.items() for sign, cell in parser.signs.items()}
    if len(seen) == 2:
        (dotted, point), (named, comma) = seen["."], seen[","]
        raise TableError(
            f"{source} must have one decimal sign; got {point!r} in column {dotted!r} and {comma!r} in {named!r}. "
            "Write all numbers alike."
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
