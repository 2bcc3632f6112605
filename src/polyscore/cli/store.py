"""`polyscore store`: stores of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyscore.cli import show

app = typer.Typer(help="Join and inspect **stores** of results.", no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def main() -> None:
    """Join and inspect **stores** of results."""


@app.command("merge")
def merge(
    sources: Annotated[list[Path], typer.Argument(help="Stores to read; left as they are.", metavar="STORE...")],
    into: Annotated[Path, typer.Option(help="Store to write, new or not.")],
) -> None:
    """Join stores of several machines: records that the target lacks are added, none is changed.

    Example: `polyscore store merge results/one results/two --into results/paper`
    """
    with show.clean():
        from polyscore.experiments import samples
        from polyscore.experiments.store import Store, StoreError

        for source in sources:
            if not (source / "store.json").exists():
                raise StoreError(f"a source must be a store; {source} has no store.json. Check the path.")
        others, target = [Store(source) for source in sources], Store(into)
        with target.writing():
            added = []
            for other in others:
                added.append(target.merge(other))
                samples.merge(target, other)
    for source, number in zip(sources, added, strict=True):
        show.stdout().print(f"{number} new records from {source}", soft_wrap=True)
    show.stdout().print(f"{into} holds {len(target.records)} records", soft_wrap=True)
