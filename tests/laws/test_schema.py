"""Names that a user can add, and what fields may hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from polyscore.errors import ArgumentError
from polyscore.registry import Registry
from polyscore.schema import Checked, choice, count, each, flag, number, optional, setting, text

SHAPES = Registry("a shape", {"circle": 1, "square": 2}, hint="Import the module that registers it.")


@dataclass(frozen=True)
class Box(Checked):
    """A thing with one field of every kind."""

    size: int = setting(3, count(2, 10))
    share: float = setting(0.5, number(0, 1, ends=False))
    reach: float | None = setting(None, optional(number(0)))
    shape: str = setting("circle", choice(SHAPES))
    open: bool = setting(True, flag())
    label: str = setting("", text(5))
    parts: tuple[int, ...] = setting((1,), each(count(), least=1))


@dataclass(frozen=True)
class Needy(Checked):
    """A thing with a field that must be given."""

    size: int
    share: float = setting(0.5, number(0, 1))


def test_a_registry_is_a_mapping_that_grows():
    grown = Registry[object]("a thing", {"one": 1})

    @grown.register("two")
    class Two:
        """Added from outside."""

    assert grown["two"] is Two
    assert list(grown) == ["one", "two"]
    assert len(grown) == 2
    assert "three" not in grown


def test_what_a_registry_lacks_is_told_apart_from_what_is_misspelt():
    with pytest.raises(ArgumentError, match=r"must be one of circle, square; got 'circel'. Did you mean 'circle'"):
        SHAPES["circel"]
    with pytest.raises(ArgumentError, match=r"got 'xyz'. Import the module"):
        SHAPES["xyz"]
    for odd in ([1], {}, None, 3, "circle" * 10_000):
        with pytest.raises(ArgumentError):
            SHAPES[odd]  # type: ignore[index]
        assert odd not in SHAPES


def test_a_name_stands_for_one_thing():
    grown = Registry[object]("a thing", {"one": 1})
    with pytest.raises(ArgumentError, match="a name of its own; got 'one' again"):
        grown.register("one")(2)
    grown.register("one")(1)  # the same again is no harm

    def define() -> type:
        class Again:
            """Defined anew at every call, as by a module that is imported twice."""

        return Again

    first, second = define(), define()
    grown.register("again")(first)
    assert grown.register("again")(second) is grown["again"]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101, 3, None])
def test_a_name_is_short_and_printable(name):
    with pytest.raises(ArgumentError, match="short printable name"):
        Registry[object]("a thing").register(name)


GOOD = [
    ("size", np.int64(4), 4), ("share", np.float32(0.25), 0.25), ("reach", 2, 2.0), ("reach", None, None),
    ("shape", "square", "square"), ("open", np.bool_(False), False), ("label", "ab", "ab"), ("parts", [3, 1], (3, 1)),
]  # fmt: skip
BAD = [
    ("size", True), ("size", 11), ("size", 1), ("size", 2.0), ("size", "3"), ("share", 0), ("share", 1.0),
    ("share", float("nan")), ("share", True), ("reach", -1), ("reach", float("inf")), ("reach", "far"),
    ("shape", "cube"), ("shape", ["circle"]), ("open", 1), ("open", "yes"), ("label", "a\x1b"), ("label", "abcdef"),
    ("parts", []), ("parts", [1, 1]), ("parts", [0]), ("parts", 1), ("parts", "12"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "kept"), GOOD)
def test_values_are_kept_as_pythons_own(name, given, kept):
    value = getattr(Box(**{name: given}), name)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(("name", "value"), BAD)
def test_values_outside_a_domain_are_refused_by_name(name, value):
    with pytest.raises(ArgumentError, match=rf"^{name} must (be|hold) .*; got "):
        Box(**{name: value})
    with pytest.raises(ArgumentError, match=rf"^{name} must (be|hold) "):
        Box.parse({name: value}, "a box")


def test_a_mapping_becomes_one_and_unknown_keys_are_named():
    assert Box.parse({"size": 5, "parts": [2]}, "a box") == Box(size=5, parts=(2,))
    with pytest.raises(ArgumentError, match=r"a key of a box must be one of size, .*; got 'sise'. Did you mean 'size'"):
        Box.parse({"sise": 5}, "a box")
    with pytest.raises(ArgumentError, match=r"a box must be a mapping; got \[1\]"):
        Box.parse([1], "a box")
    with pytest.raises(ArgumentError, match=r"a thing must have size; got none. Add `size:`"):
        Needy.parse({"share": 0.1}, "a thing")


def test_a_name_that_nearly_fits_is_suggested():
    with pytest.raises(ArgumentError, match="Did you mean 'square'"):
        Box(shape="sqare")


def test_a_choice_grows_with_its_registry():
    grown = Registry[int]("a shape", {"circle": 1})

    @dataclass(frozen=True)
    class Late(Checked):
        """Its registry grows after it was defined."""

        shape: str = setting("circle", choice(grown))

    grown.register("hexagon")(6)
    assert Late("hexagon").shape == "hexagon"
    with pytest.raises(ArgumentError, match=r"shape must be one of circle, hexagon; got 'cube'"):
        Late("cube")
