"""Small inputs that once took minutes, gigabytes or the whole stack: each is refused at once, in our words.

Where the defect was a hang the call runs in a process of its own, with a guard of a minute: far above what it takes,
far below what it took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import polyscore as ps
from polyscore.algebra.family_file import load_family, parse_family
from polyscore.errors import ExpressionError, PolyscoreError, nearest, require, shorten
from polyscore.experiments.references import read_points
from polyscore.experiments.spec import load_spec, parse_spec
from polyscore.files import yaml_file as yaml_files
from polyscore.files.yaml_file import YamlError

FAMILY = ps.Family({"a1": ps.Gaussian(), "a2": ps.Gaussian(), "base": ps.Gaussian()})


def refused(*calls: str, megabytes: int = 6000) -> list[str]:
    """Run calls in one process with bounded memory; return the message of the error of ours that each must raise."""
    program = f"""
import json, resource
resource.setrlimit(resource.RLIMIT_AS, ({megabytes} << 20,) * 2)
import polyscore as ps
from polyscore.errors import PolyscoreError
def message(call):
    try:
        call()
    except PolyscoreError as error:
        return str(error)
print(json.dumps([message(call) for call in ({"".join(f"lambda: {call}, " for call in calls)})]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:]
    messages = json.loads(done.stdout)
    assert [call for call, message in zip(calls, messages, strict=True) if not message] == []
    return messages


# expressions
def test_long_tokens_cost_their_length() -> None:
    texts = ["'a1^' + '1' * 50_000 + 'x'", "'a1^' + '1' * 49_000 + '.' + '1' * 49_000 + 'x'", "' ' * 99_000 + '?'",
             "'a1^1e' + '1' * 99_000 + '.'", "'\"' + 'a' * 99_000", "'*' * 99_000", "'a1^' + '9' * 90_000",
             "'a' * 99_000"]  # fmt: skip
    found = refused(
        *(f"ps.parse({text}, ps.Family({{'a1': ps.Gaussian()}}))" for text in texts),
        "ps.Family({'a' * 200: ps.Gaussian()})['ab' * 2_000_000]",
    )
    assert all(len(message) < 1000 for message in found) and all("^" in message for message in found[:-1])


def test_an_expression_is_bounded_in_length_and_depth() -> None:
    with pytest.raises(ExpressionError, match="must be at most 100000 characters long; got 10000000"):
        ps.parse("a1*" * 3_333_333 + "a", FAMILY)
    for depth in (101, 330, 40_000):
        with pytest.raises(ExpressionError, match="parentheses must nest at most 100 deep"):
            ps.parse("(" * depth + "a1" + ")" * depth, FAMILY)
    assert ps.parse("(" * 100 + "a1" + ")" * 100, FAMILY) == FAMILY["a1"]
    assert ps.parse("(a1)" + "*(a1)" * 5000, FAMILY).exponents == {"a1": 5001}  # beside one another is not deep


@pytest.mark.parametrize("power", ["1e999", "-1e999", "1e-400", "1e-13", "(1/1e999)", "9" * 400])
def test_powers_that_a_float_cannot_hold_are_refused(power: str) -> None:
    with pytest.raises(ExpressionError, match="a power must be 0 or between 1e-12 and 1e308"):
        ps.parse(f"a1^{power}", FAMILY)
    with pytest.raises(PolyscoreError, match="must be a finite number"):
        ps.parse("(a1^1e200)^1e200", FAMILY)
    assert ps.parse("a1 * a2^0e5 * base^-0.0", FAMILY).exponents == {"a1": 1}


@pytest.mark.parametrize("text", ["a1^\u0661", "a1^\uff11", "a1^\u00b2", "a1\u200b", "\u202ea1", "\uff411", "a1^1_000"])
def test_letters_and_digits_that_only_look_alike_are_no_numbers_and_names(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        ps.parse(text, FAMILY)
    assert str(caught.value).replace("\n", "").isprintable()


def test_what_is_known_is_listed_up_to_a_bound() -> None:
    assert "Did you mean 'base'?" in nearest("bas", FAMILY)
    many = ps.Family({f"condition {k}": ps.Gaussian() for k in range(5000)})
    with pytest.raises(PolyscoreError, match=r"\(5000 in all\); got 'nobody'"):
        many["nobody"]


# values in messages
def test_the_text_of_a_bomb_is_bounded() -> None:
    bomb: object = "boom"
    for _ in range(60):
        bomb = {"key": [bomb] * 10}
    assert len(shorten(bomb)) <= 200
    for value in (bomb, "x" * 10**7, 10**5000, [10**5000], {"a": "\x1b[31m" * 100}, ("\ud800\u202e",)):
        with pytest.raises(PolyscoreError) as caught:
            require(False, "a value", "be small", value, "Shrink it.")
        message = str(caught.value)
        assert len(message) < 300 and message.isprintable() and message.endswith("Shrink it.")


def test_a_message_keeps_its_rule_and_its_remedy() -> None:
    text = str(PolyscoreError("a path must be short; got '" + "x" * 10**6 + "\x1b'. Choose another.\n  line"))
    assert len(text) < 4100 and text.startswith("a path must be short")
    assert text.endswith("x\\x1b'. Choose another.\n  line")


def test_an_object_that_cannot_be_shown_does_not_hide_the_error() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    with pytest.raises(PolyscoreError, match="a value must be a number; got <Silent"):
        require(False, "a value", "be a number", Silent())


# YAML, in family files and in specs
def doubling(first: str, entry: str, levels: int = 9) -> str:
    """A document of a few hundred bytes in which every line holds ten times the line before."""
    names = "abcdefghijkl"
    pairs = pairwise(names[: levels + 1])
    lines = [f"{after}: &{after} {entry.format(','.join([f'*{before}'] * 10))}" for before, after in pairs]
    return "\n".join([f"a: &a {first}", *lines])


BOMBS = {
    "lists": (doubling("[x, x, x]", "[{}]"), "more than 250000 entries, aliases written out"),
    "mappings": (doubling("{k: 1}", "{{k: [{}]}}"), "more than 250000 entries"),
    "merges": (doubling("{k: 1}", "{{<<: [{}]}}"), "more than 250000 entries"),
    "chain": (
        "a0: &a0 [1]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}]\n" for k in range(1, 3000)),
        "aliases nest more than 40",
    ),
    "itself": ("a: &a [*a]", "an alias stands inside what it names"),
    "itself, a mapping": ("&a {b: *a}", "an alias stands inside what it names"),
    "brackets": ("[" * 100_000, "nest more than 40 deep"),
    "braces": ("{a: " * 5000, "nest more than 40 deep"),
    "dashes": ("- " * 3000, "nest more than 40 deep"),
    "indents": ("".join(" " * k + "a:\n" for k in range(500)), "nest more than 40 deep"),
    "digits": ("a: " + "1" * 5000, "one entry has more than 1000 characters"),
    "megabytes": ("a: 1  # " + "x" * 5_000_000, "a file must be at most 4 MB"),
}


@pytest.mark.parametrize("read", [parse_family, parse_spec])
@pytest.mark.parametrize(("text", "words"), BOMBS.values(), ids=BOMBS)
def test_yaml_bombs_are_refused(text: str, words: str, read: Callable[[str], object]) -> None:
    with pytest.raises(PolyscoreError, match=words) as caught:
        read(text)
    assert len(str(caught.value)) < 700


def test_the_bomb_that_once_went_off_does_so_no_more() -> None:
    """300 bytes in the place of a value: 30 s and 5.5 GB, spent on its repr in the message of the rule it broke."""
    lines = doubling("[x, x, x]", "[{}]").splitlines()
    bomb = ", ".join(line.split(": ", 1)[1] for line in lines)
    family = f"conditions: {{z: {{kind: gaussian, cov: [{bomb}]}}}}"
    spec = f"experiments: {{z: {{setting: mixture-ood, runs: [{bomb}]}}}}"
    found = refused(
        f"__import__('polyscore.algebra.family_file').algebra.family_file.parse_family({family!r})",
        f"__import__('polyscore.experiments.spec').experiments.spec.parse_spec({spec!r})",
        megabytes=4000,
    )
    assert all(len(message) < 1000 for message in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!int abc", "'abc' is not a whole number"), ("a: !!float abc", "'abc' is not a number"),
        ("a: !!bool abc", "'abc' is neither true nor false"), ("a: !!int ''", "is not a whole number"),
        ("a: !!binary eA==", "tag:yaml.org,2002:binary"), ("a: !!timestamp 2001-01-01", "2002:timestamp"),
        ("a: !!set {x}", "2002:set"), ("a: !mine 1", "the tag '!mine'"),
        ("a: !!python/name:os.system x", "python/name"),
        ("a: 010", "'010' is not a whole number"), ("a: \0", r"the character '\x00' at line 1"),
        ("yes: 1", "the key 'yes' would be read as True: write it in quotes"),
        ("0x1: 1", "the key '0x1' would be read as 1"),
        ("1: 1\n0x1: 2", "the key '0x1' would be read as 1"), ("1: a\n'1': b", "the key '1' stands twice"),
        ("~: 1", "would be read as None"), ("{a: 1}: 2", "a key must be a name"), ("--- 1\n--- 2", "another document"),
        ("a: *b", "undefined alias"), ("a: \ud800", r"the character '\ud800'"),
        ("%YAML 9.9\n---\na: 1", "incompatible"),
    ],
)  # fmt: skip
def test_wrong_scalars_keys_and_tags_are_our_errors(text: str, words: str) -> None:
    with pytest.raises(YamlError, match="must be valid YAML") as caught:
        yaml_files.parse(text)
    assert words in str(caught.value)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


def test_plain_yaml_means_what_it_looks_like() -> None:
    text = "\ufeffshared: &s {p: 1, q: 2}\nown: {<<: *s, q: 3}\n"
    text += "1: [1e-4, -.5, 1_000, 0x10, .inf, yes, null, 1:30, 2001-99-99, '010']"
    assert yaml_files.parse(text) == {
        "shared": {"p": 1, "q": 2}, "own": {"p": 1, "q": 3},
        "1": [1e-4, -0.5, 1000, 16, float("inf"), True, None, "1:30", "2001-99-99", "010"],
    }  # fmt: skip
    assert yaml_files.parse("") is None and yaml_files.parse("1e5: 1e5") == {"1e5": 1e5}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfea\x00:\x00", "UTF-16, not UTF-8 text"),
        (b"\x80abc", "not UTF-8 text"),
        (b"x" * 5_000_000, "larger than 4 MB"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "f.yaml").write_bytes(content)
    for path in (tmp_path / "f.yaml", tmp_path, tmp_path / "none", "nul\0", "x" * 5000, "/dev/zero"):
        for load in (load_family, load_spec):
            with pytest.raises(PolyscoreError, match="readable") as caught:
                load(path)
            assert path != tmp_path / "f.yaml" or reason in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    ["dim: 2.7", "dim: '2'", "dim: yes", "cov: 2001-01-01", "cov: .nan", "cov: .inf", "cov: [1, yes]", "mean: 1:30",
     "cov: " + "1" * 900, "dim: 1000000000000000", "cov: {a: 1}", "mean: ~~", "cov: '1.0'"],
)  # fmt: skip
def test_numbers_of_a_family_file_are_numbers(entry: str) -> None:
    with pytest.raises(PolyscoreError, match=f"condition 'a': {entry.split(':')[0]} must|condition 'a': a Gaussian in"):
        parse_family(f"conditions: {{a: {{kind: gaussian, {entry}}}}}")


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    """A FIFO that nobody writes to blocks whoever opens it; a device has no end."""
    pipe, csv, npz, zeros = (tmp_path / name for name in ("pipe.yaml", "pipe.csv", "pipe.npz", "zeros.csv"))
    for path in (pipe, csv, npz):
        os.mkfifo(path)
    zeros.symlink_to("/dev/zero")
    readers = {"load_family": [pipe, zeros], "load_spec": [pipe, zeros], "read_points": [csv, npz, zeros]}
    where = {"load_family": "algebra.family_file", "load_spec": "experiments.spec"}
    calls = [
        f"__import__('polyscore.{where.get(reader, 'experiments.references')}', fromlist=['x'])"
        f".{reader}(__import__('pathlib').Path({str(path)!r}))"
        for reader, paths in readers.items()
        for path in paths
    ]
    assert all("no regular file" in message for message in refused(*calls))


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("conditions: {a: {kind: gaussian}}")
    (tmp_path / "link.yaml").symlink_to("real")
    assert list(load_family(tmp_path / "link.yaml")) == ["a"]


def test_a_small_archive_of_many_points_is_refused(tmp_path: Path) -> None:
    """Zeros shrink a thousandfold: 2 MB of file stood for 2 GB of points."""
    with (
        zipfile.ZipFile(tmp_path / "zeros.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("samples.npy", "w", force_zip64=True) as file,
    ):
        for _ in range(101):
            file.write(bytes(10**7))
    with pytest.raises(PolyscoreError, match=r"larger than 1000 MB"):
        read_points(tmp_path / "zeros.npz")
