"""Samplers by kind: a stand-in for `polyscore.samplers`' own registry, to be deleted when that is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from polyscore.errors import ArgumentError, nearest, require, shorten
from polyscore.registry import Registry
from polyscore.samplers import Denoise, FeynmanKac
from polyscore.samplers.sampler import Sampler

SAMPLERS: Registry[Callable[..., Sampler]] = Registry(
    "a sampler's kind", {"denoise": Denoise, "feynman-kac": FeynmanKac}
)


def build_sampler(given: Mapping[str, Any] | str) -> Sampler:
    """Return the sampler of a kind, or of a mapping with its kind and fields."""
    fields = {"kind": given} if isinstance(given, str) else dict(given)
    require("kind" in fields, "a sampler", "have a kind", shorten(given, 80), "Write {kind: denoise}.")
    kind = fields.pop("kind")
    make: Any = SAMPLERS[kind]
    known = [field.name for field in dataclasses.fields(make)]
    for name in fields:
        if name not in known:
            raise ArgumentError(
                f"a key of a sampler {kind} must be one of {', '.join(known)}; got {shorten(name)}."
                + (nearest(name, known) or " Leave it out.")
            )
    made: Sampler = make(**fields)
    return made


def describe(sampler: Sampler) -> dict[str, Any]:
    """Return its kind and every field, JSON-ready."""
    kinds = {entry: name for name, entry in SAMPLERS.items()}
    fields = {f.name: getattr(sampler, f.name) for f in dataclasses.fields(sampler)}  # type: ignore[arg-type]
    plain = (bool, int, float, str, type(None), tuple, list)
    return {"kind": kinds[type(sampler)]} | {k: v if isinstance(v, plain) else repr(v) for k, v in fields.items()}
