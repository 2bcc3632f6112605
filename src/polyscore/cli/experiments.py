"""`polyscore run`, `report`, `status` and `list`: the experiments of a spec of one's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from polyscore.cli import options as o
from polyscore.cli import results
from polyscore.cli.choose import Asked
from polyscore.cli.computing import Computing, compute

_NAMES = "Experiments of the spec; all by default."
Names = Annotated[list[str] | None, typer.Argument(help=_NAMES, metavar="[NAME]...")]
StoreOption = Annotated[Path | None, typer.Option("--store", help="Folder of results.", show_default="runs/SPEC")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the report.", show_default="STORE-report")]


def _asked(spec: Path, names: list[str] | None, store: Path | None, **changes: object) -> Asked:
    """What a command asks for; results live in a folder that is named like the spec."""
    place = store or Path("runs") / (spec.stem or "spec")
    return Asked(spec, tuple(names or ()), not names, store=place, **changes)  # type: ignore[arg-type]


def run(
    context: typer.Context, spec: o.SpecFile, names: Names = None, store: StoreOption = None, quick: o.Quick = False,
    runs: o.Runs = None, particles: o.Particles = None, device: o.Device = None, seconds: o.Seconds = None,
    engine: o.EngineName = "local", address: o.Address = None, workers: o.Workers = None, gpus: o.Gpus = None,
    partition: o.Partition = None, minutes: o.Minutes = None, networks: o.Networks = None,
    save_samples: o.SaveSamples = True, as_json: o.Json = False,
) -> None:  # fmt: skip
    """Compute what the store is missing of a **spec's experiments**; stop it at any time, the same command goes on.

    A spec may name `module:function`, which is code that runs: pass only specs that you trust.

    Example: `polyscore run my-spec.yaml`, then `polyscore report my-spec.yaml`
    """
    how = Computing(device, seconds, engine, address, workers, gpus, partition, minutes, networks, save_samples)
    asked = _asked(spec, names, store, runs=runs, particles=particles, quick=quick)
    compute(asked, how, context.find_object(tuple) or (), as_json)


def report(
    spec: o.SpecFile, names: Names = None, store: StoreOption = None, out: OutOption = None, quick: o.Quick = False,
    runs: o.Runs = None, particles: o.Particles = None, as_json: o.Json = False,
) -> None:  # fmt: skip
    """Write tables (Markdown, LaTeX, CSV), figures and one self-contained HTML report of a **spec's experiments**.

    Example: `polyscore report my-spec.yaml --out runs/report`
    """
    from polyscore.experiments.report import write_report

    asked = _asked(spec, names, store, runs=runs, particles=particles, quick=quick)
    place = out or asked.place.with_name(asked.place.name + "-report")
    results.write_report_of(asked, place, partial(write_report, title=spec.stem), as_json)


def status(
    spec: o.SpecFile, names: Names = None, store: StoreOption = None, quick: o.Quick = False, runs: o.Runs = None,
    particles: o.Particles = None, as_json: o.Json = False,
) -> None:  # fmt: skip
    """Show how many cells of each of a **spec's experiments** are stored.

    Example: `polyscore status my-spec.yaml`
    """
    results.show_status(_asked(spec, names, store, runs=runs, particles=particles, quick=quick), as_json)


def list_(spec: o.SpecFile, as_json: o.Json = False) -> None:
    """List the **spec's experiments**: train sizes, samplers, runs, cells.

    Example: `polyscore list my-spec.yaml`
    """
    results.list_experiments(_asked(spec, None, None), as_json)
