"""The entries of a spec, one function each: names, kinds of model, metrics, protocols."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyscore.errors import PolyscoreError, listed, nearest, require, require_known, shorten
from polyscore.experiments.cells import ANALYTIC, is_name
from polyscore.experiments.functions import Function, is_function
from polyscore.experiments.protocol import LATER, OF_A_SPEC, Protocol
from polyscore.metrics.named import METRICS
from polyscore.training.fit import check_ensemble
from polyscore.training.recipe import MODELS, Recipe

TITLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=&%-]*")
_LONGEST = 100  # it becomes part of file names
_OF_OURS = ("grid", "integrator", "quadrature", "start", "resampling", "threshold")  # fields with `corrected` alone
_OF_NETWORKS = [*(f.name for f in dataclasses.fields(Recipe) if f.name != "schedule"), "ensemble"]


class SpecError(PolyscoreError):
    """A spec with an unknown key or a value outside its domain."""


def about(what: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Do something, and say what an error is about."""
    try:
        return work(*arguments)
    except PolyscoreError as error:
        raise SpecError(f"{what}: {error}") from error


def check_name(name: str, pattern: re.Pattern[str] | None, what: str, remedy: str = "Choose another.") -> None:
    """Refuse a name that could not be part of a file name, or by a pattern of its own a title."""
    good = is_name(name) if pattern is None else pattern.fullmatch(name) and len(name) <= _LONGEST
    letters = "_ . -" if pattern is None else "blanks and . _ - + = & %"
    require(good, f"the name of {what}", f"be of a-z, A-Z, 0-9, {letters}, at most {_LONGEST} characters long",
            shorten(name), remedy)  # fmt: skip


def listed_names(names: Mapping[str, Any]) -> str:
    """Return what a spec may name, for a message."""
    return listed(list(names), 30, str) or "none: there is no `families:`"


def unknown(what: str, name: Any, known: Mapping[str, Any]) -> str:
    """Return the message for a name that a spec does not explain."""
    near = nearest(name, known, cutoff=0.6) or " Add it to the spec."
    return f"{what} must be one of {listed_names(known)}; got {shorten(name)}.{near}"


def networks_of(models: Any) -> dict[str, dict[str, Any]]:
    """Return kinds of model by name, with the fields of a recipe that an entry gives."""
    entries = models if isinstance(models, (list, tuple)) else [models]
    require(entries, "models", "hold at least one kind", "none", "Write [analytic].")
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        name, options = _network(entry)
        require(name not in found, "models", "hold different kinds", name, "Give one of them a `name`.")
        found[name] = options
    return found


def _network(entry: Any) -> tuple[str, dict[str, Any]]:
    known = (ANALYTIC, *MODELS)
    options = dict(entry) if isinstance(entry, Mapping) else {"model": entry}
    name = options.pop("name", None)
    model = options.get("model")
    rule, near = f"be one of {', '.join(known)}, or mappings with one as `model`", nearest(model, known).strip()
    good = isinstance(model, str) and model in known
    require(good, "models", rule, shorten(entry, 80), near or "Write [analytic, conditional].")
    for key in options:
        if key not in _OF_NETWORKS or (model == ANALYTIC and key != "model"):
            raise SpecError(unknown("a key of a model", key, dict.fromkeys(["name", *_OF_NETWORKS])))
    check_ensemble(options.get("ensemble", 1))
    given = {key: value for key, value in options.items() if key != "ensemble"}
    Recipe(**{"kind": "vanilla", **({} if model == ANALYTIC else given)})
    name = _plain_name(options) if name is None else name
    check_name(str(name), None, "a model", "Give it another: name: my-model.")
    require(name == model or name not in known, "the name of a model", "say what it is", name, "Choose another.")
    return str(name), {} if len(options) == 1 else options


def _plain_name(options: Mapping[str, Any]) -> str:
    """Return the model and the values of its fields, such as conditional-16; of its own options also their names.

    Names are part of keys: one that has always been a good one stays what it is.
    """
    values = [options["model"], *(options[key] for key in sorted(options) if key != "model")]
    return "-".join(filter(None, map(_plain, values)))


def _plain(value: Any) -> str:
    parts = [f"{key}{_plain(value[key])}" for key in sorted(value)] if isinstance(value, Mapping) else None
    parts = list(map(_plain, value)) if isinstance(value, (list, tuple)) else parts
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", str(value).replace("+", "")) if parts is None else "-".join(parts)


def metrics_of(names: Any, folder: Path) -> dict[str, Function | None]:
    """Return metrics by name: registered ones, and functions of the user's by the name of the function."""
    require(isinstance(names, (list, tuple)), "metrics", "be a list of names", shorten(names, 80), "Write [sw2].")
    found: dict[str, Function | None] = {}
    for text in names:
        function = Function.find(text, str(folder.resolve())) if is_function(text) else None
        if function is None:
            METRICS[text]
        else:
            function.load()
        name = function.name if function else str(text)
        require(name not in found, "metrics", "hold different names", name, "Rename one of them.")
        found[name] = function
    return found


def protocol_of(given: Mapping[str, Any], ground: Protocol) -> Protocol:
    """Return a ground's protocol with what is given."""
    for key in given:
        require_known(key, OF_A_SPEC, "a key of protocol", "Leave it out.", SpecError)
    if given.get("corrected") is False:
        given = {**{name: LATER[name] for name in _OF_OURS}, **given}
    found: Protocol = about("protocol", lambda: dataclasses.replace(ground, **given))
    if not found.corrected:
        changed = {name: getattr(found, name) for name in _OF_OURS if getattr(found, name) != LATER[name]}
        for name, value in ({"churn": found.churn} if found.churn != 1 else {}).items() | changed.items():
            raise SpecError(
                f"protocol: {name} must be left out for `FeynmanKac.published`; got {value}. Set corrected: true."
            )
    return found
