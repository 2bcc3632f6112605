"""An experiment and its cells, in plain dataclasses: what computes them must run where pydantic is missing.

A cell is one number of a table before averaging: (setting, models, train size, run, K, target). Its key is a hash of
its coordinates and of everything in the experiment that changes a result, so a result is found again exactly when it
would be computed again the same way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from polyscore.errors import require

ANALYTIC = "analytic"
COMPOSITION = "composition"

# Raise this when a change of the code changes results: old records are then no longer found.
RESULTS_VERSION = 1
MOST_CELLS = 1_000_000  # each is hashed, looked up and stored by itself
_FLOATS = ("clip", "churn", "learning_rate", "threshold", "ema")
_encode = json.JSONEncoder(sort_keys=True).encode  # made once: a store calls it twice a record


def digest(value: Any) -> str:
    """Return a short hash of a JSON-ready value."""
    return hashlib.sha256(_encode(value).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Protocol:
    """Everything that changes a result and is shared by the cells of an experiment; the defaults are the paper's.

    Attributes:
        swarms, steps, clip: of the sampler; a clip of None is none.
        corrected: False is the paper's sampler to the letter; True ours, by the fields from `grid` to `threshold`.
        churn: 1 the SDE, 0 the ODE.
        reference: "paper" (closed form; rejection or importance for mixtures) or "exact" (closed form or grid).
        projections: of sliced W2.
        precision: of sampling, as in `Family.to`; training is TF32 on a GPU in any case.
        train_steps, batch, learning_rate, width, depth: of training.
        first_seed: run r uses seed first_seed + r.
        grid, integrator, quadrature, start, resampling, threshold: of `FeynmanKac`, with `corrected` alone.
        activation, standardise, ema: of training.

    A field that came after version 0.2.0 has the value that was fixed then as its default, and at that value it is left
    out of the description and its hash: results of 0.2.0 keep their keys, whatever samplers and `fit` do by default.
    """

    swarms: int = 5000
    steps: int = 500
    clip: float | None = 15.0
    corrected: bool = False
    churn: float = 1.0
    reference: str = "paper"
    projections: int = 2000
    precision: str = "auto"
    train_steps: int = 20_000
    batch: int = 512
    learning_rate: float = 2e-4
    width: int = 512
    depth: int = 4
    first_seed: int = 1
    grid: str = "equal"
    integrator: str = "euler"
    quadrature: str = "trapezoid"
    start: str = "noise"
    resampling: str = "systematic"
    threshold: float = 1.0
    activation: str = "silu"
    standardise: bool = False
    ema: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        fields = dataclasses.asdict(self)
        fields = {name: value for name, value in fields.items() if name not in LATER or value != LATER[name]}
        # 15 and 15.0 are the same clip, and must have the same hash.
        floats = {name: float(fields[name]) for name in _FLOATS if fields.get(name) is not None}
        return {"results_version": RESULTS_VERSION, **fields, **floats}

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Protocol:
        """Return the protocol that `to_dict` described, whatever it lacks at its default.

        `ValueError` where it is of another version: a field that is unknown here cannot be interpreted.
        """
        fields = dict(description)
        unknown = fields.keys() - {field.name for field in dataclasses.fields(cls)} - {"results_version"}
        if fields.pop("results_version", None) != RESULTS_VERSION or unknown:
            raise ValueError(f"a protocol of another version ({', '.join(sorted(unknown))})")
        return cls(**fields)

    @property
    def key(self) -> str:
        """Hash of the description."""
        return digest(self.to_dict())


# Fields that came after version 0.2.0, with what it did.
_AFTER = ["grid", "integrator", "quadrature", "start", "resampling", "threshold", "activation", "standardise", "ema"]
LATER: dict[str, Any] = {name: Protocol.__dataclass_fields__[name].default for name in _AFTER}


def stands_for(key: str, description: Any) -> bool:
    """Whether a protocol's hash is that of a description, be it of this version or another."""
    try:
        return key == digest(description) or key == Protocol.from_dict(description).key
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return False


@dataclass(frozen=True, order=True)
class Cell:
    """One result: a trained or analytic model of one run, sampled at one K, against its reference.

    Attributes:
        models: "conditional", "separate" or "analytic".
        train_size: points per condition; 0 for analytic.
        target: "composition", or the name of one condition sampled by itself.
    """

    setting: str
    models: str
    train_size: int
    run: int
    particles: int
    target: str = COMPOSITION

    def key(self, protocol: Protocol) -> str:
        """Return the hash under which the store keeps this cell."""
        return self.key_under(protocol.key)

    def key_under(self, protocol: str) -> str:
        """Return the key under a protocol that is known by its hash only."""
        return digest([protocol, self.setting, self.models, self.train_size, self.run, self.particles, self.target])


@dataclass(frozen=True)
class Experiment:
    """A table to fill: one setting, one kind of model, all train sizes, particle counts and runs.

    Attributes:
        models: "conditional" or "separate"; "analytic" has no train sizes.
        conditions_alone: also sample every learned condition by itself, at the largest train size.
        label: its name where that is not setting and models: two experiments of one setting need one each.
    """

    setting: str
    models: str = "conditional"
    train_sizes: tuple[int, ...] = (100, 1000, 10_000)
    particles: tuple[int, ...] = (1, 4, 16, 64, 256)
    runs: int = 30
    analytic: bool = True
    conditions_alone: bool = True
    protocol: Protocol = field(default_factory=Protocol)
    label: str = ""

    @property
    def name(self) -> str:
        """Its label, or setting and kind of model, as the paper's tables are named."""
        return self.label or f"{self.setting}-{self.models}"

    @property
    def count(self) -> int:
        """The number of cells, counted without making them."""
        columns = len(self.particles) * (int(self.analytic) + len(self.train_sizes))
        return self.runs * (columns + 3 * bool(self.conditions_alone and self.train_sizes))

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, small particle counts first: they cost least and say most."""
        require(self.count <= MOST_CELLS, f"experiment {self.name}", f"have at most {MOST_CELLS} cells",
                self.count, "Lower its runs, particles or train_sizes.")  # fmt: skip
        for particles in sorted(self.particles):
            for run in range(self.runs):
                if self.analytic:
                    yield Cell(self.setting, ANALYTIC, 0, run, particles)
                for size in self.train_sizes:
                    yield Cell(self.setting, self.models, size, run, particles)
        if self.conditions_alone and self.train_sizes:
            for run in range(self.runs):
                for condition in ("a1", "a2", "base"):
                    yield Cell(self.setting, self.models, max(self.train_sizes), run, 1, condition)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Experiment:
        """Return the experiment that `to_dict` described."""
        fields = dict(description)
        protocol = Protocol(**fields.pop("protocol", {}))
        for name in ("train_sizes", "particles"):
            if name in fields:
                fields[name] = tuple(fields[name])
        return cls(**fields, protocol=protocol)


def quick(experiment: Experiment) -> Experiment:
    """Return a scaled-down version that two CPU cores finish in a minute or two; its distances are not the paper's."""
    most = {"swarms": 500, "steps": 100, "projections": 500, "train_steps": 1500, "width": 64}
    small = {name: min(value, getattr(experiment.protocol, name)) for name, value in most.items()}
    return dataclasses.replace(
        experiment,
        particles=tuple(k for k in experiment.particles if k <= 16) or (1,),
        runs=min(experiment.runs, 3),
        protocol=dataclasses.replace(experiment.protocol, **small, learning_rate=2e-3),
    )
