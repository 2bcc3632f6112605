"""The page on findings: its counts of agreement, and its ratios of appendix E, are those of the store."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from polyscore.experiments.store import Store

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


@pytest.fixture
def agreement(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("agreement")
    sys.modules.pop("agreement", None)


def test_the_page_says_what_the_store_gives(agreement):
    """A store that grows moves these: `python benchmarks/agreement.py` prints them anew."""
    store = Store(ROOT / "results" / "paper")
    assert "\n".join(agreement.composed(store)) in PAGE
    for line in agreement.counts(store)[2:]:
        name, *found = line.strip("| ").split(" | ")
        (row,) = re.findall(rf"^\| {name} \| (\d+) .*?\| (\d+) ", PAGE, re.M)
        assert [f"{count} of 240" for count in row] == found
