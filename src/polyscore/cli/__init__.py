"""The command line: parses, calls, shows. Everything heavy is imported inside the commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from polyscore import __version__
from polyscore.cli import experiments, images, paper, rooms, show, store
from polyscore.cli.demo import command as demo
from polyscore.cli.example import command as example
from polyscore.cli.fit import command as fit
from polyscore.cli.sample import command as sample
from polyscore.cli.theory import command as theory

_EPILOG = """**Examples**

`polyscore demo` — the paper's Figure 1 and analytic columns, recomputed beside the published values

`polyscore example > family.yaml` — a family to begin with

`polyscore sample family.yaml "a1 * a2 / base" -n 5000 -K 16 --out samples.npz --plot samples.png`

`polyscore fit cells.csv --condition-column condition --out RUN` — your own data; then
`polyscore sample RUN "drugA * drugB / control" -o out.csv`

`polyscore theory --out runs/theory` — the paper's theorems, predicted and simulated side by side

`polyscore run my-spec.yaml` — experiments of your own: families, expressions, samplers, models, metrics; then `report`

`polyscore paper run gaussian-factorized-ood-conditional --quick` — a table of the paper, in small; then `report`

Errors exit with code 2 and say which rule was broken, by what, and what to do.
"""


class _Program(typer.Typer):
    """The commands, with streams that may be of any encoding, full or closed."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with show.streams():
            try:
                with show.clean():
                    show.check_options(sys.argv[1:])
            except typer.Exit as stop:  # outside of the program itself nobody else catches it
                raise SystemExit(stop.exit_code) from None
            return super().__call__(*args, **kwargs)


app = _Program(
    name="polyscore",
    help="Compose diffusion models, correct the composition, and know when to trust it.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo)
app.command("fit")(fit)
app.command("sample")(sample)
app.command("example")(example)
app.command("theory")(theory)
app.command("run")(experiments.run)
app.command("report")(experiments.report)
app.command("status")(experiments.status)
app.command("list")(experiments.list_)
app.add_typer(paper.app, name="paper")
app.add_typer(store.app, name="store")
app.add_typer(rooms.app, name="rooms")
app.add_typer(images.app, name="images")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyscore {__version__}")
        raise typer.Exit


_IMPORT = "A module of yours that registers distributions, networks, schedules, samplers or metrics; may be repeated."


@app.callback()
def main(
    context: typer.Context,
    modules: Annotated[list[str] | None, typer.Option("--import", help=_IMPORT, metavar="MODULE")] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Compose diffusion models, correct the composition, and know when to trust it."""
    with show.clean():
        from polyscore.errors import require
        from polyscore.experiments.functions import Module

        for name in modules or ():
            meant = name.removesuffix(".py").replace("/", ".").strip(".")
            require(not name.endswith(".py"), "--import", "name a module, not its file", name, f"Did you mean {meant}?")
        context.obj = tuple(Module(name, os.getcwd()).seen() for name in modules or ())
