"""Samplers by name, so that files and commands can hold them: `{kind: feynman-kac, particles: 16}` and back."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from polyscore.errors import ArgumentError, require, shorten
from polyscore.registry import Registry
from polyscore.samplers.auto import Auto
from polyscore.samplers.controlled import Controlled
from polyscore.samplers.denoise import Denoise
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.grids import GRIDS
from polyscore.samplers.integrators import INTEGRATORS
from polyscore.samplers.kernels import KERNELS
from polyscore.samplers.langevin import AnnealedLangevin
from polyscore.samplers.moves import MOVES
from polyscore.samplers.parts import found, make, written
from polyscore.samplers.precision import PrecisionFeynmanKac, PrecisionWeighted
from polyscore.samplers.quadratures import QUADRATURES
from polyscore.samplers.sampler import Sampler
from polyscore.samplers.starts import STARTS
from polyscore.samplers.superdiff import SuperDiffAnd, SuperDiffOr
from polyscore.smc import SCHEMES

# An entry is a sampler's class, or a function that returns one; its parameters are the keys that a mapping may have.
SAMPLERS: Registry[Callable[..., Sampler]] = Registry(
    "a sampler's kind",
    {
        "denoise": Denoise,
        "feynman-kac": FeynmanKac,
        "published": FeynmanKac.published,
        "controlled": Controlled,
        "auto": Auto,
        "annealed-langevin": AnnealedLangevin,
        "precision-weighted": PrecisionWeighted,
        "precision-feynman-kac": PrecisionFeynmanKac,
        "superdiff-or": SuperDiffOr,
        "superdiff-and": SuperDiffAnd,
    },
    hint="Register one of your own: polyscore.samplers.SAMPLERS.register(name).",
)
_LATER = {"pooled": False}
_PARTS = (MOVES, GRIDS, INTEGRATORS, QUADRATURES, STARTS, SCHEMES, KERNELS)


def build_sampler(description: Mapping[str, Any] | str) -> Sampler:
    """Return the sampler of a kind: "denoise", or `{kind: feynman-kac, particles: 16}` with its fields as keys."""
    mapping = {"kind": description} if isinstance(description, str) else description
    require(isinstance(mapping, Mapping) and "kind" in mapping, "a sampler", "be a kind or a mapping with one",
            shorten(description), "Write {kind: feynman-kac, particles: 16}.")  # fmt: skip
    sampler = make(SAMPLERS, mapping)
    require(isinstance(sampler, Sampler), f"{mapping['kind']!r}", "make a Sampler", type(sampler).__name__,
            "Register a subclass of Sampler under that name.")  # fmt: skip
    return sampler


def parts_of(sampler: Sampler) -> list[Any]:
    """Return the classes and functions that a sampler is made of, its own class first."""
    named = (("grid", GRIDS), ("integrator", INTEGRATORS), ("quadrature", QUADRATURES), ("start", STARTS),
             ("resampling", SCHEMES))  # fmt: skip
    parts = [found(registry, getattr(sampler, name)) for name, registry in named]
    every = [sampler, sampler.move, *sampler.kernels, *(part for part in parts if part is not None)]
    return [part if inspect.isroutine(part) or isinstance(part, type) else type(part) for part in every]


def describe(sampler: Sampler) -> dict[str, Any]:
    """Return a sampler as JSON holds it, every field written out: no default decides what it was.

    But for fields that came after results were stored, which are left out at what they were before.

    `build_sampler` is the inverse. Parts of one's own must be registered, as must the sampler's class.
    """
    kinds = [name for name, entry in SAMPLERS.items() if entry is type(sampler)]
    if not kinds:
        raise ArgumentError(
            f"a sampler must be registered to be written down; got {type(sampler).__name__}. "
            "Use SAMPLERS.register(name)."
        )
    options = {field.name: getattr(sampler, field.name) for field in dataclasses.fields(sampler) if field.init}
    kept = {name: value for name, value in options.items() if name not in _LATER or value != _LATER[name]}
    return {"kind": kinds[0], **{name: written(value, _PARTS) for name, value in kept.items()}}
