"""The page on the cure, executed: what its comments say is what comes out."""

import re
from pathlib import Path

import polyscore as ps

PAGE = Path(__file__).parents[2] / "docs" / "cure.md"


def test_the_block_runs_and_gives_what_it_says():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names: dict = {}
    exec(block, names)
    assert names["sampler"].reason in block and isinstance(names["sampler"], ps.Controlled)
    # The fit's own error is 10 % of the variance, the draws' 2 %: 1.6 is three of the first.
    assert bool(((names["run"].samples.var(0) - 5.24).abs() < 1.6).all())
