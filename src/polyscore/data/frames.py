"""DataFrames, without a need for pandas; parquet files, with it; and AnnData.

As single-cell data are kept, an AnnData has X with a row a cell, and `obs` with what is known of each.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from polyscore.data.table import Column, Table, TableError, assemble, choose, labels_of
from polyscore.errors import PolyscoreError, listed, require
from polyscore.extras import load
from polyscore.limits import require_memory


def is_frame(data: Any) -> bool:
    """Whether data is a pandas DataFrame, or acts like one."""
    return all(hasattr(data, name) for name in ("columns", "dtypes", "iloc", "to_numpy"))


def numbers_of(frame: Any) -> tuple[tuple[str, ...], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the names of a DataFrame's columns of numbers, and those columns."""
    kept = [k for k, dtype in enumerate(frame.dtypes) if getattr(dtype, "kind", "O") in "iuf"]
    names = tuple(str(frame.columns[k]) for k in kept)
    return names, frame.iloc[:, kept].to_numpy(dtype=np.float64, na_value=np.nan)


def split_frame(
    frame: Any, condition_column: str, columns: Sequence[str] | None = None, source: str = "the frame"
) -> Table:
    """Return the points of a pandas DataFrame."""
    require(is_frame(frame), "data with a condition_column", "be a DataFrame, an AnnData or a file",
            type(frame).__name__,
            "Pass a pandas DataFrame (frame.to_pandas()), or the path of a csv, parquet or h5ad file.")  # fmt: skip
    names = [str(name) for name in frame.columns]
    condition, wanted = choose(names, condition_column, columns, source)
    labels = labels_of(frame.iloc[:, condition].tolist(), source, names[condition], _row)
    kinds = {k: getattr(frame.dtypes.iloc[k], "kind", "O") for k in wanted}
    if columns is None:
        wanted = [k for k in wanted if kinds[k] in "iufO" and not _is_categorical(frame.dtypes.iloc[k])]
    found: dict[int, Column] = {}
    for k in wanted:
        if kinds[k] in "iuf":
            values = frame.iloc[:, k].to_numpy(dtype=np.float64, na_value=np.nan)
            missing = np.flatnonzero(np.isnan(values))
            found[k] = Column(values, [(int(row), "nothing") for row in missing[:1]], len(missing))
        else:
            found[k] = _parse_objects(frame.iloc[:, k].tolist())
    return assemble(found, names, labels, columns is not None, condition, source, _row)


def read_parquet(path: Path) -> Any:
    """Return a parquet file as a DataFrame, if it can be held."""
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


def is_annotated(data: Any) -> bool:
    """Whether data is an AnnData, or acts like one."""
    return all(hasattr(data, name) for name in ("obs", "var_names", "n_vars", "to_df"))


def annotated_frame(
    data: Any, condition_column: str, columns: Sequence[str] | None = None, source: str = "the AnnData"
) -> Any:
    """Return X as a DataFrame with one column of obs, which names the conditions; a sparse X is made dense.

    Args:
        columns: names of the variables that are taken; by default all.
    """
    if condition_column not in data.obs:
        raise TableError(
            f"{source} must have a column {condition_column!r} in obs; got {listed(list(data.obs), 20, str)}. "
            "Check its spelling."
        )
    names = [condition_column, *map(str, data.var_names)]
    if columns is not None:
        _, wanted = choose(names, condition_column, columns, source)
        data = data[:, [k - 1 for k in wanted]]
    require_memory(8 * data.n_obs * data.n_vars, f"{data.n_obs} rows of {data.n_vars} variables", "Choose columns.")
    frame = data.to_df()
    if condition_column in frame.columns:
        raise TableError(f"{source} must have different names; {condition_column!r} names a variable, too. Rename one.")
    return frame.assign(**{condition_column: data.obs[condition_column].to_numpy()})


def read_h5ad(path: Path) -> Any:
    """Return what an .h5ad file holds."""
    anndata = load("anndata", "an .h5ad file", "tables")
    try:
        return anndata.read_h5ad(path)
    except Exception as error:  # whatever h5py and anndata raise for a damaged file
        raise TableError(f"{path.name} must be an h5ad file; got {str(error)[:200]!r}. Write it again.") from error


def _row(k: int) -> str:
    return f"row {k}"


def _is_categorical(dtype: Any) -> bool:
    return str(dtype) == "category"


def _parse_objects(values: Iterable[Any]) -> Column:
    """A column of mixed Python objects: real numbers are numbers, everything else is not."""
    cells = list(values)
    good = [isinstance(v, (Real, Decimal)) and not isinstance(v, bool) for v in cells]  # NumPy's are Real, too
    numbers = np.array([_float(v) if ok else math.nan for v, ok in zip(cells, good, strict=True)])
    bad = np.flatnonzero(np.isnan(numbers))
    return Column(numbers, [(int(row), str(cells[row])[:60]) for row in bad[:1]], len(bad))


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # 10**400
        return math.inf
    except ValueError:  # a signalling NaN among decimals
        return math.nan
