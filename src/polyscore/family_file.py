"""Families written as YAML, so that a composition can be sampled from the command line.

schedule: {kind: VP, beta_min: 0.1, beta_max: 20.0}     # optional
conditions:
  a1: {kind: gaussian, mean: [0, 0], cov: [10, 1]}
  base: {kind: mixture, means: [[0, 0], [1, 1]], cov: 0.36, weights: [0.5, 0.5]}
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import yaml

from polyscore.algebra import Family
from polyscore.distributions import Distribution, Gaussian, Mixture
from polyscore.errors import ArgumentError, PolyscoreError
from polyscore.schedules import Schedule, from_dict

_KINDS: dict[str, tuple[Callable[..., Distribution], tuple[str, ...]]] = {
    "gaussian": (Gaussian, ("mean", "cov", "dim")),
    "mixture": (Mixture, ("means", "cov", "weights")),
}
_SCHEDULES = ("VP", "DDPM", "Cosine", "LinearFlow")


class FamilyFileError(ArgumentError):
    """A family file that breaks a rule; the message names the file and the place in it."""


def load_family(path: Path | str) -> Family:
    """Return the family described by a YAML file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise FamilyFileError(
            f"a family file must be readable; got {str(path)!r} ({reason}). Check the path."
        ) from error
    return parse_family(text, path.name)


def parse_family(text: str, source: str = "family") -> Family:
    """Return the family described by YAML text; `source` names it in errors."""
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise FamilyFileError(_syntax(error, source)) from error
    try:
        return _family(document)
    except PolyscoreError as error:
        raise FamilyFileError(f"{source}: {error}") from error


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, which YAML would silently let win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping, or fail at the second of two equal keys."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} occurs twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _syntax(error: yaml.YAMLError, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    snippet = f"\n{mark.get_snippet(indent=2)}" if mark and mark.buffer else ""
    problem = getattr(error, "problem", None) or "cannot be read"
    return f"{source}: a family file must be valid YAML; got an error{place}: {problem}. Correct that line.{snippet}"


def _family(document: Any) -> Family:
    _mapping(document, "a family file", "Begin with `conditions:`.")
    _known(document, ("schedule", "conditions"), "a key of the file")
    if "conditions" not in document:
        raise ArgumentError("a family file must have `conditions`; got none. Add `conditions:` with one entry each.")
    conditions = _mapping(document["conditions"], "conditions", "Write one `name: {kind: ...}` a line.")
    members = {str(name): _member(str(name), entry) for name, entry in conditions.items()}
    return Family(members, _schedule(document.get("schedule")))


def _member(name: str, entry: Any) -> Distribution:
    subject = f"condition {name!r}"
    fields = dict(_mapping(entry, subject, "Write {kind: gaussian, cov: 1.0}."))
    kind = fields.pop("kind", None)
    if kind is None:
        raise ArgumentError(f"{subject} must have a kind, one of {', '.join(_KINDS)}; got none. Add `kind: gaussian`.")
    _known([kind], tuple(_KINDS), f"the kind of {subject}")
    build, names = _KINDS[kind]
    _known(fields, names, f"a key of {subject}")
    if kind == "mixture" and "means" not in fields:
        raise ArgumentError(f"{subject} must have means (a list of points); got none. Add `means: [[0, 0], [1, 1]]`.")
    try:
        return build(**fields)
    except PolyscoreError as error:
        raise ArgumentError(f"{subject}: {error}") from error


def _schedule(entry: Any) -> Schedule | None:
    if entry is None:
        return None
    fields = _mapping({"kind": entry} if isinstance(entry, str) else entry, "schedule", "Write {kind: VP}.")
    _known([fields.get("kind")], _SCHEDULES, "the schedule's kind")
    try:
        return from_dict(fields)
    except TypeError as error:
        raise ArgumentError(f"schedule must have numbers as options; got {fields}. Write {{kind: VP}}.") from error


def _mapping(value: Any, subject: str, remedy: str) -> dict[Any, Any]:
    if not isinstance(value, dict) or not value:
        shown = "nothing" if value in (None, {}) else repr(value)
        raise ArgumentError(f"{subject} must be a mapping with at least one entry; got {shown}. {remedy}")
    return value


def _known(names: Collection[Any], valid: tuple[str, ...], subject: str) -> None:
    for name in names:
        if name not in valid:
            near = difflib.get_close_matches(str(name), valid, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " Remove it."
            raise ArgumentError(f"{subject} must be one of {', '.join(valid)}; got {name!r}.{hint}")
