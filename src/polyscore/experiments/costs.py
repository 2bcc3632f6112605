"""What the stored cells of experiments took, where they were computed, and how."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyscore.experiments.experiment import Experiment
from polyscore.experiments.records import Record
from polyscore.experiments.store import Store


def records_of(experiments: Sequence[Experiment], store: Store) -> list[Record]:
    """Return the stored records of experiments, each once."""
    found = {e.key(cell): store.records.get(e.key(cell)) for e in experiments for cell in e.cells()}
    return [record for record in found.values() if record is not None]


def cost(experiment: Experiment, store: Store) -> dict[str, Any]:
    """Return how many cells are stored and what they took."""
    records = records_of([experiment], store)
    return {
        "name": experiment.name,
        "cells": len(set(experiment.cells())),
        "stored": len(records),
        "training": sum(record.about.get("train_seconds", 0.0) for record in records),
        "sampling": sum(record.about.get("seconds", 0.0) for record in records),
        "whole": whole(experiment, records),
    }


def whole(experiment: Experiment, records: list[Record]) -> float | None:
    """Return minutes that all cells take on the GPU that computed most of these, at the mean pace of each kind."""
    devices = Counter(r.about.get("device") for r in records if r.about.get("device") != "cpu")
    if not devices:
        return None
    device = devices.most_common(1)[0][0]
    paces: dict[tuple[str, int], list[float]] = {}
    for r in records:
        if r.about.get("device") == device:
            spent = r.about.get("seconds", 0.0) + r.about.get("train_seconds", 0.0)
            paces.setdefault((r.cell.models, r.cell.particles), []).append(spent)
    needed = Counter((cell.models, cell.particles) for cell in experiment.cells())
    if needed.keys() - paces.keys():
        return None
    return sum(n * statistics.fmean(paces[kind]) for kind, n in needed.items()) / 60


def facts(experiments: Sequence[Experiment], store: Store) -> list[tuple[str, str]]:
    """Return devices, versions, every protocol in full, and what experiments brought along."""
    records = records_of(experiments, store)
    found = [
        (label, ", ".join(f"{value} ({n} cells)" for value, n in Counter(r.about.get(key) for r in records).items()))
        for label, key in (("device", "device"), ("polyscore", "version"), ("torch", "torch"))
    ]
    seconds = sum(r.about.get("seconds", 0.0) + r.about.get("train_seconds", 0.0) for r in records)
    return [*found, ("all cells", f"{seconds:.0f} s of compute"), *_protocols(experiments), *_samplers(experiments)]


def _protocols(experiments: Sequence[Experiment]) -> list[tuple[str, str]]:
    protocols = {e.protocol.key: e.protocol for e in experiments}
    found = [
        (f"protocol {key}", ", ".join(f"{f.name} = {getattr(protocol, f.name)}" for f in dataclasses.fields(protocol)
                                      if f.name != "content"))
        for key, protocol in protocols.items()
    ]  # fmt: skip
    named = any(e.samplers for e in experiments)
    return [*found, ("samplers by name", "have steps, grid, churn and the like of their own, below; the protocol's "
                                         "are those of the rows K.")] if named else found  # fmt: skip


def _samplers(experiments: Sequence[Experiment]) -> list[tuple[str, str]]:
    built = {name: repr(sampler) for e in experiments for name, sampler in e.built.items()}
    return [(f"sampler {name}", text) for name, text in built.items()]
