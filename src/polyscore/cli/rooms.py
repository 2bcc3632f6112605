"""`polyscore rooms`: pictures of living rooms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyscore.cli import show
from polyscore.cli.rooms_label import command as label
from polyscore.cli.rooms_sources import generate, select

if TYPE_CHECKING:
    from polyscore.rooms import Dataset

app = typer.Typer(
    help="Make, sort, pack and unpack pictures of **living rooms**.", no_args_is_help=True, rich_markup_mode="markdown"
)


@app.callback()
def main() -> None:
    """Make, sort, pack and unpack pictures of **living rooms**."""


@app.command("render")
def render(
    out: Annotated[Path, typer.Argument(help="Folder: new, empty, or a dataset of the same options, which grows.")],
    count: Annotated[int, typer.Option("-n", "--count", help="Rooms of each class.")] = 100,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="A class, may be repeated; all six by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="A room is a function of seed, class and index.")] = 0,
    resolution: Annotated[int, typer.Option(help="Pixels a side, 8 to 2048.")] = 64,
    samples: Annotated[int, typer.Option(help="Paths a pixel.")] = 16,
    flawed: Annotated[float, typer.Option(help="Share of rooms with a flaw: missing, extra, cut, noise.")] = 0.0,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores by default.")] = None,
    sheet: Annotated[bool, typer.Option(help="Write a contact sheet, sheet.png.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Render rooms: empty, couch, painting, table, couch+painting, couch+table; rooms that are there are kept.

    Needs the extra **render**. Example: `polyscore rooms render runs/rooms --count 20 --resolution 256`
    """
    with show.clean(), show.resumable(out), show.progress("loading", quiet=as_json) as report:
        from polyscore.rooms import Look
        from polyscore.rooms import render as make
        from polyscore.rooms.sheet import write_sheet

        dataset = make(
            out, count, classes=classes or None, seed=seed, look=Look(resolution, samples, flawed), workers=workers,
            progress=lambda done, total: report(done, total, f"room {done} of {total}"),
        )  # fmt: skip
        files = [write_sheet(dataset, out / "sheet.png")] if sheet else []
    _tell(dataset, files, as_json)


@app.command("pack")
def pack(
    dataset: Annotated[Path, typer.Argument(help="Folder with dataset.json.")],
    out: Annotated[Path, typer.Argument(help="New or empty folder for the shards.")],
    quality: Annotated[int, typer.Option(help="Of JPEG, 0 to 100.")] = 95,
    lossless: Annotated[bool, typer.Option(help="Keep every bit, as WebP.")] = False,
) -> None:
    """Pack a dataset into zip files of small pictures, at most 15 MiB each.

    Example: `polyscore rooms pack runs/rooms runs/shards`
    """
    with show.clean():
        from polyscore.limits import show_bytes
        from polyscore.rooms import Dataset
        from polyscore.rooms import pack as write

        files = write(Dataset(dataset), out, quality=None if lossless else quality)
        size = show_bytes(sum(file.stat().st_size for file in files))
    show.stdout().print(f"wrote {len(files)} shard{'s' * (len(files) > 1)}, {size}, to {out}", soft_wrap=True)


@app.command("unpack")
def unpack(
    shards: Annotated[Path, typer.Argument(help="Folder with all shards.")],
    out: Annotated[Path, typer.Argument(help="New or empty folder for the dataset.")],
) -> None:
    """Unpack shards into a dataset.

    Example: `polyscore rooms unpack runs/shards runs/rooms`
    """
    with show.clean():
        from polyscore.rooms import unpack as write

        dataset = write(shards, out)
    _tell(dataset, [], False)


app.command("generate")(generate)
app.command("label")(label)
app.command("select")(select)


def _tell(dataset: Dataset, files: list[Path], as_json: bool) -> None:
    told: dict[str, Any] = {"dataset": str(dataset.path), "files": [str(file) for file in files], **dataset.about}
    if as_json:
        show.write_json(told)
        return
    rooms = ", ".join(f"{count} {name}" for name, count in dataset.about["classes"].items())
    show.stdout().print(f"{dataset.path} holds {rooms}", soft_wrap=True)
    for file in files:
        show.stdout().print(f"wrote {file}", soft_wrap=True)
