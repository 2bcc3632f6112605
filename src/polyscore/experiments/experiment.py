"""An experiment: a table to fill. One family and expression; models and train sizes across, samplers and K down."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from polyscore.algebra import base_composition
from polyscore.algebra.expressions import parse_exponents
from polyscore.errors import require
from polyscore.experiments.cells import ANALYTIC, COMPOSITION, METRICS, Cell, is_name, target_name
from polyscore.experiments.functions import Function, outside, source_digest
from polyscore.experiments.protocol import Protocol
from polyscore.experiments.references import REFERENCES, Exponents, Points
from polyscore.experiments.sources import Source, family_of
from polyscore.metrics.named import METRICS as NAMED_METRICS
from polyscore.nn import NETWORKS
from polyscore.samplers import Sampler, build_sampler, describe, parts_of
from polyscore.schema import Checked, Domain, count, each, flag, setting

MOST_CELLS = 1_000_000  # each is hashed, looked up and stored by itself
_name = Domain("be of letters, digits, _ . and -, at most 100 characters long", is_name)

Row = int | str  # K of the protocol's own sampler, or a sampler's name


@dataclass(frozen=True)
class Column:
    """One kind of model at one train size; 0 where nothing is trained."""

    models: str
    size: int = 0


@dataclass(frozen=True)
class Experiment(Checked):
    """What to compute and how.

    Attributes:
        family: its name, a coordinate of the cells.
        source: where it comes from.
        expression: such as "a * b / control"; None is the base composition.
        models: "analytic" (the family's own scores), "conditional", "separate", or names of `networks`.
        train_sizes: points per condition of the kinds that are trained.
        particles: K of the protocol's own sampler, a row each.
        samplers: others by name, as `build_sampler` takes them, a row each.
        metrics: names of `polyscore.metrics.METRICS` or of `functions`.
        functions: metrics of the user's by name.
        networks: fields of a `Recipe` by the name that stands in `models`.
        conditions_alone: also sample every learned condition by itself, at the largest train size.
        points: what samples are compared with, in place of the protocol's reference.
        label: its name where that is not family and models: two experiments of one family need one each.
    """

    family: str = field(metadata={"domain": _name})
    source: Source
    expression: str | None = None
    models: tuple[str, ...] = setting((ANALYTIC,), each(_name, 1))
    train_sizes: tuple[int, ...] = setting((1000,), each(count(2)))
    particles: tuple[int, ...] = setting((1, 4, 16), each(count()))
    samplers: Mapping[str, Any] = field(default_factory=dict)
    runs: int = setting(5, count())
    metrics: tuple[str, ...] = setting(METRICS, each(_name, 1))
    functions: Mapping[str, Function] = field(default_factory=dict)
    networks: Mapping[str, Any] = field(default_factory=dict)
    conditions_alone: bool = setting(False, flag())
    protocol: Protocol = field(default_factory=Protocol)
    points: Points | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """Its label, or family and kinds of model."""
        return self.label or f"{self.family}-{self.kinds}"

    @property
    def learned(self) -> tuple[str, ...]:
        """The kinds of model that are trained."""
        return tuple(kind for kind in self.models if kind != ANALYTIC)

    @property
    def kinds(self) -> str:
        """The kinds of model that are trained in words, or "analytic"."""
        return "-".join(self.learned) or ANALYTIC

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of its tables: kinds in order, train sizes rising, what is not trained at the end."""
        sizes = sorted(self.train_sizes)
        trained = [Column(kind, size) for kind in self.learned for size in sizes]
        return (*trained, *([Column(ANALYTIC)] if ANALYTIC in self.models else []))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of its tables: K rising, then samplers by name."""
        return (*sorted(self.particles), *self.samplers)

    @cached_property
    def targets(self) -> dict[str, str]:
        """Conditions by the name that cells have for them."""
        return {target_name(condition): condition for condition in family_of(self.source)}

    @property
    def count(self) -> int:
        """The number of cells, counted without making them."""
        alone = len(self.targets) * len(self.learned) if self.conditions_alone and self.train_sizes else 0
        return self.runs * (len(self.rows) * len(self.columns) + alone)

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, small particle counts first: they cost least and say most."""
        require(self.count <= MOST_CELLS, f"experiment {self.name}", f"have at most {MOST_CELLS} cells",
                self.count, "Lower its runs, particles or train_sizes.")  # fmt: skip
        untrained_first = sorted(self.columns, key=lambda column: column.models != ANALYTIC)
        for row, run, column in itertools.product(self.rows, range(self.runs), untrained_first):
            yield self.cell(row, column, run)
        if self.conditions_alone and self.train_sizes:
            largest = [Column(kind, max(self.train_sizes)) for kind in self.learned]
            for run, column, target in itertools.product(range(self.runs), largest, self.targets):
                yield self.cell(1, column, run, target)

    def cell(self, row: Row, column: Column, run: int, target: str = COMPOSITION) -> Cell:
        """Return the cell at a place of a table."""
        sampler = row if isinstance(row, str) else ""
        particles = getattr(self.built[sampler], "particles", 1) if isinstance(row, str) else row
        measured = () if self.metrics == METRICS else self.metrics
        return Cell(self.family, column.models, column.size, run, particles, target, sampler, measured)

    @cached_property
    def built(self) -> dict[str, Sampler]:
        """The samplers by name."""
        return {name: build_sampler(given) for name, given in self.samplers.items()}

    def exponents(self, target: str = COMPOSITION) -> Exponents:
        """Return the composition that cells of a target sample, as exponents in order."""
        family = family_of(self.source)
        if target != COMPOSITION:
            return ((self.targets[target], 1.0),)
        if self.expression is None:
            return tuple(base_composition(family).exponents.items())
        return tuple((name, value) for name, value in parse_exponents(self.expression, list(family)).items() if value)

    def protocol_of(self, cell: Cell) -> Protocol:
        """Return the protocol of one cell: the experiment's, and the content of what a spec brought along."""
        return self._protocols(cell.sampler, cell.models, cell.target)

    def _protocols(self, *which: str) -> Protocol:
        if which not in self._known:
            content = {name: value for name, value in self._content(*which).items() if value}
            self._known[which] = dataclasses.replace(self.protocol, content=content or None)
        return self._known[which]

    @cached_property
    def _known(self) -> dict[tuple[str, ...], Protocol]:
        return {}

    def _content(self, sampler: str, models: str, target: str) -> dict[str, Any]:
        own = self.source.content
        named = self.expression is not None or own is not None
        metrics = {name: source_digest(NAMED_METRICS[name]) for name in self.metrics if name not in self.functions}
        return {
            "family": own,
            "exponents": [list(pair) for pair in self.exponents(target)] if named else None,
            "sampler": describe(self.built[sampler]) if sampler else None,
            "code": outside(self._behind(sampler, models)),
            "network": dict(self.networks.get(models, {})),
            "metrics": {name: function.content for name, function in self.functions.items()}
            | {name: {"source": source} for name, source in metrics.items() if source},
            "reference": self.points.digest if self.points else None,
        }

    def _behind(self, sampler: str, models: str) -> Iterator[Any]:
        """Yield the classes and functions that a cell rests on: registered names stand for code that may change."""
        family = family_of(self.source)
        yield from (type(part) for part in (family.schedule, *family.members.values()))
        if self.protocol.reference in REFERENCES:
            yield REFERENCES[self.protocol.reference]
        if models in self.networks:
            yield NETWORKS[self.networks[models].get("kind", "vanilla")]
        if sampler:
            yield from parts_of(self.built[sampler])

    def __getstate__(self) -> dict[str, Any]:
        """Its fields alone: what was built from them may be of modules that a worker has not imported yet."""
        return {name: getattr(self, name) for name in self.names()}

    def key(self, cell: Cell) -> str:
        """Return the key of a cell in a store."""
        return cell.key(self.protocol_of(cell))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description of everything but where it was read from."""
        plain = {name: getattr(self, name) for name in ("family", "expression", "label", "runs", "conditions_alone")}
        lists = {name: list(getattr(self, name)) for name in ("models", "train_sizes", "particles", "metrics")}
        more = {"samplers": dict(self.samplers), "networks": {k: dict(v) for k, v in self.networks.items()}}
        return plain | lists | more | {"protocol": self.protocol.to_dict()}


def quick(experiment: Experiment) -> Experiment:
    """Return a version that two CPU cores finish in a minute or two; its distances are not the real ones."""
    most = {"swarms": 500, "steps": 100, "projections": 500, "train_steps": 1500, "width": 64}
    small = {name: min(value, getattr(experiment.protocol, name)) for name, value in most.items()}
    kept = tuple(k for k in experiment.particles if k <= 16) or ((1,) if experiment.particles else ())
    return dataclasses.replace(
        experiment,
        particles=kept,
        samplers={name: _quick(given, experiment.built[name]) for name, given in experiment.samplers.items()},
        runs=min(experiment.runs, 3),
        protocol=dataclasses.replace(experiment.protocol, **small, learning_rate=2e-3),
    )


def _quick(given: Any, built: Sampler) -> Any:
    steps = getattr(built, "steps", 0)
    return {**({"kind": given} if isinstance(given, str) else given), "steps": 100} if steps > 100 else given
