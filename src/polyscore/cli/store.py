"""`polyscore store`: stores of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyscore.cli import show
from polyscore.errors import cut

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

    Example: `polyscore store merge runs/one runs/two --into runs/paper`
    """
    with show.clean():
        from polyscore.experiments import thumbnails
        from polyscore.experiments.jobs import left_behind
        from polyscore.experiments.lock import StoreError
        from polyscore.experiments.store import Store

        for source in sources:
            if not (source / "store.json").exists():
                raise StoreError(f"a source must be a store; {source} has no store.json. Check the path.")
        opened = {source: Store(source) for source in sources}  # a bad one must not leave a new, empty target
        target = Store(into)
        with target.writing():
            lines = []
            for source, store in opened.items():
                new, differing = 0, 0
                for part in (store, *left_behind(store)):
                    differing += target.conflicts(part)
                    new += target.merge(part)
                    thumbnails.merge(target, part)
                lines.append(f"{new} new records from {source}" + _differ(differing))
    for line in [*lines, f"{into} holds {len(target.records)} records"]:
        show.stdout().print(cut(line, 2000), soft_wrap=True)


def _differ(count: int) -> str:
    if not count:
        return ""
    return f"; {count} that the target has with other results (another device or version) were left out"
