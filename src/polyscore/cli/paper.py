"""`polyscore paper`: the paper's twelve experiments, and specs in its words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyscore.cli import options as o
from polyscore.cli import results
from polyscore.cli.choose import Asked
from polyscore.cli.computing import Computing, compute

if TYPE_CHECKING:
    from polyscore.experiments.experiment import Experiment
    from polyscore.experiments.store import Store
    from polyscore.paper.report import PaperReport

app = typer.Typer(help="Reproduce the **paper's tables**.", no_args_is_help=True, rich_markup_mode="markdown")

STORE = Path("runs/paper")  # not results/paper, the committed one: trying something out must not change it
_HELP = {
    "store": "Folder of results; the repository's own, computed on a GPU, is results/paper.",
    "names": "Experiments (see `polyscore paper list`), or settings for both kinds of model.",
    "spec": "YAML file with experiments of your own, in place of the paper's.",
    "family": "Learned scores saved by `Family.save`, for Figure 1's second row.",
}
Names = Annotated[list[str] | None, typer.Argument(help=_HELP["names"], metavar="[NAME]...")]
StoreOption = Annotated[Path, typer.Option("--store", help=_HELP["store"])]
Spec = Annotated[Path | None, typer.Option(help=_HELP["spec"])]
All = Annotated[bool, typer.Option("--all", help="All experiments.")]
FamilyOption = Annotated[Path | None, typer.Option("--family", help=_HELP["family"])]


@app.command("list")
def list_(as_json: o.Json = False, spec: Spec = None) -> None:
    """List the experiments: setting, models, cells.

    Example: `polyscore paper list`
    """
    results.list_experiments(Asked(spec, everything=True, paper=True), as_json)


@app.command("run")
def run(
    context: typer.Context, names: Names = None, all_: All = False, spec: Spec = None, store: StoreOption = STORE,
    quick: o.Quick = False, runs: o.Runs = None, particles: o.Particles = None, device: o.Device = None,
    seconds: o.Seconds = None, engine: o.EngineName = "local", address: o.Address = None, workers: o.Workers = None,
    gpus: o.Gpus = None, partition: o.Partition = None, minutes: o.Minutes = None, networks: o.Networks = None,
    save_samples: o.SaveSamples = True, as_json: o.Json = False,
) -> None:  # fmt: skip
    """Compute what the store is missing; stop it at any time, the same command goes on.

    Examples:

    `polyscore paper run gaussian-factorized-ood-conditional --quick`

    `polyscore paper run --all --device cuda --runs 10 --particles 1,4,16,64`
    """
    how = Computing(device, seconds, engine, address, workers, gpus, partition, minutes, networks, save_samples)
    asked = Asked(spec, tuple(names or ()), all_, runs, particles, quick, store, paper=True)
    compute(asked, how, context.find_object(tuple) or (), as_json)


@app.command("status")
def status(
    store: StoreOption = STORE, quick: o.Quick = False, spec: Spec = None, runs: o.Runs = None,
    particles: o.Particles = None, as_json: o.Json = False,
) -> None:  # fmt: skip
    """Show how many cells of each experiment are stored, and the runs behind each K.

    Examples:

    `polyscore paper status`

    `polyscore paper status --store results/paper`
    """
    results.show_status(Asked(spec, (), True, runs, particles, quick, store, paper=True), as_json)


@app.command("report")
def report(
    out: o.Out = Path("runs/report"), store: StoreOption = STORE, quick: o.Quick = False, spec: Spec = None,
    runs: o.Runs = None, particles: o.Particles = None, family: FamilyOption = None, as_json: o.Json = False,
) -> None:  # fmt: skip
    """Write tables (Markdown, LaTeX, CSV), figures and one self-contained HTML report.

    Examples:

    `polyscore paper report`

    `polyscore paper report --store results/paper`
    """

    def write(chosen: list[Experiment], place: Store, folder: Path) -> PaperReport:
        from polyscore.algebra import load
        from polyscore.paper.report import write_paper_report

        return write_paper_report(chosen, place, folder, None if family is None else load(family))

    results.write_report_of(Asked(spec, (), True, runs, particles, quick, store, paper=True), out, write, as_json)
