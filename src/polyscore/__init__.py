"""polyscore: compose diffusion models, correct the composition, and know when to trust it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.9.0"

# Where each public name lives. They load on first use, so that `import polyscore` and `polyscore --help` stay quick.
_HOMES = {
    "algebra": ["Composition", "Family", "base_composition", "load", "parse"],
    "distributions": ["Density", "Distribution", "Gaussian", "Mixture"],
    "models.ensemble": ["Ensemble"],
    "models.learned": ["Learned"],
    "metrics": ["mmd2", "sliced_wasserstein"],
    "pipelines": ["from_diffusers"],
    "samplers": [
        "AnnealedLangevin",
        "Controlled",
        "Denoise",
        "FeynmanKac",
        "PrecisionFeynmanKac",
        "PrecisionWeighted",
        "Run",
        "SuperDiffAnd",
        "SuperDiffOr",
        "auto",
    ],
    "schedules": ["DDPM", "VP", "Cosine", "LinearFlow", "Schedule"],
    "targets": ["exact"],
    "training": ["Recipe", "fit", "fit_many"],
}
_ROOMS = (  # modules that are asked for by their own name, to register what is yours
    "algebra", "causal", "distributions", "experiments", "features", "images", "metrics", "mixtures", "models", "nn",
    "pipelines", "plots", "rooms", "samplers", "schedules", "smc", "targets", "training",
)  # fmt: skip
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_NAMES)]

if TYPE_CHECKING:
    from polyscore.algebra import Composition as Composition
    from polyscore.algebra import Family as Family
    from polyscore.algebra import base_composition as base_composition
    from polyscore.algebra import load as load
    from polyscore.algebra import parse as parse
    from polyscore.distributions import Density as Density
    from polyscore.distributions import Distribution as Distribution
    from polyscore.distributions import Gaussian as Gaussian
    from polyscore.distributions import Mixture as Mixture
    from polyscore.metrics import mmd2 as mmd2
    from polyscore.metrics import sliced_wasserstein as sliced_wasserstein
    from polyscore.models.ensemble import Ensemble as Ensemble
    from polyscore.models.learned import Learned as Learned
    from polyscore.pipelines import from_diffusers as from_diffusers
    from polyscore.samplers import AnnealedLangevin as AnnealedLangevin
    from polyscore.samplers import Controlled as Controlled
    from polyscore.samplers import Denoise as Denoise
    from polyscore.samplers import FeynmanKac as FeynmanKac
    from polyscore.samplers import PrecisionFeynmanKac as PrecisionFeynmanKac
    from polyscore.samplers import PrecisionWeighted as PrecisionWeighted
    from polyscore.samplers import Run as Run
    from polyscore.samplers import SuperDiffAnd as SuperDiffAnd
    from polyscore.samplers import SuperDiffOr as SuperDiffOr
    from polyscore.samplers import auto as auto
    from polyscore.schedules import DDPM as DDPM
    from polyscore.schedules import VP as VP
    from polyscore.schedules import Cosine as Cosine
    from polyscore.schedules import LinearFlow as LinearFlow
    from polyscore.schedules import Schedule as Schedule
    from polyscore.targets import exact as exact
    from polyscore.training import Recipe as Recipe
    from polyscore.training import fit as fit
    from polyscore.training import fit_many as fit_many


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"polyscore.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'polyscore' has no attribute {name!r}")
    return getattr(importlib.import_module(f"polyscore.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
