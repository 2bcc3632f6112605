"""A folder in memory: thousands of small files rewritten would each wait for a disk."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path)
    with tempfile.TemporaryDirectory(prefix="polyscore-faults-", dir=place) as folder:
        yield Path(folder)
