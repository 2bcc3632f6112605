"""Tables as people have them: one row a point, one column that names its condition, numbers in the others.

A csv file is read by the standard library, in blocks; parquet files and DataFrames by pandas. What cannot be meant as
data (text between numbers, missing values, two columns of one name) is refused with its row and column.
"""

from __future__ import annotations

import csv
import importlib.util
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyscore.data.frames import is_frame
from polyscore.errors import NAME_LENGTH, ArgumentError, PolyscoreError, require, shorten
from polyscore.limits import require_memory
from polyscore.notices import warn

Numbers = np.ndarray[Any, np.dtype[np.float64]]

ENDINGS = (".csv", ".tsv", ".txt", ".parquet")
FEW = 20  # rows of a condition below which a warning says that it is being learned by heart
_MOST_CONDITIONS = 1000
_BLOCK = 20_000
_MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?", "."}


class TableError(ArgumentError):
    """A table that is no data; the message names the file, the row and the column."""


@dataclass(frozen=True, repr=False)
class Table(Mapping[str, Numbers]):
    """Points by condition: what `fit` takes.

    Attributes:
        data: from condition to `(n, d)`, in the order of their first rows.
        variables: names of the columns.
        left_out: columns that hold no numbers, or were not chosen.
        source: the file's name.
    """

    data: dict[str, Numbers]
    variables: tuple[str, ...]
    left_out: tuple[str, ...]
    source: str

    def __getitem__(self, condition: str) -> Numbers:
        return self.data[condition]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def rows(self) -> dict[str, int]:
        """Rows by condition."""
        return {name: len(points) for name, points in self.data.items()}

    def about(self) -> dict[str, Any]:
        """Return what was read, JSON-ready."""
        return {"read": self.source, "rows": self.rows, "left_out": list(self.left_out)}


@dataclass(frozen=True)
class _Column:
    """A column before it is known to be data: numbers with NaN for what is none, and where those cells are."""

    numbers: Numbers
    odd: list[tuple[int, str]]  # row and text of the first cells that are no numbers
    count: int  # how many there are

    @property
    def is_text(self) -> bool:
        """Whether no cell is a number."""
        return self.count == len(self.numbers)


def read_table(path: str | Path, condition_column: str, columns: Sequence[str] | None = None) -> Table:
    """Return the points of a csv or parquet file.

    Args:
        condition_column: the column that names each row's condition.
        columns: those that are the variables, in this order; by default all that hold numbers.
    """
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise TableError(f"a table must end in {', '.join(ENDINGS)}; got {str(path)!r}. Export it as one of these.")
    if not path.is_file():
        raise TableError(f"a table must be a file that can be read; got {str(path)!r}. Check the path.")
    try:
        if path.suffix.lower() == ".parquet":
            return split_frame(_parquet(path), condition_column, columns, path.name)
        return _read_csv(path, condition_column, columns)
    except (OSError, UnicodeError, csv.Error) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error)[:200]
        raise TableError(f"{path.name} must be readable; got {reason}. Save it again as UTF-8 csv.") from error


def split_frame(
    frame: Any, condition_column: str, columns: Sequence[str] | None = None, source: str = "the frame"
) -> Table:
    """Return the points of a pandas DataFrame."""
    require(is_frame(frame), "data with a condition_column", "be a DataFrame or a file", type(frame).__name__)
    names = [str(name) for name in frame.columns]
    condition, wanted = _chosen(names, condition_column, columns, source)
    labels = _labels(frame.iloc[:, condition].tolist(), source, names[condition], _row)
    kinds = {k: getattr(frame.dtypes.iloc[k], "kind", "O") for k in wanted}
    if columns is None:
        wanted = [k for k in wanted if kinds[k] in "iufO" and not _is_categorical(frame.dtypes.iloc[k])]
    found: dict[int, _Column] = {}
    for k in wanted:
        if kinds[k] in "iuf":
            values = frame.iloc[:, k].to_numpy(dtype=np.float64, na_value=np.nan)
            missing = np.flatnonzero(np.isnan(values))
            found[k] = _Column(values, [(int(row), "nothing") for row in missing[:1]], len(missing))
        else:
            found[k] = _parse_objects(frame.iloc[:, k].tolist())
    return _table(found, names, labels, columns is not None, condition, source, _row)


def _parquet(path: Path) -> Any:
    missing = [name for name in ("pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise TableError(
            f"a parquet file must have pandas and pyarrow to be read; got {' and '.join(missing)} missing. "
            "Run `pip install 'polyscore[tables]'`, or pass a csv file."
        )
    import pandas as pd

    try:
        import pyarrow.parquet as pq

        about = pq.read_metadata(path)
        require_memory(8 * about.num_rows * about.num_columns, f"{about.num_rows} rows of {about.num_columns} columns",
                       "Choose fewer rows.")  # fmt: skip
        return pd.read_parquet(path)
    except PolyscoreError:
        raise
    except Exception as error:  # whatever pyarrow's reader raises for a damaged file
        raise TableError(f"{path.name} must be a parquet file; got {str(error)[:200]!r}. Export it again.") from error


def _row(k: int) -> str:
    return f"row {k}"


def _is_categorical(dtype: Any) -> bool:
    return str(dtype) == "category"


def _parse_objects(values: Iterable[Any]) -> _Column:
    """A column of mixed Python objects: real numbers are numbers, everything else is not."""
    cells = list(values)
    good = [isinstance(v, (int, float, np.integer, np.floating)) and not isinstance(v, bool) for v in cells]
    numbers = np.array([float(v) if ok else math.nan for v, ok in zip(cells, good, strict=True)])
    bad = np.flatnonzero(np.isnan(numbers))
    return _Column(numbers, [(int(row), str(cells[row])[:60]) for row in bad[:1]], len(bad))


# ---- csv ---------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, condition_column: str, columns: Sequence[str] | None) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.read(1 << 16)
        require("\0" not in head, path.name, "be text", "binary data", "Export it as csv.")
        require(head.strip(), path.name, "hold a table", "an empty file")
        file.seek(0)
        separator = _separator(head)
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
        names = [name.strip() for name in next((cells for cells in reader if cells), [])]
        require(not all(_is_number(name) for name in names), path.name, "begin with the columns' names", names[:6],
                "Add a first line with them.")  # fmt: skip
        condition, wanted = _chosen(names, condition_column, columns, path.name)
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
    text = _labels(labels, path.name, names[condition], where)
    return _table(found, names, text, columns is not None, condition, path.name, where)


def _line(lines: list[int]) -> Callable[[int], str]:
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

    def column(self) -> _Column:
        """Return the whole column."""
        numbers = np.concatenate(self.blocks) if self.blocks else np.zeros(0)
        return _Column(numbers, self.odd, self.count)


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


# ---- what both share ---------------------------------------------------------------------------------------------


def _chosen(names: list[str], condition: str, columns: Sequence[str] | None, source: str) -> tuple[int, list[int]]:
    """Return where the condition and the candidates for variables are."""
    require(columns is None or not isinstance(columns, str), "columns", "be a list of names", repr(columns))
    used = [condition, *(columns if columns is not None else names)]
    counts = Counter(names)
    for name in dict.fromkeys(map(str, used)):
        count = counts[name]
        if not name.isprintable() or len(name) > NAME_LENGTH:
            raise TableError(
                f"{source} must have column names of printable text, at most {NAME_LENGTH} characters; got "
                f"{shorten(name)}. Rename it, or choose columns."
            )
        if count == 0:
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise TableError(f"{source} must have a column {name!r}; got {shown}. Check its spelling.")
        if not name:
            raise TableError(
                f"{source} must have a name for every column; column {names.index(name) + 1} has none (an index, saved "
                "along?). Name it, or choose columns."
            )
        if count > 1:
            raise TableError(f"{source} must have different names; {name!r} names {count} columns. Rename one.")
    if columns is None:
        return names.index(condition), [k for k, name in enumerate(names) if name != condition]
    require(columns, "columns", "name at least one", "none")
    require(len(set(columns)) == len(columns), "columns", "be different", list(columns))
    require(condition not in columns, "columns", "not hold the condition column", repr(condition))
    return names.index(condition), [names.index(name) for name in columns]


def _labels(values: list[Any], source: str, column: str, where: Callable[[int], str]) -> list[str]:
    """Return the condition of every row, as text."""
    require(values, source, "hold rows below the columns' names", "none")
    whole = all(isinstance(v, float) and v.is_integer() for v in values)  # a column of 0.0, 1.0 was one of 0, 1
    labels = [str(int(v)) if whole else str(v) for v in values]
    for k, (value, label) in enumerate(zip(values, labels, strict=True)):
        if label.strip().lower() in {"", "nan", "<na>", "none", "nat"} or value is None:
            raise TableError(f"{source} must name a condition in every row; got none in {where(k)}, column {column!r}.")
    names = set(labels)
    if len(names) > min(_MOST_CONDITIONS, max(2, len(labels) // 2)):
        raise TableError(
            f"a condition column must name few conditions; {column!r} holds {len(names)} in {len(labels)} rows. "
            "Name the column of the conditions."
        )
    return labels


def _table(
    found: dict[int, _Column], names: list[str], labels: list[str], explicit: bool, condition: int, source: str,
    where: Callable[[int], str],
) -> Table:  # fmt: skip
    """Keep the columns of numbers, refuse those that are numbers in part, and split the rows by condition."""
    if not explicit:
        found = {k: column for k, column in found.items() if not column.is_text}
    for k, column in found.items():
        if column.count:
            row, cell = column.odd[0]
            missing = cell.lower() in _MISSING or cell == "nothing"
            rule = "have no missing values" if missing else "hold numbers, or none at all"
            remedy = "Drop or fill these rows" if missing else "Correct it"
            raise TableError(
                f"column {names[k]!r} of {source} must {rule}; got {cell[:60]!r} in {where(row)} ({column.count} such "
                f"cells). {remedy}, or choose other columns."
            )
        endless = np.flatnonzero(np.isinf(column.numbers))
        if len(endless):
            raise TableError(
                f"column {names[k]!r} of {source} must be finite; got infinity in {where(int(endless[0]))}. Drop it."
            )
    require(found, source, "have a column of numbers", "none", "Choose columns, or check the decimal sign.")
    points = np.column_stack([column.numbers for column in found.values()])
    order = {name: i for i, name in enumerate(dict.fromkeys(labels))}
    groups = np.array([order[label] for label in labels])
    left_out = tuple(name for k, name in enumerate(names) if k not in found and k != condition)
    data = {name: points[groups == i] for name, i in order.items()}
    return Table(data, tuple(names[k] for k in found), left_out, source)


def warn_of_few(table: Table) -> None:
    """Warn of conditions with so few rows that a network learns them by heart."""
    few = {name: count for name, count in table.rows.items() if count < FEW}
    if few:
        shown = ", ".join(f"{name!r} has {count}" for name, count in list(few.items())[:6])
        warn(
            f"a condition should have {FEW} rows or more; {shown}. Networks will draw those rows again and nothing "
            "between them. Merge or leave out such conditions."
        )


def table_of(data: Any, condition_column: str, columns: Sequence[str] | None) -> Table:
    """Return the table of a path or a DataFrame; warns of conditions with few rows."""
    require(isinstance(condition_column, str), "condition_column", "be a column's name", repr(condition_column)[:100])
    from_file = isinstance(data, (str, Path))
    table = read_table(data, condition_column, columns) if from_file else split_frame(data, condition_column, columns)
    warn_of_few(table)
    return table
