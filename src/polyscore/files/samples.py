"""Samples on disk, by the ending of the path: npz (everything), csv and parquet (one row a sample)."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyscore.errors import OutputError
from polyscore.files.atomic import write_atomically
from polyscore.files.outputs import check_output

ENDINGS = (".npz", ".csv", ".parquet")
Array = np.ndarray[Any, Any]


def check_sample_file(path: Path | str, force: bool = False, inputs: Iterable[Path] = ()) -> Path:
    """Return `path` if samples may be written there, else raise `OutputError`: call it before sampling."""
    path = check_output(path, ENDINGS, force, inputs)
    missing = [name for name in ("pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    if path.suffix.lower() == ".parquet" and missing:
        raise OutputError(
            f"a parquet file must have pandas and pyarrow to write it; got {' and '.join(missing)} missing. "
            "Run `pip install 'polyscore[tables]'`, or write .npz or .csv."
        )
    return path


def write_samples(
    path: Path, samples: Array, variables: Sequence[str], others: Mapping[str, Array], about: Mapping[str, Any]
) -> Path:
    """Write samples `(n, *event)`, and for npz the other arrays and `about` as JSON; whole or not at all."""
    rows = samples.reshape(len(samples), -1)
    names = list(variables) or [f"x{k + 1}" for k in range(rows.shape[1])]
    writers: dict[str, Callable[[Path], None]] = {
        ".npz": lambda temporary: _write_npz(temporary, {"samples": samples, **others}, {**about, "variables": names}),
        ".csv": lambda temporary: _write_csv(temporary, rows, names),
        ".parquet": lambda temporary: _write_parquet(temporary, rows, names),
    }
    return write_atomically(path, writers[path.suffix.lower()])


def _write_npz(path: Path, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def _write_csv(path: Path, rows: Array, names: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([repr(float(value)) for value in row] for row in rows)


def _write_parquet(path: Path, rows: Array, names: Sequence[str]) -> None:
    import pandas as pd

    pd.DataFrame(rows, columns=list(names)).to_parquet(path, index=False)
