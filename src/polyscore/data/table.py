"""A table as people have it: one row a point, one column that names its condition, numbers in the others.

What cannot be meant as data (text between numbers, missing values, two columns of one name) is refused with its row and
column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyscore.errors import NAME_LENGTH, ArgumentError, listed, nearest, require, shorten
from polyscore.notices import warn

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Where = Callable[[int], str]  # from the number of a row to what a message calls it

_MOST_CONDITIONS = 1000
_FEW = 20  # rows below which whole numbers may follow each other by chance
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
class Column:
    """A column before it is known to be data: numbers with NaN for what is none, and where those cells are."""

    numbers: Numbers
    odd: list[tuple[int, str]]  # row and text of the first cells that are no numbers
    count: int  # how many there are

    @property
    def is_text(self) -> bool:
        """Whether no cell is a number."""
        return self.count == len(self.numbers)


def choose(names: list[str], condition: str, columns: Iterable[object] | None, source: str) -> tuple[int, list[int]]:
    """Return where the condition and the candidates for variables are."""
    columns = None if columns is None else _listed(columns)
    used = [condition, *(columns if columns is not None else names)]
    counts = Counter(names)
    for name in dict.fromkeys(used):
        _check_name(name, names, counts[name], source)
    if columns is None:
        return names.index(condition), [k for k, name in enumerate(names) if name != condition]
    require(columns, "columns", "name at least one", "none", "Leave columns out for all that hold numbers.")
    require(len(set(columns)) == len(columns), "columns", "be different", list(columns), "Name each once.")
    require(condition not in columns, "columns", "not hold the condition column", repr(condition),
            "Leave it out of columns.")  # fmt: skip
    return names.index(condition), [names.index(name) for name in columns]


def _listed(columns: Iterable[object]) -> list[str]:
    """Return the names of columns, which a frame may number: as lists, arrays or a frame's own index of them."""
    good = isinstance(columns, Iterable) and not isinstance(columns, (str, bytes))
    require(good, "columns", "be a list of names", shorten(columns), 'Write columns=["a", "b"].')
    return [str(name) for name in columns]


def _check_name(name: str, names: list[str], count: int, source: str) -> None:
    """Refuse a name that no column has, or several, and one that cannot be shown."""
    if not name.isprintable() or len(name) > NAME_LENGTH:
        raise TableError(
            f"{source} must have column names of printable text, at most {NAME_LENGTH} characters; got "
            f"{shorten(name)}. Rename it, or choose columns."
        )
    if count == 0:
        near = nearest(name, names) or " Check its spelling."
        raise TableError(f"{source} must have a column {name!r}; got {listed(names, 20, str)}.{near}")
    if not name:
        raise TableError(
            f"{source} must have a name for every column; column {names.index(name) + 1} has none (an index, saved "
            "along?). Name it, or choose columns."
        )
    if count > 1:
        raise TableError(f"{source} must have different names; {name!r} names {count} columns. Rename one.")


def labels_of(values: list[Any], source: str, column: str, where: Where) -> list[str]:
    """Return the condition of every row, as text without blanks around it."""
    require(values, source, "hold rows below the columns' names", "none", "Export it again with its rows.")
    whole = all(isinstance(v, float) and v.is_integer() for v in values)  # a column of 0.0, 1.0 was one of 0, 1
    labels = [str(int(v)) if whole else str(v).strip() for v in values]
    for k, (value, label) in enumerate(zip(values, labels, strict=True)):
        if label.lower() in {"", "nan", "<na>", "none", "nat"} or value is None:
            raise TableError(
                f"{source} must name a condition in every row; got none in {where(k)}, column {column!r}. Fill it in, "
                "or drop the row."
            )
    names = set(labels)
    if len(names) > min(_MOST_CONDITIONS, max(2, len(labels) // 2)):
        raise TableError(
            f"a condition column must name few conditions; {column!r} holds {len(names)} in {len(labels)} rows. "
            "Name the column of the conditions."
        )
    return labels


def assemble(
    found: dict[int, Column], names: list[str], labels: list[str], explicit: bool, condition: int, source: str,
    where: Where,
) -> Table:  # fmt: skip
    """Keep the columns of numbers, refuse those that are numbers in part, and split the rows by condition."""
    if not explicit:
        found = {k: column for k, column in found.items() if not column.is_text}
    for k, column in found.items():
        _check_numbers(column, f"column {names[k]!r} of {source}", where)
    require(found, source, "have a column of numbers", "none", "Choose columns, or check the decimal sign.")
    if not explicit:
        _warn_of_row_numbers({names[k]: column.numbers for k, column in found.items()}, source)
    points = np.column_stack([column.numbers for column in found.values()])
    order = {name: i for i, name in enumerate(dict.fromkeys(labels))}
    which = np.array([order[label] for label in labels])
    left_out = tuple(name for k, name in enumerate(names) if k not in found and k != condition)
    data = {name: points[which == i] for name, i in order.items()}
    return Table(data, tuple(names[k] for k in found), left_out, source)


def _warn_of_row_numbers(columns: Mapping[str, Numbers], source: str) -> None:
    """Warn of columns of whole numbers without gap or repetition, in whatever order: they identify rows."""
    for name, numbers in columns.items():
        least = numbers.min() if len(numbers) >= _FEW else 0.5
        if least.is_integer() and np.array_equal(np.sort(numbers), least + np.arange(len(numbers))):
            warn(
                f"a column should measure something; {name!r} of {source} numbers the rows from {least:g} to "
                f"{numbers.max():g}, and is learned as a variable. Choose columns without it."
            )


def _check_numbers(column: Column, subject: str, where: Where) -> None:
    """Refuse a column that holds numbers in part, or infinite ones."""
    if column.count:
        row, cell = column.odd[0]
        missing = cell.lower() in _MISSING or cell == "nothing"
        rule = "have no missing values" if missing else "hold numbers, or none at all"
        remedy = "Drop or fill these rows" if missing else "Correct it"
        cells = f"{column.count} such cell{'s' * (column.count > 1)}"
        raise TableError(
            f"{subject} must {rule}; got {cell[:60]!r} in {where(row)} ({cells}). {remedy}, or choose other columns."
        )
    endless = np.flatnonzero(np.isinf(column.numbers))
    if len(endless):
        raise TableError(f"{subject} must be finite; got infinity in {where(int(endless[0]))}. Drop it.")
