"""`polyscore fit`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyscore.cli import show
from polyscore.cli.options import names_of
from polyscore.errors import in_a_row, listed, visible

if TYPE_CHECKING:
    from polyscore.algebra import Family
    from polyscore.data.table import Table
    from polyscore.experiments.functions import Module

_HELP = {
    "table": "One row a point: .csv (also ; or tab between cells), .tsv, .txt, .parquet or .h5ad.",
    "condition": "The column that names each row's condition.",
    "columns": "The columns to learn, as a,b,c, one that holds a comma in double quotes; by default all others that "
    "hold numbers.",
    "out": "Folder for the model and the training, made if missing.",
    "model": "conditional (one network told the condition) or separate (one network each).",
    "kind": "structured (a mixture, and a network where that is not enough), mixture (alone: nothing is trained, and "
    "steps and width do not matter), vanilla (a network alone), or a name that a module of yours has registered "
    "(--import, before the command).",
    "steps": "Optimiser steps; raise them to train on. 10,000, or 20,000 of vanilla; of no matter to mixture.",
    "width": "Width of the network's layers; 256, or 512 of vanilla; of no matter to mixture.",
    "learning_rate": "Of Adam, constant; 5e-4, or 2e-4 of vanilla.",
    "options": "Of that kind, a mapping such as '{features: 8}'.",
    "ensemble": "Networks with seeds of their own; several make an ensemble, which knows its doubt.",
    "seconds": "Stop after this time at the latest; the same command goes on.",
    "ema": "Decay of an average of the weights, such as 0.999; none by default.",
    "plain": "Train in the data's own units, which must then be near 1.",
    "bend": "Bend skewed columns by a power that all conditions share; by default where mixtures are decidedly better.",
    "force": "Replace a training of other data or another recipe.",
}


def command(
    context: typer.Context,
    table: Annotated[Path, typer.Argument(help=_HELP["table"], metavar="TABLE.csv")],
    condition_column: Annotated[str, typer.Option("--condition-column", "-c", help=_HELP["condition"])],
    out: Annotated[Path, typer.Option("--out", "-o", help=_HELP["out"], metavar="RUN")],
    columns: Annotated[str | None, typer.Option(help=_HELP["columns"])] = None,
    steps: Annotated[int | None, typer.Option(help=_HELP["steps"], show_default=False)] = None,
    model: Annotated[str, typer.Option(help=_HELP["model"])] = "conditional",
    kind: Annotated[str, typer.Option(help=_HELP["kind"])] = "structured",
    options: Annotated[str, typer.Option(help=_HELP["options"], show_default=False)] = "{}",
    width: Annotated[int | None, typer.Option(help=_HELP["width"], show_default=False)] = None,
    depth: Annotated[int | None, typer.Option(help="Hidden layers; 3, or 4 of vanilla.", show_default=False)] = None,
    batch: Annotated[int, typer.Option(help="Points a step and network.")] = 512,
    learning_rate: Annotated[float | None, typer.Option(help=_HELP["learning_rate"], show_default=False)] = None,
    ema: Annotated[float | None, typer.Option(help=_HELP["ema"])] = None,
    ensemble: Annotated[int, typer.Option("--ensemble", "--members", help=_HELP["ensemble"])] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    seconds: Annotated[float | None, typer.Option(help=_HELP["seconds"])] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the GPU where there is one.")] = None,
    plain: Annotated[bool, typer.Option("--not-standardised", help=_HELP["plain"])] = False,
    bend: Annotated[bool | None, typer.Option("--bend/--no-bend", help=_HELP["bend"], show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help=_HELP["force"])] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Learn the conditions of your own data: a table in, a folder out that `polyscore sample` takes.

    Stopped by Ctrl-C, a time limit or a crash, the same command goes on where it was.

    Example: `polyscore fit cells.csv --condition-column condition --out RUN`, then
    `polyscore sample RUN "drugA * drugB / control" -o out.csv`
    """
    with show.clean() as warned, show.progress("reading", quiet=as_json) as tell:
        from polyscore.data.read import table_of
        from polyscore.training import Recipe

        show.require_device(device)
        sizes: dict[str, Any] = {"steps": steps, "width": width, "depth": depth, "learning_rate": learning_rate,
                                 "bend": bend}  # fmt: skip
        recipe = Recipe(model=model, batch=batch, ema=ema, kind=kind, options=_mapping(options), standardise=not plain,
                        **{name: value for name, value in sizes.items() if value is not None})  # fmt: skip
        check_run(out, force)
        names = None if columns is None else names_of(columns)
        data = table_of(table, condition_column, names)
        how: dict[str, Any] = {"seed": seed, "ensemble": ensemble, "recipe": recipe, "device": device}
        family, path = _trained(data, out, force, tell, seconds=seconds, **how)
        summary = summarise(family, data, recipe.steps) | {"files": [str(path)], "warnings": warned}
    if as_json:
        show.write_json(summary)
    else:
        _show(summary, out, context.find_object(tuple) or ())


def _mapping(text: str) -> Any:
    """Options as YAML; the recipe says what is wrong with them."""
    from polyscore.errors import ArgumentError
    from polyscore.files.yaml_file import YamlError, parse

    try:
        return parse(text)
    except YamlError as error:
        raise ArgumentError(f"--options: {error}") from error


def _trained(data: Table, out: Path, force: bool, tell: show.Tell, **options: Any) -> tuple[Family, Path]:
    """Train into the folder, which nobody else may write to meanwhile, and save the model there."""
    from polyscore.algebra.saved import MODEL
    from polyscore.files.atomic import held

    def progress(step: int, steps: int, loss: float) -> None:
        tell(step, steps, f"training, loss {loss:.3f}")

    try:
        with held(out / MODEL):
            family = train(data, out, force, progress=progress, **options)
            return family, family.save(out / MODEL)
    except KeyboardInterrupt:
        show.stderr().print(f"stopped; {out} holds the training so far, and the same command goes on.", markup=False)
        raise typer.Exit(130) from None


def check_run(out: Path, force: bool) -> None:
    """Refuse a folder that cannot be one, or that holds a model without the training it came from."""
    from polyscore.algebra.saved import MODEL, TRAINING
    from polyscore.errors import OutputError
    from polyscore.files.atomic import check_directory

    if out.exists() and not out.is_dir():
        raise OutputError(f"RUN must be a folder; got the file {str(out)!r}. Choose another name.")
    check_directory(out)
    model = out / MODEL
    for path in (model, model.with_suffix(".json")):
        if path.exists() and not (out / TRAINING).is_file() and not force:
            raise OutputError(
                f"RUN must not hold a model of other origin; got {str(path)!r}. Choose another folder, or pass --force."
            )


def train(data: Table, out: Path, force: bool, **options: Any) -> Family:
    """Train into the folder, from its checkpoint where that is of the same training; --force discards another."""
    from polyscore.algebra.saved import TRAINING
    from polyscore.files.tensors import FileError
    from polyscore.training.fit import fit
    from polyscore.training.keeper import CheckpointError

    checkpoint = out / TRAINING
    try:
        return fit(data, checkpoint=checkpoint, **options)
    except (CheckpointError, FileError) as error:
        if not force:
            raise type(error)(f"{error} Or pass --force to begin anew.") from error
        checkpoint.unlink()
        return fit(data, checkpoint=checkpoint, **options)


def summarise(family: Family, data: Table, steps: int) -> dict[str, Any]:
    """Return what was learned, JSON-ready."""
    return {
        "conditions": data.rows,
        "variables": list(data.variables),
        "coordinates": "the data's own" if family.units is None else family.units.described(family.variables),
        "left_out": list(data.left_out),
        "steps": family.training["steps"],
        "of_steps": steps if family.training["steps"] else 0,  # none where there is nothing to train
        "seed": family.training["seed"],
        "closed_form": all(condition.is_closed_form for condition in map(family.__getitem__, family)),
    }


def _show(summary: dict[str, Any], out: Path, imports: tuple[Module, ...]) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    rows = [f"{name} ({count} rows)" for name, count in summary["conditions"].items()]
    imported = "".join(f"--import {module.name} " for module in imports)
    lines = {
        "conditions": ", ".join(rows[:12]) + (f", ... ({len(rows)} in all)" if len(rows) > 12 else ""),
        "variables": _few(summary["variables"]),
        "coordinates": summary["coordinates"],
        "left out": _few(summary["left_out"]) or "nothing",
        "learned": _learned(summary),
        "wrote": ", ".join(summary["files"]),
        "next": f"polyscore {imported}sample {quote(str(out))} {quote(example_of(list(summary['conditions'])))} "
        "-o samples.csv",
    }
    if len(summary["conditions"]) > 2 and _control(list(summary["conditions"])) is None:
        lines[""] = "no condition is called control, ctrl or base: put yours behind the /"
    grid = Grid(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in lines.items():
        grid.add_row(Text(name, style="bold"), visible(text))
    show.stdout().print(grid, soft_wrap=True)


def _learned(summary: dict[str, Any]) -> str:
    """What a fit has become, and how far it is."""
    done, steps = summary["steps"], summary["of_steps"]
    if done != steps:
        return f"{done} of {steps} steps; the same command goes on"
    return "a Gaussian mixture a condition, and no network" if summary["closed_form"] else f"a network, {steps} steps"


def example_of(conditions: list[str]) -> str:
    """An expression over a family's own conditions: two others over the base, or what there is."""
    from polyscore.algebra.base import measured_together
    from polyscore.algebra.expressions import quoted

    control = _control(conditions)
    base, together = control or conditions[-1], measured_together(conditions, control)
    others = [quoted(name) for name in conditions if name != base and name not in together][:2]
    return " * ".join(others or [quoted(base)]) + (f" / {quoted(base)}" if len(others) > 1 else "")


def _control(conditions: list[str]) -> str | None:
    """The condition whose name says that it is the control, if there is one."""
    from polyscore.algebra import BASES

    return next((name for name in conditions if name.strip().lower() in BASES), None)


def _few(names: list[str]) -> str:
    return listed(names, 12, in_a_row)
