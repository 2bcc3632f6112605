"""The paper's references: closed form for Gaussians, rejection or importance for mixtures."""

from __future__ import annotations

import warnings
from functools import lru_cache

from torch import Tensor

from polyscore.algebra import base_composition
from polyscore.errors import DegeneracyWarning
from polyscore.experiments.references import REFERENCES, Wanted, target_of
from polyscore.experiments.sources import family_of
from polyscore.paper.settings import Setting, setting
from polyscore.rng import derive
from polyscore.targets import exact

_LOW_ESS = 500


@REFERENCES.register("paper")
def papers_points(wanted: Wanted) -> Tensor:
    """Return the reference points of a cell, drawn from its own seed.

    An importance reference costs seconds, so the cells of a run share one; where its ESS is low it is drawn again.
    """
    method = _method(wanted)
    if method == "product importance":
        return _shared(wanted.family, wanted.run_seed, wanted.count)
    return target_of(wanted.source, wanted.exponents, method).sample(wanted.count, wanted.seed)


def _method(wanted: Wanted) -> str | None:
    """The paper's, for its mixtures and what it composes of them; else whatever serves."""
    source = wanted.source
    if not isinstance(source, Setting) or not source.name.startswith("mixture"):
        return None
    if wanted.alone:
        return "rejection"
    if dict(wanted.exponents) != base_composition(family_of(source)).exponents:
        return None
    return "rejection" if source.name.endswith("-id") else "product importance"


@lru_cache(maxsize=64)
def _shared(name: str, seed: int, count: int) -> Tensor:
    source = exact(base_composition(setting(name)), "product importance")
    for attempt in range(10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegeneracyWarning)
            points = source.sample(count, derive(seed, name, "reference", attempt))
        if source.ess >= _LOW_ESS:
            break
    return points
