"""DataFrames, without a need for pandas."""

from __future__ import annotations

from typing import Any


def is_frame(data: Any) -> bool:
    """Whether data is a pandas DataFrame, or acts like one."""
    return all(hasattr(data, name) for name in ("columns", "dtypes", "iloc", "to_numpy"))
