"""Rooms: nothing below paper/ and cli/ knows that a paper exists, and no module grows beyond a few screens."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "polyscore"
ABOVE = ("paper", "cli")
LONGEST, MEDIAN = 300, 5
FILES = [path for path in sorted(SOURCE.rglob("*")) if path.suffix in (".py", ".j2", ".cu", ".yaml")]
BELOW = [path for path in FILES if path.relative_to(SOURCE).parts[0] not in ABOVE]


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", BELOW, ids=name)
def test_no_paper_is_known_below(path: Path) -> None:
    assert (
        re.findall(r"(?i).*(?:(?<!a4)paper|appendix|\btable \d|\bfigure \d).*", path.read_text(encoding="utf-8")) == []
    )


@pytest.mark.parametrize("path", [path for path in BELOW if "experiments" in path.parts], ids=name)
def test_an_experiment_knows_no_conditions_and_settings_by_name(path: Path) -> None:
    assert re.findall(r'"(?:a1|a2|base)"|mixture-|gaussian-', path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".py"], ids=name)
def test_modules_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def lines_of(function: ast.FunctionDef) -> int:
    """Lines of a function's body, its docstring aside."""
    documented = ast.get_docstring(function) is not None
    body = function.body[1:] if documented else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_the_median_function_has_five_lines_at_most() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES if path.suffix == ".py"]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 1000
    assert statistics.median(map(lines_of, functions)) <= MEDIAN
