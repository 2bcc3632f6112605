"""Experiments as YAML: everything that changes a result, checked; the defaults are the paper's.

protocol: {clip: null}                      # shared by the experiments below; optional
experiments:
  no-clip: {setting: mixture-ood, models: conditional, runs: 10}
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from polyscore.errors import ArgumentError, PolyscoreError, cut, nearest, shorten
from polyscore.experiments.cells import ANALYTIC, Experiment, Protocol
from polyscore.files import yaml_file as yaml_files
from polyscore.files.yaml_file import YamlError
from polyscore.limits import require_memory
from polyscore.paper.settings import setting


def _no_truth(value: Any) -> Any:
    """YAML's yes and no are not the numbers 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("be a number")
    return value


Number = BeforeValidator(_no_truth)
Count = Annotated[int, Field(ge=1), Number]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=&%-]*")
_LONGEST = 100  # it becomes part of file names
_OF_OURS = ("grid", "integrator", "quadrature", "start", "resampling", "threshold")  # fields with `corrected` alone
_TOP = ("protocol", "experiments")


class SpecError(PolyscoreError):
    """A spec with an unknown key or a value outside its domain."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if key not in cls.model_fields:
                    raise SpecError(_unknown("a key of " + cls.__name__.removesuffix("Spec").lower(), key, cls))
        return value


class ProtocolSpec(_Model):
    """`cells.Protocol`, with the domain of every field."""

    swarms: Annotated[int, Field(ge=2), Number] = Protocol.swarms
    steps: Annotated[int, Field(ge=1, le=1_000_000), Number] = Protocol.steps
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False), Number] | None = Protocol.clip
    corrected: bool = Protocol.corrected
    churn: Annotated[float, Field(ge=0, le=100), Number] = Protocol.churn
    reference: Literal["paper", "exact"] = "paper"
    projections: Count = Protocol.projections
    precision: Literal["auto", "table", "fp16", "tf32", "float32"] = "auto"
    train_steps: Annotated[int, Field(ge=1, le=100_000_000), Number] = Protocol.train_steps
    batch: Annotated[int, Field(ge=3), Number] = Protocol.batch
    learning_rate: Annotated[float, Field(gt=0, le=1), Number] = Protocol.learning_rate
    width: Count = Protocol.width
    depth: Count = Protocol.depth
    first_seed: Annotated[int, Field(ge=0, lt=2**63), Number] = Protocol.first_seed
    grid: Literal["equal", "snr"] = "equal"
    integrator: Literal["euler", "frozen", "multistep"] = "euler"
    quadrature: Literal["trapezoid", "noise", "right"] = "trapezoid"
    start: Literal["noise", "matched"] = "noise"
    resampling: Literal["systematic", "stratified", "multinomial", "residual"] = "systematic"
    threshold: Annotated[float, Field(ge=0, le=1), Number] = Protocol.threshold
    activation: Literal["silu", "gelu", "relu", "tanh"] = "silu"
    standardise: bool = Protocol.standardise
    ema: Annotated[float, Field(gt=0, lt=1), Number] | None = Protocol.ema

    @model_validator(mode="after")
    def _published_is_an_sde(self) -> ProtocolSpec:
        if not self.corrected and self.churn != 1:
            raise SpecError(
                f"churn must be 1 for the paper's sampler, which is the SDE; got {self.churn}. Set corrected: true."
            )
        for name in _OF_OURS:
            if not self.corrected and getattr(self, name) != getattr(Protocol, name):
                raise SpecError(
                    f"{name} must be left out for the paper's sampler; got {getattr(self, name)}. Set corrected: true."
                )
        return self


class ExperimentSpec(_Model):
    """`cells.Experiment`, with the domain of every field."""

    setting: str
    models: Literal["analytic", "conditional", "separate"] = "conditional"
    train_sizes: list[Annotated[int, Field(ge=2), Number]] = list(Experiment.train_sizes)
    particles: Annotated[list[Count], Field(min_length=1)] = list(Experiment.particles)
    runs: Count = Experiment.runs
    analytic: bool = Experiment.analytic
    conditions_alone: bool = Experiment.conditions_alone
    protocol: ProtocolSpec = ProtocolSpec()

    @model_validator(mode="after")
    def _makes_sense(self) -> ExperimentSpec:
        setting(self.setting)
        if self.models == ANALYTIC and "train_sizes" in self.model_fields_set and self.train_sizes:
            raise SpecError(f"train_sizes must be empty for analytic models; got {self.train_sizes}. Leave it out.")
        if not self.analytic and (self.models == ANALYTIC or not self.train_sizes):
            raise SpecError("an experiment must have a column; got none. Set analytic: true, or train_sizes.")
        for name, values in (("train_sizes", self.train_sizes), ("particles", self.particles)):
            if len(set(values)) < len(values):
                raise SpecError(f"{name} must not repeat a number; got {values}. Drop one of them.")
        return self


def parse_experiment(description: Any) -> Experiment:
    """Return the experiment of a mapping as YAML gives it; `SpecError` says what is wrong with it."""
    try:
        found = ExperimentSpec.model_validate(description).model_dump()
        experiment = Experiment.from_dict({**found, "train_sizes": ()} if found["models"] == ANALYTIC else found)
        check_size(experiment)
        return experiment
    except ValidationError as error:
        raise SpecError(_first(error)) from error
    except ArgumentError as error:
        raise SpecError(str(error)) from error


def check_size(experiment: Experiment) -> None:
    """Refuse an experiment that no machine of this memory could hold or no patience see the end of.

    Memory is estimated from below, in float32: what one swarm, the samples, the training data, a network with its
    gradient and Adam's two moments, and one batch of activations take.
    """
    next(experiment.cells(), None)
    p, most = experiment.protocol, max(experiment.particles)
    size, name = max(experiment.train_sizes, default=0), experiment.name
    needed = {
        f"a swarm of K = {most} particles": 64 * most,
        f"{p.swarms} swarms": 64 * p.swarms,
        f"{p.projections} projections": 64 * p.projections,
        f"{size} training points a condition": 24 * size,
        f"a network of width {p.width} and depth {p.depth}": 16 * p.depth * p.width**2 if size else 0,
        f"a batch of {p.batch} through width {p.width} and depth {p.depth}": 4
        * p.batch
        * p.width
        * p.depth
        * bool(size),
    }
    for what, amount in needed.items():
        require_memory(amount, f"{name}: {cut(what)}", "Lower it.")


def parse_spec(text: str, source: str = "a spec") -> dict[str, Experiment]:
    """Return the experiments of a spec file's text by name; a shared `protocol` fills what an experiment leaves out."""
    try:
        content = yaml_files.parse(text)
    except YamlError as error:
        raise SpecError(f"{source}: {error}") from error
    for key in content if isinstance(content, Mapping) else ():
        if key not in _TOP:
            remedy = nearest(key, _TOP) or " Move it below one of them."
            raise SpecError(f"a key of {source} must be protocol or experiments; got {shorten(key)}.{remedy}")
    if not isinstance(content, Mapping) or not isinstance(content.get("experiments"), Mapping):
        raise SpecError(
            f"{source} must hold `experiments:`, a mapping from name to experiment; got {shorten(content, 80)}. "
            "Write experiments: {my-name: {setting: mixture-ood}}."
        )
    for name in content["experiments"]:
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            rule = f"be of a-z, A-Z, 0-9, blanks and . _ - + = & %, at most {_LONGEST} characters long"
            raise SpecError(f"the name of an experiment of {source} must {rule}; got {shorten(name)}. Choose another.")
    found = {name: _one(name, entry, content, source) for name, entry in content["experiments"].items()}
    return {name: e if e.name == name else dataclasses.replace(e, label=name) for name, e in found.items()}


def _one(name: Any, entry: Any, content: Mapping[str, Any], source: str) -> Experiment:
    if not isinstance(entry, Mapping):
        raise SpecError(
            f"experiment {shorten(name)} of {source} must be a mapping; got {shorten(entry, 80)}. "
            "Write {setting: mixture-ood}."
        )
    shared, own = content.get("protocol") or {}, entry.get("protocol") or {}
    if not isinstance(shared, Mapping) or not isinstance(own, Mapping):
        raise SpecError(
            f"a protocol of {source} must be a mapping; got {shorten(own or shared, 80)}. Write {{clip: null}}."
        )
    try:
        return parse_experiment({**entry, "protocol": {**shared, **own}})
    except PolyscoreError as error:
        raise SpecError(f"{source}, experiment {name}: {error}") from error


def load_spec(path: str | Path) -> dict[str, Experiment]:
    """Return the experiments of a YAML file by name."""
    try:
        text = yaml_files.read_text(path)
    except YamlError as error:
        raise SpecError(
            f"a spec must be a readable YAML file; got {shorten(str(path))} ({error}). Check the path."
        ) from error
    return parse_spec(text, cut(str(path)))


def dump_spec(experiments: Mapping[str, Experiment]) -> str:
    """Return the YAML of experiments, with every default written out."""
    plain = {name: {key: v for key, v in e.to_dict().items() if key != "label"} for name, e in experiments.items()}
    entries = {name: ExperimentSpec.model_validate(described).model_dump() for name, described in plain.items()}
    return yaml.safe_dump({"experiments": entries}, sort_keys=False)


def _unknown(subject: str, key: object, model: type[BaseModel]) -> str:
    fields = list(model.model_fields)
    return f"{subject} must be one of {', '.join(fields)}; got {shorten(key)}.{nearest(key, fields)}"


def _first(error: ValidationError) -> str:
    """The first complaint in the house's sentence; our own errors pass through as they are."""
    found = error.errors()[0]
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, PolyscoreError):
        return str(cause)
    where = ".".join(map(str, found["loc"])) or "a spec"
    rule = found["msg"].removeprefix("Input should ").removeprefix("Value error, ")
    if found["type"] == "missing":
        return f"{where} must be given; got nothing. `polyscore paper list --json` shows valid ones."
    rule = "hold at least one number" if found["type"] == "too_short" else rule
    return f"{where} must {rule}; got {shorten(found['input'], 80)}. `polyscore paper list --json` shows valid ones."
