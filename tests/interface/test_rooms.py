"""Rooms: nothing below paper/ and cli/ knows that a paper exists, and no module grows beyond a few screens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "polyscore"
ABOVE = ("paper", "cli")
# Rooms whose words are settled; the list grows to every room below paper/.
SILENT = ("experiments", "metrics")
ALLOWED = ("FeynmanKac.published",)
LONGEST = 300


def files(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((SOURCE / room).rglob("*")) if path.suffix in (".py", ".j2")]


@pytest.mark.parametrize("path", files(*SILENT), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_paper_is_known_below(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    assert re.findall(r"(?i).*\bpapers?\b.*", text) == []
    assert re.findall(r'"(?:a1|a2|base)"|mixture-|gaussian-', text) == []


@pytest.mark.parametrize("path", files(*SILENT, *ABOVE), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST
