"""Every error and warning in the source says rule, value and remedy: what to do next stands at its end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyscore as ps
from polyscore.errors import PolyscoreError

SOURCE = Path(__file__).parents[2] / "src" / "polyscore"
FILES = sorted(SOURCE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls of plain functions and classes by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


def written(node: ast.expr) -> str:
    """A message as it stands in the source, values as {}."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return written(node.left) + written(node.right) if isinstance(node, ast.BinOp) else "{}"


def classes(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Classes with their parents, by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield node.name, {base.id for base in node.bases if isinstance(base, ast.Name)}


def kinds_of(known: set[str]) -> set[str]:
    """Errors by name with all that inherit from them, whatever has been imported."""
    more = known | {kind for path in FILES for kind, parents in classes(path) if parents & known}
    return known if more == known else kinds_of(more)


OURS = kinds_of({"PolyscoreError"})


def says_what_to_do(message: str) -> bool:
    """Whether a sentence follows the rule and the value; to tell of another error, or to be told by one, is enough."""
    part = not re.search(r" (?:must|should) ", message) and not message.endswith(".")
    if part or message.endswith(": {}"):
        return True
    after = message.partition("; ")[2] or message
    return bool(re.search(r"[.)] ?(?:\{\}|[\w`'(\"])", after))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_what_is_required_comes_with_a_remedy(path: Path) -> None:
    found = [call for called, call in calls(path) if called == "require"]
    bare = {(name(path), written(call.args[1])) for call in found if len(call.args) < 5 or not written(call.args[4])}
    assert not bare


@pytest.mark.parametrize("path", FILES, ids=name)
def test_errors_and_warnings_end_in_a_remedy(path: Path) -> None:
    kinds = {"warn"} | OURS
    messages = [written(call.args[0]) for called, call in calls(path) if called in kinds and call.args]
    assert [message for message in messages if not says_what_to_do(message)] == []


def test_the_check_sees_what_is_missing() -> None:
    assert not says_what_to_do("a family must hold a condition; got none.")
    assert not says_what_to_do("a count must be at least 1; got {}.")
    assert says_what_to_do("a count must be at least 1; got {}. Pass 1.")
    assert says_what_to_do("a name must be one of {}; got {}.{}")


@pytest.mark.parametrize(
    ("ask", "remedy"),
    [
        (lambda: ps.fit({"a": [[1.0]]}), "Add rows, or leave the condition out."),
        (lambda: ps.fit({"a": [[1.0], [2.0]]}, ensemble=0), "Pass 1 for a single model."),
        (lambda: ps.Family({}), "Add a member."),
        (lambda: ps.Gaussian(cov=1.0, dim=0), "Leave dim out where mean or cov tells it."),
        (lambda: ps.parse("a *", ps.Family({"a": ps.Gaussian()})), "Write one there."),
        (lambda: ps.Family({"a": ps.Gaussian()})["zzz"], "Choose one of these."),
        (lambda: ps.FeynmanKac(grid="zzz"), "Choose one of these."),
        (lambda: ps.exact(ps.Family({"a": ps.Gaussian()})["a"], "guess"), "Leave method=None."),
    ],
)
def test_an_error_ends_in_its_remedy(ask, remedy: str) -> None:
    with pytest.raises(PolyscoreError) as told:
        ask()
    assert str(told.value).splitlines()[0].endswith(remedy)


def test_what_a_newcomer_confuses_is_told_what_to_pass_instead():
    """Families, compositions, runs and points, each in the place of another."""
    p = ps.Family({"a": ps.Gaussian(), "b": ps.Gaussian(cov=2.0)})
    run = ps.Denoise(5).sample(p["a"], 20, seed=0)
    for call, remedy in (
        (lambda: ps.exact(p), r"exact target must be that of a composition; got Family\. Take it from a family: p\["),
        (lambda: ps.auto(p), r"must be a composition; got Family\. Take it from a family: p\["),
        (lambda: ps.sliced_wasserstein(run, run.samples), r"got Run\. Pass its `\.samples`"),
        (lambda: ps.plots.scatter(p["a"]), r"got Composition\. Of a composition q draw ps\.auto\(q\)\.sample"),
        (lambda: ps.fit("cells.csv"), r"got str\. .*fit\(frame_or_file, condition_column="),
    ):
        with pytest.raises(PolyscoreError, match=remedy):
            call()


def test_the_rooms_complete_in_a_terminal():
    assert {"plots", "images", "causal", "fit"} <= set(dir(ps))
