"""The paper's twelve experiments by name; reading them needs pydantic and YAML, which load on first use."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from polyscore.errors import ArgumentError, nearest, shorten
from polyscore.experiments.cells import Experiment


@lru_cache(maxsize=1)
def _experiments() -> dict[str, Experiment]:
    from polyscore.experiments.spec import parse_spec

    text = resources.files(__package__).joinpath("experiments.yaml").read_text(encoding="utf-8")
    return parse_spec(text, "experiments.yaml")


def names() -> list[str]:
    """Return the names of the paper's experiments, in the order of its tables."""
    return list(_experiments())


def load(name: str) -> Experiment:
    """Return one of the paper's experiments."""
    known = _experiments()
    if name not in known:
        hint = nearest(name, known, cutoff=0.6)
        raise ArgumentError(f"an experiment must be one of {', '.join(known)}; got {shorten(name)}.{hint}")
    return known[name]
