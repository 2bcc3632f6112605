"""How cells are computed: everything that changes a result and is no coordinate, with its domain, and its hash.

A field that came after version 0.2.0 is left out of the description, and so of the hash, at what 0.2.0 did (`LATER`):
its results keep their keys, whatever samplers and `fit` do by default.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from polyscore.experiments.references import REFERENCES
from polyscore.models.network import PRECISIONS
from polyscore.samplers import GRIDS, INTEGRATORS, QUADRATURES, STARTS
from polyscore.schema import Checked, choice, count, flag, number, optional, setting
from polyscore.smc import SCHEMES
from polyscore.training import Recipe

# Raise this when a change of the code changes results: old records are then no longer found.
RESULTS_VERSION = 1
_TRAINING = Recipe.domains()  # said once, in training
_encode = json.JSONEncoder(sort_keys=True).encode  # made once: a store calls it twice a record


def digest(value: Any) -> str:
    """Return a short hash of a JSON-ready value."""
    return hashlib.sha256(_encode(value).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Protocol(Checked):
    """Everything that changes a result and is shared by cells; the defaults are those of samplers and `fit`.

    Attributes:
        swarms: samples of a cell.
        steps, clip, churn: of the sampler; a clip of None is none, a churn of 1 the SDE, 0 the ODE.
        corrected: False is `FeynmanKac.published`; True `FeynmanKac` by the fields from `grid` to `threshold`.
        reference: how the points to compare with are drawn, a name of `REFERENCES`.
        projections: of sliced W2.
        precision: of sampling, as in `Family.to`; training is TF32 on a GPU in any case.
        train_steps, batch, learning_rate, width, depth, activation, standardise, ema: of training.
        first_seed: run r uses seed first_seed + r.
        grid, integrator, quadrature, start, resampling, threshold: of `FeynmanKac`, with `corrected` alone.
        content: what an experiment brings along (family, expression, sampler, network, metrics), JSON-ready. It is
            hashed, shown and never interpreted.
    """

    swarms: int = setting(5000, count(2))
    steps: int = setting(100, count(1, 1_000_000))
    clip: float | None = setting(None, optional(number(0, ends=False)))
    corrected: bool = setting(True, flag())
    churn: float = setting(1.0, number(0, 100))
    reference: str = setting("exact", choice(REFERENCES))
    projections: int = setting(2000, count())
    precision: str = setting("auto", choice(PRECISIONS))
    train_steps: int = setting(20_000, count(1, 100_000_000))
    batch: int = setting(512, _TRAINING["batch"])
    learning_rate: float = setting(2e-4, _TRAINING["learning_rate"])
    width: int = setting(512, _TRAINING["width"])
    depth: int = setting(4, _TRAINING["depth"])
    first_seed: int = setting(1, count(0, 2**63 - 1))
    grid: str = setting("snr", choice(GRIDS))
    integrator: str = setting("multistep", choice(INTEGRATORS))
    quadrature: str = setting("noise", choice(QUADRATURES))
    start: str = setting("matched", choice(STARTS))
    resampling: str = setting("systematic", choice(SCHEMES))
    threshold: float = setting(1.0, number(0, 1))
    activation: str = setting("silu", _TRAINING["activation"])
    standardise: bool = setting(True, _TRAINING["standardise"])
    ema: float | None = setting(None, _TRAINING["ema"])
    content: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        kept = {name: value for name, value in fields.items() if name not in LATER or value != LATER[name]}
        return {"results_version": RESULTS_VERSION, **kept}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Protocol:
        """Return the protocol that `to_dict` described, whatever it lacks at what 0.2.0 did or its default.

        `ValueError` where it is of another version: a field that is unknown here cannot be interpreted.
        """
        fields = dict(description)
        unknown = fields.keys() - set(cls.names()) - {"results_version"}
        if fields.pop("results_version", None) != RESULTS_VERSION or unknown:
            raise ValueError(f"a protocol of another version ({', '.join(sorted(unknown))})")
        return cls(**{**LATER, **fields})

    @cached_property
    def key(self) -> str:
        """Hash of the description."""
        return digest(self.to_dict())


# Fields that came after version 0.2.0, with what it did.
LATER: dict[str, Any] = {
    "grid": "equal", "integrator": "euler", "quadrature": "trapezoid", "start": "noise", "resampling": "systematic",
    "threshold": 1.0, "activation": "silu", "standardise": False, "ema": None, "content": None,
}  # fmt: skip
OF_A_SPEC = [name for name in Protocol.names() if name != "content"]  # the fields that a user may write


def stands_for(key: str, description: Any) -> bool:
    """Whether a protocol's hash is that of a description, be it of this version or another."""
    try:
        return key == digest(description) or key == Protocol.from_dict(description).key
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return False
