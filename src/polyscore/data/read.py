"""Tables from files and DataFrames: what `fit(condition_column=...)` takes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import Any
from unicodedata import normalize

from polyscore.data.csv_file import read_csv
from polyscore.data.frames import annotated_frame, is_annotated, read_h5ad, read_parquet, split_frame
from polyscore.data.table import Table, TableError
from polyscore.errors import listed, require, shorten
from polyscore.notices import warn

ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".h5ad")
FEW = 20  # rows of a condition below which a warning says how little can be learned of them


def read_table(path: str | Path, condition_column: str, columns: Sequence[str] | None = None) -> Table:
    """Return the points of a csv, parquet or h5ad file.

    Args:
        condition_column: the column that names each row's condition.
        columns: those that are the variables, in this order; by default all that hold numbers.
    """
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise TableError(
            f"a table must end in {', '.join(ENDINGS)}; got {shorten(str(path))}. Export it as one of these."
        )
    if not isfile(path):
        raise TableError(f"a table must be a file that can be read; got {shorten(str(path))}. Check the path.")
    try:
        if path.suffix.lower() == ".parquet":
            return split_frame(read_parquet(path), condition_column, columns, path.name)
        if path.suffix.lower() == ".h5ad":
            frame = annotated_frame(read_h5ad(path), condition_column, columns, path.name)
            return split_frame(frame, condition_column, columns, path.name)
        return read_csv(path, condition_column, columns)
    except (OSError, UnicodeError, csv.Error) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error)[:200]
        raise TableError(f"{path.name} must be readable; got {reason}. Save it again as UTF-8 csv.") from error


def warn_of_few(table: Table) -> None:
    """Warn of conditions with so few rows that no kind of model learns much more than these."""
    few = {name: count for name, count in table.rows.items() if count < FEW}
    if few:
        shown = ", ".join(f"{name!r} has {count}" for name, count in list(few.items())[:6])
        warn(
            f"a condition should have {FEW} rows or more; {shown}. Of so few a mixture is little more than their mean "
            "and width, and a network alone draws them again. Merge or leave out such conditions."
        )


def warn_of_alike(table: Table) -> None:
    """Warn of conditions whose names look alike: rows of one condition, written in two ways, would be learned apart."""
    spelled: dict[str, list[str]] = {}
    for name in table:
        spelled.setdefault(" ".join(normalize("NFKC", name).casefold().split()), []).append(name)
    alike = next((names for names in spelled.values() if len(names) > 1), None)
    if alike:
        warn(
            f"a condition should be written in one way; {listed(alike, 6, ascii)} differ in case, blanks or the form "
            "of their letters only, and are learned apart. Give them one name, if they are one."
        )


def table_of(data: Any, condition_column: str, columns: Sequence[str] | None) -> Table:
    """Return the table of a path, a DataFrame or an AnnData; warns of conditions with few rows or alike names."""
    require(isinstance(condition_column, str), "condition_column", "be a column's name", repr(condition_column)[:100],
            'Write fit(frame, condition_column="condition").')  # fmt: skip
    if is_annotated(data):
        data = annotated_frame(data, condition_column, columns)
    from_file = isinstance(data, (str, Path))
    table = read_table(data, condition_column, columns) if from_file else split_frame(data, condition_column, columns)
    warn_of_few(table)
    warn_of_alike(table)
    return table
