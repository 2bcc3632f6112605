"""`polyscore rooms label`: sort pictures by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyscore.cli import show


def command(
    dataset: Annotated[Path, typer.Argument(help="Folder with dataset.json; labels go to its labels.jsonl.")],
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="A class, may be repeated; all by default.")
    ] = None,
    per_class: Annotated[int, typer.Option(help="Labels that are wanted of each class.")] = 1000,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 is any that is free.")] = 8080,
) -> None:
    """Label pictures on a page in the browser: accept or reject, by key or click; each label is saved at once.

    Needs the extra **web**. Several pages may label one dataset; come back at any time.
    Example: `polyscore rooms label runs/rooms --class couch --per-class 200`
    """
    with show.clean():
        from polyscore.rooms import label_server

        folder = label_server.check(dataset, classes, per_class, port)
        made = label_server.bound(port)
        address = f"http://{label_server.HOST}:{made.getsockname()[1]}/"
        show.stdout().print(f"labelling {folder} at {address} (Ctrl-C ends it)", soft_wrap=True)
        label_server.serve(made, label_server.make_app(folder, classes, per_class))
