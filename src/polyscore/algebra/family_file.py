"""Families written as YAML, so that a composition can be sampled from the command line.

schedule: {kind: VP, beta_min: 0.1, beta_max: 20.0}     # optional
conditions:
  a1: {kind: gaussian, mean: [0, 0], cov: [10, 1]}
  base: {kind: mixture, means: [[0, 0], [1, 1]], cov: 0.36, weights: [0.5, 0.5]}

A kind is a name in `distributions.KINDS`, and its keys are the parameters of what stands there; a name imports nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from polyscore.algebra import Family
from polyscore.distributions import KINDS, Distribution
from polyscore.errors import ArgumentError, PolyscoreError, check_conditions, cut, require_known, shorten
from polyscore.files import yaml_file as yaml_files
from polyscore.files.yaml_file import YamlError
from polyscore.schedules import SCHEDULES, Schedule, from_dict

_EXAMPLES = {"means": "[[0, 0], [1, 1]]"}  # of what a key may hold, where a number would not do


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
        raise ArgumentError(f"{subject} must have a kind, one of {', '.join(KINDS)}; got none. Add `kind: gaussian`.")
    _known([kind], tuple(KINDS), f"the kind of {subject}", KINDS.hint)
    build = KINDS[kind]
    _check_keys(fields, build, subject)
    try:
        member = build(**fields)
    except PolyscoreError as error:
        raise ArgumentError(f"{subject}: {error}") from error
    except (Exception, SystemExit) as error:  # a user's own class may say no in its own words
        raise ArgumentError(
            f"{subject} must be what {kind} can be made of; got {shorten(fields)}: {type(error).__name__}: "
            f"{str(error)[:500]}. Correct its keys."
        ) from error
    if not isinstance(member, Distribution):
        raise ArgumentError(
            f"the kind {kind!r} must make a distribution; got {type(member).__name__}. Derive it from ps.Density or "
            "ps.Distribution."
        )
    return member


def _check_keys(fields: dict[Any, Any], build: Callable[..., Distribution], subject: str) -> None:
    """Check that an entry's keys are parameters of what it builds, and that none is missing that must be there."""
    parameters = inspect.signature(build).parameters.values()
    names = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        _known(fields, tuple(p.name for p in names), f"a key of {subject}")
    for missing in (p.name for p in names if p.default is p.empty and p.name not in fields):
        raise ArgumentError(f"{subject} must have {missing}; got none. Add `{missing}: {_EXAMPLES.get(missing, 1.0)}`.")


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


def _known(names: Collection[Any], valid: tuple[str, ...], subject: str, remedy: str = "Remove it.") -> None:
    for name in names:
        require_known(name, valid, subject, remedy)
