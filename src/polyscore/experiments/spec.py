"""Experiments as YAML: everything that changes a result, checked before anything is computed.

families: {mine: family.yaml, other: my_module:make_family}
samplers: {naive: {kind: denoise, steps: 100}, corrected: {kind: feynman-kac, particles: 16}}
protocol: {swarms: 2000}                    # shared by the experiments below; optional
experiments:
  mine: {family: mine, expression: "a * b / control", samplers: [naive, corrected], models: [analytic, conditional]}

Files are named relative to the spec. `module:function` is code that runs: only a spec of one's own may name it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyscore.errors import PolyscoreError, cut, require, require_known, shorten
from polyscore.experiments.cells import ANALYTIC
from polyscore.experiments.checks import check_size
from polyscore.experiments.entries import (
    TITLE,
    SpecError,
    about,
    check_name,
    listed_names,
    metrics_of,
    networks_of,
    protocol_of,
    unknown,
)
from polyscore.experiments.experiment import Experiment
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.references import read_points
from polyscore.experiments.sources import Source, beside, find_source
from polyscore.files import yaml_file
from polyscore.files.yaml_file import YamlError
from polyscore.samplers import build_sampler, describe

_TOP = ("families", "samplers", "protocol", "experiments")
_KEYS = ("family", "expression", "models", "train_sizes", "particles", "samplers", "runs", "metrics",
         "conditions_alone", "reference", "protocol")  # fmt: skip


@dataclass(frozen=True)
class Ground:
    """What a spec stands on: families that it need not bring along, and what it may leave out.

    Attributes:
        protocol: what a protocol leaves out.
        experiment: what an experiment leaves out.
        translate: an entry in other words, as this reader's.
        example: of an experiment, for messages.
    """

    families: Mapping[str, Source] = field(default_factory=dict)
    protocol: Protocol = field(default_factory=Protocol)
    experiment: Mapping[str, Any] = field(default_factory=dict)
    translate: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    example: str = "{family: mine, expression: a * b / control}"


@dataclass(frozen=True)
class _Shelf:
    """What the experiments of one spec may name."""

    folder: Path
    families: dict[str, Source]
    samplers: dict[str, Any]
    shared: Mapping[str, Any]
    ground: Ground


def load_spec(path: str | Path, ground: Ground | None = None) -> dict[str, Experiment]:
    """Return the experiments of a YAML file by name."""
    try:
        text = yaml_file.read_text(path)
    except YamlError as error:
        raise SpecError(
            f"a spec must be a readable YAML file; got {shorten(str(path))} ({error}). Check the path."
        ) from error
    return parse_spec(text, cut(str(path)), Path(path).parent, ground)


def parse_spec(
    text: str, source: str = "a spec", folder: Path | None = None, ground: Ground | None = None
) -> dict[str, Experiment]:
    """Return the experiments of a spec file's text by name; a shared `protocol` fills what an experiment leaves out."""
    ground = ground or Ground()
    try:
        content = yaml_file.parse(text)
    except YamlError as error:
        raise SpecError(f"{source}: {error}") from error
    _check_top(content, source, ground)
    try:
        shelf = _shelf(content, folder or Path("."), ground)
        for name in content["experiments"]:
            check_name(name, TITLE, "an experiment")
    except PolyscoreError as error:
        raise SpecError(f"{source}: {error}") from error
    found = {name: _one(name, entry, shelf, source) for name, entry in content["experiments"].items()}
    return {name: e if e.name == name else dataclasses.replace(e, label=name) for name, e in found.items()}


def _check_top(content: Any, source: str, ground: Ground) -> None:
    for key in content if isinstance(content, Mapping) else ():
        require_known(key, _TOP, f"a key of {source}", "Move it below one of them.", SpecError)
    if not isinstance(content, Mapping) or not isinstance(content.get("experiments"), Mapping):
        raise SpecError(
            f"{source} must hold `experiments:`, a mapping from name to experiment; got {shorten(content, 80)}. "
            f"Write experiments: {{my-name: {ground.example}}}."
        )


def _section(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name) or {}
    require(isinstance(found, Mapping), f"`{name}`", "be a mapping from name to value", shorten(found, 80),
            f"Write {name}: {{name: value}}.")  # fmt: skip
    return dict(found)


def _shelf(content: Mapping[str, Any], folder: Path, ground: Ground) -> _Shelf:
    families, samplers = _section(content, "families"), _section(content, "samplers")
    for name in families:
        check_name(name, None, "a family")
        require(name not in ground.families, "a family", "have a name of its own", name, "Choose another.")
    for name in samplers:
        check_name(name, None, "a sampler")
    found = {name: about(f"family {name}", find_source, text, folder) for name, text in families.items()}
    built = {name: about(f"sampler {name}", _sampler, given) for name, given in samplers.items()}
    return _Shelf(folder, {**ground.families, **found}, built, _section(content, "protocol"), ground)


def _sampler(given: Any) -> Any:
    """A sampler's entry, once it has been built from it and described."""
    require(isinstance(given, (Mapping, str)), "a sampler", "be a kind, or a mapping with one", shorten(given, 80),
            "Write {kind: denoise, steps: 100}.")  # fmt: skip
    describe(build_sampler(given))
    return given


def _one(name: str, entry: Any, shelf: _Shelf, source: str) -> Experiment:
    if not isinstance(entry, Mapping):
        raise SpecError(
            f"experiment {shorten(name)} of {source} must be a mapping; got {shorten(entry, 80)}. "
            f"Write {shelf.ground.example}."
        )
    try:
        return parse_experiment(entry, shelf)
    except PolyscoreError as error:
        raise SpecError(f"{source}, experiment {name}: {error}") from error


def parse_experiment(entry: Mapping[str, Any], shelf: _Shelf | None = None, ground: Ground | None = None) -> Experiment:
    """Return the experiment of a mapping as YAML gives it; `SpecError` says what is wrong with it."""
    shelf = shelf or _shelf({}, Path("."), ground or Ground())
    try:
        experiment = _experiment(shelf.ground.translate(entry), shelf)
        experiment.exponents()
        check_size(experiment)
        return experiment
    except SpecError:
        raise
    except PolyscoreError as error:
        raise SpecError(str(error)) from error


def _experiment(entry: Mapping[str, Any], shelf: _Shelf) -> Experiment:
    for key in entry:
        require_known(key, _KEYS, "a key of an experiment", "Leave it out.", SpecError)
    given = {**shelf.ground.experiment, **entry}
    family = given.get("family")
    remedy = f"Write family: one of {listed_names(shelf.families)}."
    require(family is not None, "family", "be given", "nothing", remedy)
    if not isinstance(family, str) or family not in shelf.families:
        raise SpecError(unknown("a family", family, shelf.families))
    networks = networks_of(given.get("models", (ANALYTIC,)))
    functions = metrics_of(given.get("metrics", ()), shelf.folder)
    fields = {name: value for name, value in given.items() if name in Experiment.names()}
    fields |= {"samplers": _samplers(given, entry, shelf), "models": tuple(networks), "source": shelf.families[family]}
    fields |= {"protocol": protocol_of({**shelf.shared, **_section(entry, "protocol")}, shelf.ground.protocol)}
    if "samplers" in entry and "particles" not in entry:
        fields["particles"] = ()
    if functions:
        fields["metrics"] = tuple(functions)
    if "reference" in given:
        fields["points"] = read_points(beside(shelf.folder, str(given["reference"]), "a reference's file"))
    experiment = Experiment(
        **fields,
        functions={name: function for name, function in functions.items() if function},
        networks={name: options for name, options in networks.items() if options},
    )
    _check_table(experiment, entry)
    return experiment


def _check_table(experiment: Experiment, entry: Mapping[str, Any]) -> None:
    if not experiment.learned:
        require(not entry.get("train_sizes"), "train_sizes", "be empty for analytic models",
                shorten(entry.get("train_sizes")), "Leave it out.")  # fmt: skip
    require(experiment.columns, "an experiment", "have a column", "none", "Add analytic to its models, or train_sizes.")
    require(experiment.rows, "an experiment", "have a row", "none", "Add particles, or samplers.")


def _samplers(given: Mapping[str, Any], entry: Mapping[str, Any], shelf: _Shelf) -> dict[str, Any]:
    names = given.get("samplers", ())
    require(isinstance(names, (list, tuple)), "samplers", "be a list of names", shorten(names, 80),
            "Write samplers: [naive, corrected].")  # fmt: skip
    for name in names:
        if not isinstance(name, str) or name not in shelf.samplers:
            raise SpecError(unknown("a sampler", name, shelf.samplers))
    require(len(set(names)) == len(names), "samplers", "hold different names", shorten(names, 80), "Name each once.")
    require(names or "samplers" not in entry, "samplers", "hold at least one name", "none", "Leave it out.")
    return {name: shelf.samplers[name] for name in names}
