"""`polyscore paper`: the paper's twelve experiments."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyscore.cli import show
from polyscore.cli.choose import chosen as choose
from polyscore.cli.choose import exceeds, left_out, shows_nothing, stored
from polyscore.cli.choose import known as find_known
from polyscore.cli.choose import place as find_place
from polyscore.errors import visible

if TYPE_CHECKING:
    from polyscore.experiments.cells import Experiment
    from polyscore.experiments.engines import Engine
    from polyscore.experiments.runner import Event, Outcome
    from polyscore.experiments.store import Store

app = typer.Typer(help="Reproduce the **paper's tables**.", no_args_is_help=True, rich_markup_mode="markdown")

STORE = Path("runs/paper")  # not results/paper, the committed one: trying something out must not change it
_HELP = {
    "store": "Folder of results; the repository's own, computed on a GPU, is results/paper.",
    "names": "Experiments (see `polyscore paper list`), or settings for both kinds of model.",
    "spec": "YAML file with `experiments:` of your own; NAMEs are then those in it.",
    "runs": "Runs a cell; those of the experiment by default, 30 in the paper.",
    "particles": "Particle counts K, such as 1,4,16; those of the experiment by default.",
    "seconds": "Stop in time: begin nothing that would outlast this, and abandon a training that turns out to.",
    "quick": "A scaled-down version for two CPU cores; kept apart from the real thing, in STORE-quick.",
    "engine": "local, ray or submitit.",
    "address": "Of a running Ray cluster, host:port; without it Ray starts here.",
    "workers": "Processes, Ray CPUs or array tasks at a time; 1 is this process.",
    "gpus": "GPUs a task on ray (also a fraction) or submitit; 1 with --device cuda, else none.",
    "networks": "Networks trained together in a job; fewer make more, smaller jobs.",
    "family": "Learned scores saved by `Family.save`, for Figure 1's second row.",
    "save": "Keep 500 points of every cell of run 0, for the sample grids.",
}
Names = Annotated[list[str] | None, typer.Argument(help=_HELP["names"], metavar="[NAME]...")]
StoreOption = Annotated[Path, typer.Option("--store", help=_HELP["store"])]
Quick = Annotated[bool, typer.Option("--quick", help=_HELP["quick"])]
Spec = Annotated[Path | None, typer.Option(help=_HELP["spec"])]
Runs = Annotated[int | None, typer.Option(help=_HELP["runs"])]
Particles = Annotated[str | None, typer.Option(help=_HELP["particles"])]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


@app.command("list")
def list_(as_json: Json = False, spec: Spec = None) -> None:
    """List the experiments: setting, models, cells.

    Example: `polyscore paper list`
    """
    with show.clean():
        known = find_known(spec)
    rows = [[name, _join(e.train_sizes), _join(e.particles), e.runs, len(set(e.cells()))] for name, e in known.items()]
    header = ["name", "train sizes", "K", "runs", "cells"]
    if as_json:
        show.write_json({"experiments": {name: e.to_dict() for name, e in known.items()}})
    else:
        _table(header, rows)


@app.command("run")
def run(
    names: Names = None,
    all_: Annotated[bool, typer.Option("--all", help="All experiments.")] = False,
    runs: Runs = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the GPU where there is one.")] = None,
    particles: Particles = None,
    seconds: Annotated[float | None, typer.Option(help=_HELP["seconds"])] = None,
    store: StoreOption = STORE,
    quick: Quick = False,
    spec: Spec = None,
    engine: Annotated[str, typer.Option(help=_HELP["engine"])] = "local",
    address: Annotated[str | None, typer.Option(help=_HELP["address"])] = None,
    workers: Annotated[int | None, typer.Option(help=_HELP["workers"])] = None,
    gpus: Annotated[float | None, typer.Option(help=_HELP["gpus"])] = None,
    partition: Annotated[str | None, typer.Option(help="SLURM partition of --engine submitit.")] = None,
    minutes: Annotated[int | None, typer.Option(help="Time limit of a SLURM task.", show_default="60")] = None,
    networks: Annotated[int | None, typer.Option(help=_HELP["networks"])] = None,
    save_samples: Annotated[bool, typer.Option(help=_HELP["save"])] = True,
    as_json: Json = False,
) -> None:
    """Compute what the store is missing; stop it at any time, the same command goes on.

    Examples:

    `polyscore paper run gaussian-factorized-ood-conditional --quick`

    `polyscore paper run --all --device cuda --runs 10 --particles 1,4,16,64`
    """
    with show.clean():
        from polyscore.errors import require
        from polyscore.experiments.store import Store

        chosen = choose(names or [], all_, spec, runs, particles, quick)
        require(seconds is None or 0 < seconds < float("inf"), "--seconds", "be positive and finite", seconds)
        require(networks is None or networks >= 1, "--networks", "be at least 1", networks)
        require(gpus is None or gpus < float("inf"), "--gpus", "be a finite number", gpus)
        require(workers is None or workers >= 1, "--workers", "be at least 1", workers)
        require(workers is None or engine != "local" or workers <= 256, "--workers",
                "be at most 256 on one machine", workers, "Use --engine ray or submitit for more.")  # fmt: skip
        given = {"address": address, "gpus": gpus, "partition": partition, "minutes": minutes}
        if quick and engine == "local":
            workers = workers or _cores(device)
        maker, device = _engine(engine, workers, device, given)
        place = Store(find_place(store, quick))
        common: dict[str, Any] = {"device": device, "seconds": seconds, "save_samples": save_samples}
        outcome = _compute(chosen, place, maker, common, engine, networks, as_json)
    summary = {**dataclasses.asdict(outcome), "store": str(place.path)}
    if as_json:
        show.write_json(summary)
    else:
        more_runs, more_particles = exceeds(chosen, choose(names or [], all_, spec, None, None, quick))
        options = {"--store": store, "--spec": spec, "--runs": more_runs and runs,
                   "--particles": more_particles and particles}  # fmt: skip
        same = "".join(f" {option} {shlex.quote(str(value))}" for option, value in options.items() if value)
        show.stdout().print(
            f"{outcome.computed} cells in {outcome.seconds:.0f} s, {outcome.missing} missing; "
            f"store {visible(str(place.path))}\n"
            f"see `polyscore paper report{' --quick' if quick else ''}{same}`", soft_wrap=True,
        )  # fmt: skip
    if outcome.missing and seconds is None:  # what is missing could not be computed, and was named
        raise typer.Exit(1)


def _cores(device: str | None) -> int:
    """Processes for small networks on the CPU: two of one thread beat one of two."""
    import os

    import torch

    on_gpu = torch.cuda.is_available() if device is None else device != "cpu"
    return 1 if on_gpu else min(2, os.cpu_count() or 1)


def _engine(name: str, workers: int | None, device: str | None, given: dict[str, Any]) -> tuple[Engine, str | None]:
    """Make the engine from the options that are meant for it, and say where its tasks compute."""
    from polyscore.errors import ArgumentError
    from polyscore.experiments.engines import engine

    allowed = {"ray": ("address", "gpus"), "submitit": ("gpus", "partition", "minutes")}.get(name, ())
    options = {key: value for key, value in given.items() if value is not None}
    for key in options:
        if key not in allowed and name in ("local", "ray", "submitit"):
            raise ArgumentError(f"--{key} must go with an engine that has it; got --engine {name}. Drop one of them.")
    if name in ("ray", "submitit"):
        options.setdefault("gpus", 1 if device is not None and device.startswith("cuda") else 0)
        device = device or ("cuda" if options["gpus"] else "cpu")
    else:
        show.require_device(device)
    return engine(name, workers=workers, **options), device


def _compute(
    chosen: list[Experiment], store: Store, maker: Engine, common: dict[str, Any], engine: str, networks: int | None,
    quiet: bool,
) -> Outcome:  # fmt: skip
    from polyscore.experiments.jobs import adopt, run_jobs
    from polyscore.experiments.runner import run as run_here

    before = len(store.records)
    try:
        with show.progress("starting", quiet) as report:

            def listener(event: Event) -> None:
                report(event.done, event.total, event.what)

            if engine == "local" and maker.workers == 1:
                with store.writing():
                    adopt(store)
                return run_here(chosen, store, listener=listener, **common)
            # Smaller jobs keep all workers busy; on a GPU networks train best together.
            at_once = networks or (90 if engine != "local" else 3)
            return run_jobs(chosen, store, maker, networks=at_once, listener=listener, **common)
    except KeyboardInterrupt:
        new = len(store.records) - before
        show.stderr().print(
            f"stopped; {new} new cells are in {visible(str(store.path))}. The same command goes on from there."
        )
        raise typer.Exit(130) from None


@app.command("status")
def status(
    store: StoreOption = STORE, quick: Quick = False, spec: Spec = None, runs: Runs = None, particles: Particles = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show how many cells of each experiment are stored, and the runs behind each K.

    Examples:

    `polyscore paper status`

    `polyscore paper status --store results/paper`
    """
    with show.clean():
        place = stored(store, quick)
        known = choose([], True, spec, runs, particles, quick)
        others = left_out(known, place)
        rows = [_progress(experiment, place) for experiment in known]
    if as_json:
        show.write_json({"store": str(place.path), "experiments": rows, "other_records": others})
    else:
        header = ["experiment", "cells", "stored", "fewest runs by K"]
        _table(header, [[r["name"], r["cells"], r["stored"], _runs(r["runs"])] for r in rows])
        _tell_of(others)


def _runs(by_count: dict[int, int]) -> str:
    """Say the runs behind each K, or once where all have the same."""
    if len(set(by_count.values())) == 1:
        return str(next(iter(by_count.values())))
    return _join(f"{k}: {n}" for k, n in by_count.items())


def _progress(experiment: Experiment, store: Store) -> dict[str, Any]:
    from collections import Counter

    cells = list(dict.fromkeys(experiment.cells()))
    stored = [cell for cell in cells if store.get(cell, experiment.protocol)]
    found = Counter((c.particles, c.models, c.train_size, c.target) for c in stored)
    columns = {(c.particles, c.models, c.train_size, c.target) for c in cells}
    runs = {
        k: min((found[column] for column in columns if column[0] == k), default=0) for k in sorted(experiment.particles)
    }
    return {"name": experiment.name, "cells": len(cells), "stored": len(stored), "runs": runs}


@app.command("report")
def report(
    out: Annotated[Path, typer.Option(help="Folder for report.html, tables and figures.")] = Path("runs/report"),
    store: StoreOption = STORE,
    quick: Quick = False,
    spec: Spec = None,
    runs: Runs = None,
    particles: Particles = None,
    family: Annotated[Path | None, typer.Option(help=_HELP["family"])] = None,
    as_json: Json = False,
) -> None:
    """Write tables (Markdown, LaTeX, CSV), figures and one self-contained HTML report.

    Examples:

    `polyscore paper report`

    `polyscore paper report --store results/paper`
    """
    with show.clean(), show.progress("writing", quiet=as_json):
        from polyscore.experiments.report import write_report
        from polyscore.experiments.store import StoreError
        from polyscore.files.atomic import check_directory

        check_directory(out)
        place = stored(store, quick)
        chosen = choose([], True, spec, runs, particles, quick)
        others = left_out(chosen, place)
        if shows_nothing(chosen, place):
            raise StoreError(
                f"a report must have a cell to show; {place.path} has none that is asked for, and {others} "
                "other records. Give the --spec or --particles they came from, or fill it with `polyscore paper run`."
            )
        learned = None
        if family is not None:
            from polyscore.algebra import load

            learned = load(family)
        written = write_report(chosen, place, out, learned)
    if as_json:
        show.write_json(written.to_dict())
    else:
        for line in written.sentences():
            show.stdout().print(line, soft_wrap=True)
        _tell_of(others)


def _tell_of(others: int) -> None:
    """Say that a store holds more than is shown."""
    if others:
        show.stderr().print(f"{others} more records of the store are not shown: other runs, K or protocols. "
                            "Ask for them with --runs, --particles or --spec.")  # fmt: skip


def _join(values: Any) -> str:
    return ", ".join(map(str, values))


def _table(header: list[str], rows: list[list[Any]]) -> None:
    from rich.table import Table

    table = Table()
    for name in header:
        first = name in ("name", "experiment")
        table.add_column(name, justify="left" if first else "right", no_wrap=first)
    for row in rows:
        table.add_row(*map(str, row))
    show.stdout().print(table)
