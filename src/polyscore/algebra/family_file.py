"""Families written as YAML, so that a composition can be sampled from the command line.

schedule: {kind: VP, beta_min: 0.1, beta_max: 20.0}     # optional
conditions:
  a1: {kind: gaussian, mean: [0, 0], cov: [10, 1]}
  base: {kind: mixture, means: [[0, 0], [1, 1]], cov: 0.36, weights: [0.5, 0.5]}
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from polyscore.algebra import Family
from polyscore.distributions import Distribution, Gaussian, Mixture
from polyscore.errors import ArgumentError, PolyscoreError, check_conditions, cut, nearest, shorten
from polyscore.files import yaml_file as yaml_files
from polyscore.files.yaml_file import YamlError
from polyscore.schedules import SCHEDULES, Schedule, from_dict

_KINDS: dict[str, tuple[Callable[..., Distribution], tuple[str, ...]]] = {
    "gaussian": (Gaussian, ("mean", "cov", "dim")),
    "mixture": (Mixture, ("means", "cov", "weights")),
}


class FamilyFileError(ArgumentError):
    """A family file that breaks a rule; the message names the file and the place in it."""


def load_family(path: Path | str) -> Family:
    """Return the family described by a YAML file."""
    try:
        text = yaml_files.read_text(path)
    except YamlError as error:
        raise FamilyFileError(
            f"a family file must be readable; got {shorten(str(path))} ({error}). Check the path."
        ) from error
    return parse_family(text, Path(path).name)


def parse_family(text: str, source: str = "family") -> Family:
    """Return the family described by YAML text; `source` names it in errors."""
    try:
        return _family(yaml_files.parse(text))
    except PolyscoreError as error:
        raise FamilyFileError(f"{cut(source)}: {error}") from error


def _family(document: Any) -> Family:
    _mapping(document, "a family file", "Begin with `conditions:`.")
    _known(document, ("schedule", "conditions"), "a key of the file")
    if "conditions" not in document:
        raise ArgumentError("a family file must have `conditions`; got none. Add `conditions:` with one entry each.")
    conditions = _mapping(document["conditions"], "conditions", "Write one `name: {kind: ...}` a line.")
    check_conditions(conditions)
    members = {name: _member(name, entry) for name, entry in conditions.items()}
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
    _known([fields.get("kind")], tuple(SCHEDULES), "the schedule's kind")
    try:
        return from_dict(fields)
    except PolyscoreError as error:
        raise ArgumentError(f"schedule: {error}") from error


def _mapping(value: Any, subject: str, remedy: str) -> dict[Any, Any]:
    if not isinstance(value, dict) or not value:
        shown = "nothing" if value is None or value == {} else shorten(value)
        raise ArgumentError(f"{subject} must be a mapping with at least one entry; got {shown}. {remedy}")
    return value


def _known(names: Collection[Any], valid: tuple[str, ...], subject: str) -> None:
    for name in names:
        if not isinstance(name, str) or name not in valid:
            hint = nearest(name, valid, cutoff=0.6) or " Remove it."
            raise ArgumentError(f"{subject} must be one of {', '.join(valid)}; got {shorten(name)}.{hint}")
