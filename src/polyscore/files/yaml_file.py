"""YAML as family files and specs need it: mappings, lists, numbers, truth and text, bounded in every direction.

Anchors and merge keys are allowed and counted as what they expand to, so that a few lines cannot stand for more than a
file could. A key is text as it is written, and stands once. Nothing is guessed: dates and sexagesimals are text, a
number with a leading zero is refused, and so is every tag of a type that is not named above.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from polyscore.errors import PolyscoreError, cut, shorten, visible
from polyscore.files.regular import open_regular

FILE_BYTES, NODES, DEPTH, SCALAR = 4_000_000, 250_000, 40, 1000
_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + kind for kind in ("str", "int", "float", "bool", "null", "merge")}


class YamlError(PolyscoreError):
    """Text that is no YAML of ours; the message says where."""


def read_text(path: Path | str) -> str:
    """Return a file's text; a `YamlError` says why it cannot be read. Pipes and devices are not read at all."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            content = file.read(FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise YamlError(getattr(error, "strerror", None) or str(error)) from error
    if len(content) > FILE_BYTES:
        raise YamlError(f"larger than {FILE_BYTES // 10**6} MB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise YamlError("UTF-16, not UTF-8 text" if wide else "not UTF-8 text") from error


def parse(text: str) -> Any:
    """Return what YAML text describes; keys are strings."""
    if len(text) > FILE_BYTES:
        raise YamlError(f"a file must be at most {FILE_BYTES // 10**6} MB; got {len(text)} characters. Shorten it.")
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = shorten(text[error.position : error.position + 1])
        raise YamlError(f"a file must be valid YAML; got the character {found} at line {line}. Remove it.") from error
    except yaml.YAMLError as error:
        raise YamlError(_sentence(error)) from error


def _sentence(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    lines = (mark.get_snippet(indent=2) or "").split("\n") if mark and mark.buffer else []
    problem = cut(getattr(error, "problem", None) or "cannot be read")
    snippet = "".join(f"\n{visible(line)}" for line in lines)
    return f"a file must be valid YAML; got an error{place}: {problem}. Correct that line.{snippet}"


def _fail(problem: str, mark: Any) -> NoReturn:
    raise yaml.constructor.ConstructorError(None, None, problem, mark)


class _Loader(yaml.SafeLoader):
    """SafeLoader with bounds, keys that stand once, and numbers that mean what they look like."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  (PyYAML's own name; filled below)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = 0  # collections around the node that is being read
        self._expanded: dict[int, tuple[int, int]] = {}  # by node: entries and depth, aliases written out

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node, measured with its aliases written out."""
        event = self.peek_event()
        if self._open >= DEPTH:
            _fail(f"lists and mappings nest more than {DEPTH} deep", event.start_mark)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > SCALAR:
            _fail(f"one entry has more than {SCALAR} characters", event.start_mark)
        self._open += 1
        node = super().compose_node(parent, index)
        self._open -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._check_tag(node)
            self._expanded[id(node)] = self._measure(node)
        entries, depth = self._expanded.get(id(node)) or _fail("an alias stands inside what it names", event.start_mark)
        if entries > NODES or len(self._expanded) > NODES:
            _fail(f"more than {NODES} entries, aliases written out", event.start_mark)
        if depth > DEPTH:
            _fail(f"aliases nest more than {DEPTH} deep", event.start_mark)
        return node

    def _measure(self, node: Any) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        pairs = isinstance(node, yaml.MappingNode)
        children = [child for pair in node.value for child in pair] if pairs else node.value
        sizes = [self._expanded[id(child)] for child in children]
        return 1 + sum(size for size, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)

    def _check_tag(self, node: Any) -> None:
        known = _SCALARS if isinstance(node, yaml.ScalarNode) else {_TAG + "map", _TAG + "seq"}
        if node.tag not in known:
            _fail(f"the tag {shorten(node.tag, 80)} is none of those allowed", node.start_mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping with its keys as they are written, or fail at the second of two equal ones."""
        seen: set[str] = set()
        for key, _ in node.value:
            text = self._key(key)
            if text in seen:
                _fail(f"the key {shorten(text, 80)} stands twice", key.start_mark)
            seen.add(text)
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)  # brings in what `<<` names; own keys come last and win
        return {self._key(key): self.construct_object(value, deep) for key, value in node.value}

    def _key(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            _fail("a key must be a name", node.start_mark)
        if node.tag in (_TAG + "str", _TAG + "merge"):
            return str(node.value)
        value = self.construct_object(node)
        exponential = isinstance(value, float) and "." not in node.value  # 1e5 is text to YAML 1.1: a name it may be
        if str(value) != node.value and not exponential:
            _fail(f"the key {shorten(node.value, 80)} would be read as {value}: write it in quotes", node.start_mark)
        return str(node.value)


def _int(loader: _Loader, node: Any) -> int:
    try:
        return int(loader.construct_scalar(node).replace("_", ""), 0)
    except ValueError:
        _fail(f"{shorten(node.value, 80)} is not a whole number that can be read", node.start_mark)


def _float(loader: _Loader, node: Any) -> float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    try:
        return float(re.sub(r"^([-+]?)\.(?=inf$|nan$)", r"\1", text))
    except ValueError:
        _fail(f"{shorten(node.value, 80)} is not a number", node.start_mark)


def _bool(loader: _Loader, node: Any) -> bool:
    found = loader.bool_values.get(loader.construct_scalar(node).lower())
    return (
        found if found is not None else _fail(f"{shorten(node.value, 80)} is neither true nor false", node.start_mark)
    )


_Loader.add_constructor(_TAG + "int", _int)
_Loader.add_constructor(_TAG + "float", _float)
_Loader.add_constructor(_TAG + "bool", _bool)
for _kind, _pattern, _first in (
    ("bool", r"(?i:yes|no|true|false|on|off)", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0b[01_]++|0o[0-7_]++|0x[0-9a-fA-F_]++|[0-9][0-9_]*+)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:(?:[0-9][0-9_]*+(?:\.[0-9_]*+)?+|\.[0-9][0-9_]*+)(?:[eE][-+]?[0-9]++)?+|\.(?i:inf))|\.(?i:nan)",
        "-+0123456789.",
    ),
    ("merge", "<<", "<"),
    ("null", r"~|(?i:null)|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"^(?:{_pattern})$"), list(_first))
