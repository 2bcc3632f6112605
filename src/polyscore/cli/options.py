"""Options that several commands have, each said once."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

_SECONDS = "Stop in time: begin nothing that would outlast this, and abandon a training that turns out to."
_QUICK = "A scaled-down version for two CPU cores; kept apart from the real thing, in STORE-quick."
_PARTICLES = "Particle counts K, such as 1,4,16; those of the experiment by default."
_WORKERS = "Processes, Ray CPUs or array tasks at a time; 1 is this process."
_GPUS = "GPUs a task on ray (also a fraction) or submitit; 1 with --device cuda, else none."
_ADDRESS = "Of a running Ray cluster, host:port; without it Ray starts here."
_SAVE = "Keep 500 points of every cell of run 0, for the sample grids."

SpecFile = Annotated[Path, typer.Argument(help="YAML file with experiments of your own.", metavar="SPEC.yaml")]
Runs = Annotated[int | None, typer.Option(help="Runs a cell; those of the experiment by default.")]
Particles = Annotated[str | None, typer.Option(help=_PARTICLES)]
Quick = Annotated[bool, typer.Option("--quick", help=_QUICK)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; the GPU where there is one.")]
Seconds = Annotated[float | None, typer.Option(help=_SECONDS)]
EngineName = Annotated[str, typer.Option(help="local, ray or submitit.")]
Address = Annotated[str | None, typer.Option(help=_ADDRESS)]
Workers = Annotated[int | None, typer.Option(help=_WORKERS)]
Gpus = Annotated[float | None, typer.Option(help=_GPUS)]
Partition = Annotated[str | None, typer.Option(help="SLURM partition of --engine submitit.")]
Minutes = Annotated[int | None, typer.Option(help="Time limit of a SLURM task.", show_default="60")]
Networks = Annotated[int | None, typer.Option(help="Networks trained together in a job; fewer make more jobs.")]
SaveSamples = Annotated[bool, typer.Option(help=_SAVE)]
Out = Annotated[Path, typer.Option(help="Folder for report.html, tables and figures.")]


def names_of(text: str) -> list[str]:
    """Names between commas, as a table's own first line would hold them: one with a comma in it stands in quotes."""
    lines = list(csv.reader([text], skipinitialspace=True))
    return [name.strip() for line in lines for name in line]
