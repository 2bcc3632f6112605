"""The page on the cure, executed: what its comments say is what comes out, its tables are those of the stores."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import polyscore as ps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cure.md"


def test_the_block_runs_and_gives_what_it_says():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names: dict = {}
    exec(block, names)
    assert names["sampler"].reason in block and isinstance(names["sampler"], ps.Controlled)
    # The fit's own error is 10 % of the variance, the draws' 2 %: 1.6 is three of the first.
    assert bool(((names["run"].samples.var(0) - 5.24).abs() < 1.6).all())


@pytest.fixture
def remedies(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("remedies")
    sys.modules.pop("remedies", None)


@pytest.mark.parametrize("mark, end, store", [("table", "end", "remedies"), ("shapes", "end of shapes", "shapes"),
                                              ("h200", "end of h200", "remedies-h200")])  # fmt: skip
def test_the_tables_are_what_the_stores_give(remedies, mark, end, store):
    """Byte by byte: `python benchmarks/remedies.py --store results/STORE` writes what stands between the marks."""
    _, rest = PAGE.read_text(encoding="utf-8").split(f"<!-- {mark} -->\n")
    assert rest.split(f"<!-- {end} -->\n")[0] == remedies.text(ROOT / "results" / store)
