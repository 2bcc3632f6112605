"""Samples on disk, by the ending of the path: npz (everything), csv and parquet (one row a sample)."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from polyscore.errors import OutputError
from polyscore.files import check_file, write_atomically
from polyscore.samplers import Run

ENDINGS = (".npz", ".csv", ".parquet")


def check_sample_file(path: Path | str) -> Path:
    """Return `path` if samples can be written there, else raise `OutputError`: call it before sampling."""
    path = check_file(path, ENDINGS)
    missing = [name for name in ("pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    if path.suffix.lower() == ".parquet" and missing:
        raise OutputError(
            f"a parquet file must have pandas and pyarrow to write it; got {' and '.join(missing)} missing. "
            "Run `pip install 'polyscore[tables]'`, or write .npz or .csv."
        )
    return path


def write_samples(path: Path | str, run: Run, about: dict[str, Any]) -> Path:
    """Write the samples of `run`, and for npz its diagnostics and `about` as JSON; whole or not at all."""
    path = Path(path)
    writers: dict[str, Callable[[Path], None]] = {
        ".npz": lambda temporary: _write_npz(temporary, run, about),
        ".csv": lambda temporary: _write_csv(temporary, _rows(run)),
        ".parquet": lambda temporary: _write_parquet(temporary, _rows(run)),
    }
    return write_atomically(path, writers[path.suffix.lower()])


def _write_npz(path: Path, run: Run, about: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(
            file,
            samples=run.samples.cpu().numpy(),
            log_evidence=run.log_evidence.cpu().numpy(),
            lowest_ess=run.ess.amin(0).cpu().numpy(),
            unique_ancestors=run.unique_ancestors.cpu().numpy(),
            about=np.array(json.dumps(about)),
        )


def _rows(run: Run) -> np.ndarray:
    return run.samples.flatten(1).cpu().numpy()


def _names(rows: np.ndarray) -> list[str]:
    return [f"x{k + 1}" for k in range(rows.shape[1])]


def _write_csv(path: Path, rows: np.ndarray) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_names(rows))
        writer.writerows([repr(float(value)) for value in row] for row in rows)


def _write_parquet(path: Path, rows: np.ndarray) -> None:
    import pandas as pd

    pd.DataFrame(rows, columns=_names(rows)).to_parquet(path, index=False)
