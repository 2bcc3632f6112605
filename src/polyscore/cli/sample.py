"""`polyscore sample`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from os.path import isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyscore.cli import show
from polyscore.cli.options import names_of
from polyscore.cli.sampler import Flags, make_sampler
from polyscore.errors import require, visible

if TYPE_CHECKING:
    from polyscore.algebra import Composition, Family
    from polyscore.samplers import Run

_HELP = {
    "family": "A YAML family file (`polyscore example` prints one), what `polyscore fit` wrote, or module:function.",
    "expression": "Such as 'a1 * a2 / base' or '(a1 * a2)^0.5'.",
    "K": "Particles a swarm; 1 is plain denoising. Without this, or another option of a sampler, it is chosen.",
    "steps": "Time steps; a warning says when they are too few.",
    "churn": "1 is the SDE (the default), 0 the ODE.",
    "clip": "Bound on the log-weight rate; none by default, 15 with --published.",
    "resampling": "systematic (the default), stratified, multinomial or residual.",
    "threshold": "Resample when ESS is at most this share of K; 1 (the default) is after every step.",
    "pooled": "Draw outputs from all swarms together, each by its evidence; not with scores that may be wrong.",
    "published": "The paper's sampler to the letter.",
    "naive": "Add scores, no correction.",
    "sampler": "A sampler by kind, such as denoise, or a mapping such as '{kind: denoise, steps: 50}'.",
    "out": "Samples, by ending: .npz, .csv or .parquet.",
    "plot": "Also draw the samples: .png, .pdf or .svg.",
    "variables": "The one or two variables to draw, as a,b, one that holds a comma in double quotes; the first two by "
    "default.",
    "force": "Replace files that are there.",
}


_NO_EVIDENCE = "none without weights"


def command(
    family: Annotated[Path, typer.Argument(help=_HELP["family"], metavar="FAMILY.yaml|RUN|MODULE:FUNCTION")],
    expression: Annotated[str, typer.Argument(help=_HELP["expression"])],
    n: Annotated[int, typer.Option("-n", help="Samples.")] = 5000,
    particles: Annotated[int | None, typer.Option("-K", "--particles", help=_HELP["K"], show_default="chosen")] = None,
    steps: Annotated[int | None, typer.Option(help=_HELP["steps"], show_default="100; 500 with --published")] = None,
    churn: Annotated[float | None, typer.Option(help=_HELP["churn"])] = None,
    clip: Annotated[float | None, typer.Option(help=_HELP["clip"])] = None,
    resampling: Annotated[str | None, typer.Option(help=_HELP["resampling"])] = None,
    threshold: Annotated[float | None, typer.Option(help=_HELP["threshold"])] = None,
    pooled: Annotated[bool, typer.Option("--pooled", help=_HELP["pooled"])] = False,
    published: Annotated[bool, typer.Option("--published", help=_HELP["published"])] = False,
    naive: Annotated[bool, typer.Option("--naive", help=_HELP["naive"])] = False,
    sampler: Annotated[str | None, typer.Option(help=_HELP["sampler"])] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the CPU by default.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help=_HELP["out"])] = Path("samples.npz"),
    plot: Annotated[Path | None, typer.Option(help=_HELP["plot"])] = None,
    variables: Annotated[str | None, typer.Option(help=_HELP["variables"], show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help=_HELP["force"])] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Sample a composition and say how far to believe it: ESS, ancestors, evidence, validity.

    Examples:

    `polyscore example > family.yaml`

    `polyscore sample family.yaml "a1 * a2 / base" -n 5000 -K 16 --out samples.npz --plot samples.png`

    `polyscore sample RUN "drugA * drugB / control" -o out.csv` — RUN as written by `polyscore fit`
    """
    options = Flags(particles, steps, churn, clip, resampling, threshold, published, naive, sampler, pooled)
    with show.clean() as warned, show.progress("loading", quiet=as_json) as tell:
        show.require_device(device)
        source = source_of(family)
        target, picture = _outputs(out, plot, force, source.files)
        q, chosen = _composed(expression, source, device), make_sampler(options)
        drawn = _drawn(variables, plot, q)
        run = chosen.sample(q, n, seed, device=device, progress=lambda done, steps: tell(done, steps, "sampling"))
        summary = summarise(q, run) | {
            "sampler": run.sampler,
            "reason": run.reason,
            "seed": seed,
            "expression": expression,
        }
        run.save(target, force=force, about=summary)
        if picture:
            _plot(picture, run, q, drawn)
        summary |= {"warnings": warned, "files": [str(path) for path in (target, picture) if path]}
    if as_json:
        show.write_json(summary)
    else:
        _show(summary)


def _outputs(out: Path, plot: Path | None, force: bool, inputs: list[Path]) -> tuple[Path, Path | None]:
    """The files to write, refused before the work where they cannot be."""
    from polyscore.files.outputs import check_output
    from polyscore.files.samples import check_sample_file

    target = check_sample_file(out, force, inputs)
    return target, check_output(plot, (".png", ".pdf", ".svg"), force, inputs) if plot else None


def _composed(expression: str, source: Reading, device: str | None) -> Composition:
    from polyscore.algebra import parse

    return parse(expression, source.load(device))


@dataclass(frozen=True)
class Reading:
    """Where a command's family comes from: the files that are read, and how."""

    files: list[Path]
    load: Callable[[str | None], Family]


_TABLES = (".csv", ".tsv", ".parquet", ".h5ad")  # what polyscore fit takes, or people keep their cells in


def source_of(path: Path) -> Reading:
    """Return how to read a family: `module:function`, a model where there is one by that name, else YAML."""
    from polyscore.algebra.saved import load, model_file
    from polyscore.experiments.functions import is_function
    from polyscore.models.checkpoints import with_suffix

    if is_function(str(path)) and not isfile(path):
        return Reading([], lambda device: _called(str(path)))
    beside = with_suffix(path)
    if isdir(path) or path.suffix == ".safetensors" or (isfile(beside) and path.suffix in ("", ".json")):
        model = with_suffix(model_file(path))
        return Reading([path, model, model.with_suffix(".json")], lambda device: load(model, device or "cpu"))
    return Reading([path], lambda device: _described(path))


def _described(path: Path) -> Family:
    """The family of a YAML file; a table is no such file, and is told what it is for."""
    from polyscore.algebra.family_file import load_family
    from polyscore.errors import PolyscoreError

    try:
        return load_family(path)
    except PolyscoreError:
        require(path.suffix.lower() not in _TABLES, "a family", "be a family file or what polyscore fit wrote",
                f"the table {str(path)!r}", "Learn its conditions first: polyscore fit.")  # fmt: skip
        raise


def _called(text: str) -> Family:
    from polyscore.experiments.functions import Function
    from polyscore.experiments.sources import Called

    return Called(Function.find(text, os.getcwd())).build()


def summarise(q: Composition, run: Run) -> dict[str, Any]:
    """Return what a reader needs to judge a run, JSON-ready."""
    from polyscore.algebra.proper import proper
    from polyscore.samplers.diagnosis import is_biased, verdict

    particles = run.log_weights.shape[1]
    lowest, ancestors = run.lowest_ess.float(), run.unique_ancestors.float()
    return {
        "exponents": q.exponents,
        "total": q.total,
        "validity": proper(q).validity().reason,  # of what was sampled, where fits were moved
        "n": len(run.samples),
        "particles": particles,
        "lowest_ess": {"median": lowest.median().item(), "worst": lowest.min().item()},
        "unique_ancestors": {"median": ancestors.median().item(), "worst": ancestors.min().item()},
        "clipped_fraction": run.clipped_fraction,
        "log_evidence": run.total_log_evidence,
        "log_evidence_error": math.nan if is_biased(run.clipped_fraction) else run.log_evidence_error,
        "evidence_share": run.evidence_share,
        "moved": run.moved,
        "outside": dict([run.outside]) if run.outside[0] else {},
        "findings": run.findings,
        "verdict": verdict(run),
        **_exact_evidence(q),
        "mean": run.samples.double().flatten(1).mean(0).tolist(),
        "std": run.samples.double().flatten(1).std(0).tolist() if len(run.samples) > 1 else None,
    }


def _exact_evidence(q: Composition) -> dict[str, float | None]:
    """The reference's log Z, and of how many effective draws; None where it is no estimate, or there is none."""
    from polyscore.errors import PolyscoreError
    from polyscore.targets import exact

    nothing: dict[str, float | None] = {"exact_log_evidence": None, "exact_ess": None}
    try:
        if (target := exact(q) if q.has_density else None) is None:
            return nothing
        evidence = float(target.log_evidence)
    except PolyscoreError:
        return nothing
    ess = float(target.ess)  # known once the evidence is; infinite where nothing is estimated
    return {"exact_log_evidence": evidence, "exact_ess": ess if math.isfinite(ess) else None}


def _drawn(variables: str | None, plot: Path | None, q: Composition) -> list[str] | None:
    """The variables to draw, refused before the work where there are none of that name."""
    from polyscore.plots.clouds import indices

    if variables is None:
        return None
    require(plot, "--variables", "say what --plot draws", "no --plot", "Add one.")
    indices(names := names_of(variables), q.family.variables, len(q.family.variables), 2)
    return names


def _plot(path: Path, run: Run, q: Composition, variables: list[str] | None) -> None:
    from polyscore import plots

    shown = {f"{run.sampler.partition('(')[0]}, {len(run.samples)} samples": run}
    plots.scatter(shown, variables=variables, title=repr(q), path=path, force=True)


def _verdict(summary: dict[str, Any]) -> str:
    """What speaks against the result; what was found is above it as warnings."""
    count = len(summary["findings"])
    if count:
        return f"{count} finding{'s' * (count > 1)} speak{'s' * (count == 1)} against this result: see the warnings"
    return str(summary["verdict"])


def _show(summary: dict[str, Any]) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    lines = _lines(summary)
    table = Table("name", Column(overflow="fold"), show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in lines.items():
        table.add_row(Text(name, style="bold"), visible(text))
    show.stdout().print(table, soft_wrap=True)


def _lines(summary: dict[str, Any]) -> dict[str, str]:
    """What is shown of a run, by name."""
    number = "{:.4g}".format
    exact, evidence = summary["exact_log_evidence"], summary["log_evidence"]
    weighted = evidence == evidence
    return {
        "composition": f"{summary['expression']}   (W = {summary['total']:g})",
        "validity": summary["validity"],
        "sampler": summary["reason"] or summary["sampler"],
        "samples": f"{summary['n']} of {summary['particles']} particles each",
        "mean": " ".join(map(number, summary["mean"][:6])),
        "std": " ".join(map(number, (summary["std"] or [])[:6])),
        **(_swarms(summary) if summary["particles"] > 1 else {}),
        "log evidence": (f"{number(evidence)}{_error(summary)}" if weighted else _NO_EVIDENCE)
        + (_reference(exact, summary["exact_ess"]) if exact is not None else ""),
        **_data(summary["moved"]),
        "wrote": ", ".join(map(visible, summary["files"])),
        "verdict": _verdict(summary),
    }


def _swarms(summary: dict[str, Any]) -> dict[str, str]:
    """What weights did to a swarm; one particle has all of its own weight, and says nothing by it."""
    lowest, ancestors = summary["lowest_ess"], summary["unique_ancestors"]
    return {
        "lowest ESS": f"median {lowest['median']:.4g}, worst {lowest['worst']:.4g} of {summary['particles']}",
        "unique ancestors": f"median {ancestors['median']:.4g}, worst {ancestors['worst']:.4g}",
        "clipped rates": f"{100 * summary['clipped_fraction']:.3g} %",
    }


def _data(moved: float) -> dict[str, str]:
    """How far the data settle the composition, where that is known."""
    said = f"as many other rows would move its mean or width by {moved:.2g} deviations"
    return {"data": said} if moved == moved else {}


def _reference(log_evidence: float, ess: float | None) -> str:
    """The reference's log Z; where few draws hold it, that it is no more than a guess."""
    from polyscore.targets.draws import LOW_ESS

    if ess is not None and ess < LOW_ESS:
        return f" (a guess of {ess:.0f} effective draws: {log_evidence:.4g})"
    return f" (exact {log_evidence:.4g})"


def _error(summary: dict[str, Any]) -> str:
    """That of the evidence, where swarms tell it and no clip moved it."""
    from polyscore.samplers.diagnosis import is_biased

    if is_biased(summary["clipped_fraction"]):
        return ", biased by the clip"
    error = summary["log_evidence_error"]
    return f" ± {error:.2g}" if error == error else ", error unknown"
