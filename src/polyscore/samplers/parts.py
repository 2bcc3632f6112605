"""Parts of samplers by name: what a field takes, what a name stands for, and how a part is written down.

A field such as `grid` takes a registered name or the object itself. An entry of a registry is a function, which stands
for itself, or a class, of which one is made: files write `langevin`, or `{kind: langevin, size: 0.1}` for its options.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from polyscore.errors import require, require_known, shorten
from polyscore.registry import Registry
from polyscore.schema import Domain


def by_name(registry: Registry[Any], form: str, fits: Callable[[Any], bool] = callable) -> Domain:
    """A registered name, kept as such, or an object of that form; the registry's own objects go by their names."""

    def plain(value: Any) -> Any:
        part = value if isinstance(value, str) else found(registry, value)
        return _name(registry, part) or part

    return Domain(f"be a registered name or {form}", lambda v: _is_known(registry, v) or fits(v), plain)


def by_value(registry: Registry[Any], kind: type) -> Domain:
    """A registered name or an object of that kind, kept as the object."""
    rule = f"be a registered name or a {kind.__name__}"
    return Domain(rule, lambda v: _is_known(registry, v) or isinstance(v, kind), lambda v: found(registry, v))


def several(domain: Domain) -> Domain:
    """Lists and tuples of such values, kept as tuples."""
    return Domain(
        f"be a list, each of which must {domain.rule}",
        lambda values: isinstance(values, (list, tuple)) and all(map(domain.holds, values)),
        lambda values: tuple(map(domain.plain, values)),
    )


def found(registry: Registry[Any], part: Any) -> Any:
    """Return what a name, `{kind: name, option: value}` or an object stands for."""
    if isinstance(part, str):
        entry = registry[part]
        return entry() if isinstance(entry, type) else entry
    return make(registry, part) if isinstance(part, Mapping) else part


def make(registry: Registry[Any], description: Mapping[str, Any]) -> Any:
    """Return what `{kind: name, option: value}` describes; a misspelt option is an error that names the nearest."""
    options = {key: value for key, value in description.items() if key != "kind"}
    entry = registry[description.get("kind")]  # type: ignore[index]
    known = list(inspect.signature(entry).parameters)
    for key in options:
        require_known(key, known, f"an option of {description['kind']}", "Leave it out.")
    return entry(**options)


def written(part: Any, registries: Iterable[Registry[Any]]) -> Any:
    """Return a part as JSON holds it: numbers and names as they are, an object as what `found` makes it of again."""
    if part is None or isinstance(part, (bool, int, float, str)):
        return part
    if isinstance(part, (list, tuple)):
        return [written(each, registries) for each in part]
    kind = next((name for registry in registries if (name := _name(registry, part) or _name(registry, type(part)))), "")
    require(kind, "a part of a sampler", "be registered to be written down", shorten(part), "Register it under a name.")
    if not dataclasses.is_dataclass(part) or not (fields := dataclasses.fields(part)):
        return kind
    return {"kind": kind, **{field.name: written(getattr(part, field.name), registries) for field in fields}}


def _is_known(registry: Registry[Any], part: Any) -> bool:
    """Whether it is a name or description of the registry's; raises with what is known where it is another's."""
    return isinstance(part, (str, Mapping)) and found(registry, part) is not None


def _name(registry: Registry[Any], entry: object) -> str:
    return next((name for name, known in registry.items() if known is entry), "")
