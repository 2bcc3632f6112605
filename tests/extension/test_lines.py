"""What is added from outside takes at most 40 lines, and touches nothing of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BEGIN, END = "# --- the extension", "# --- end"
MOST = 40
FILES = sorted(file for file in HERE.glob("test_*.py") if file.name != Path(__file__).name)


def extensions(text: str) -> list[list[str]]:
    """The blocks between the two marks, without blank lines."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if line.strip().startswith(BEGIN):
            found.append([])
            inside = True
        elif line.strip().startswith(END):
            inside = False
        elif inside and line.strip():
            found[-1].append(line)
    return found


def test_every_kind_of_extension_is_here():
    names = {file.stem.removeprefix("test_") for file in FILES}
    assert {"distribution", "network", "group", "sampler", "schedule", "experiment"} <= names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_extension_is_short_and_patches_nothing(file):
    text = file.read_text(encoding="utf-8")
    blocks = extensions(text)
    assert blocks, f"{file.name} marks no extension with {BEGIN!r} and {END!r}"
    for block in blocks:
        assert 0 < len(block) <= MOST, f"{file.name} takes {len(block)} lines"
        assert not re.search(r"monkeypatch|mock|setattr", "\n".join(block)), f"{file.name} patches something"
