"""`polyscore images stage`, `adopt`, `results`: composed images, counted."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyscore.cli import options as o
from polyscore.cli import show

if TYPE_CHECKING:
    from polyscore.experiments.worker import Event

app = typer.Typer(help="Train, compose and count **images**.", no_args_is_help=True, rich_markup_mode="markdown")

STORE = Path("runs/images")
_HELP = {
    "name": "A stage: 32, 64, 64-separate, 128, study, smoke, or of --spec.",
    "data": "A dataset of rooms, or a folder with its shards.",
    "models": "Folder for trained models; STORE-models by default.",
    "minutes": "Stop by itself in time; the same command goes on.",
    "pack": "Also write the store as one zip file, to travel.",
    "spec": "YAML file with `stages:` of your own.",
    "setting": "Only this setting; may be repeated.",
    "kind": "Only conditional, or only separate models.",
    "train": "Training steps, in place of the preset's.",
    "lessons": "Images that the classifier is shown.",
    "swarms": "Images of a cell.",
    "precision": "Of sampling: auto (fp16 on a GPU), fp16, bf16, tf32, float32.",
}


def beside(path: Path, ending: str) -> Path:
    """Return a place beside a folder, also beside the one that one stands in."""
    place = path if path.name else path.resolve()  # "." has no name
    return place.parent / (place.name + ending)


@app.command("stage")
def stage(
    name: Annotated[str, typer.Argument(help=_HELP["name"])],
    data: Annotated[Path, typer.Option(help=_HELP["data"])],
    store: Annotated[Path, typer.Option(help="Folder of results.")] = STORE,
    models: Annotated[Path | None, typer.Option(help=_HELP["models"])] = None,
    minutes: Annotated[float | None, typer.Option(help=_HELP["minutes"])] = None,
    pack: Annotated[Path | None, typer.Option(help=_HELP["pack"])] = None,
    spec: Annotated[Path | None, typer.Option(help=_HELP["spec"])] = None,
    settings: Annotated[list[str] | None, typer.Option("--setting", help=_HELP["setting"])] = None,
    kind: Annotated[str | None, typer.Option("--models-kind", help=_HELP["kind"])] = None,
    train_steps: Annotated[int | None, typer.Option(help=_HELP["train"])] = None,
    particles: o.Particles = None,
    swarms: Annotated[int | None, typer.Option(help=_HELP["swarms"])] = None,
    lessons: Annotated[int | None, typer.Option(help=_HELP["lessons"])] = None,
    device: o.Device = None,
    precision: Annotated[str | None, typer.Option(help=_HELP["precision"])] = None,
    as_json: o.Json = False,
) -> None:
    """Train, compose, count and record what a stage is missing; stop it at any time, the same command goes on.

    Example: `polyscore images stage 32 --data runs/rooms --minutes 9 --pack runs/stage-32.zip`
    """
    began = time.monotonic()  # reading and unpacking count
    with show.clean(), show.resumable(store), show.progress("loading", quiet=as_json) as tell:
        from polyscore.cli.choose import counts
        from polyscore.errors import require
        from polyscore.experiments.store import Store
        from polyscore.images.parcels import pack as write
        from polyscore.images.real import opened
        from polyscore.images.stage import Stage
        from polyscore.paper.images import specs

        show.require_device(device)
        require(minutes is None or minutes > 0, "--minutes", "be positive", minutes, "Leave it out for no limit.")
        blocks = specs.narrowed(
            specs.stage(name, spec), settings=settings or None, models=kind and [kind], swarms=swarms,
            precision=precision, lessons=None if lessons is None else {"images": lessons},
            recipe=None if train_steps is None else {"steps": train_steps},
            particles=None if particles is None else counts(particles),
        )  # fmt: skip
        place = models or beside(store, "-models")

        def listener(event: Event) -> None:
            tell(event.done, event.total, event.what)

        dataset = opened(data, place)
        results = Store(store)

        def after() -> Path | None:
            return write(results, pack) if pack and results.records else None

        seconds = None if minutes is None else max(1.0, 60 * minutes - (time.monotonic() - began))
        work = Stage(results, dataset, place, device, seconds, listener, after)
        try:
            outcome = work.run(specs.experiments(blocks, dataset))
        finally:  # what there is travels, also after Ctrl-C
            packed = after()
    if as_json:
        show.write_json({**dataclasses.asdict(outcome), "store": str(store), "packed": packed and str(packed)})
    else:
        told = f"{outcome.computed} cells in {outcome.seconds:.0f} s, {outcome.missing} missing; store {store}"
        show.stdout().print(told + (f", packed into {packed}" if packed else ""), soft_wrap=True)


@app.command("adopt")
def adopt(
    sources: Annotated[list[Path], typer.Argument(help="Packed stores.", metavar="ZIP...")],
    into: Annotated[Path, typer.Option(help="Store to write, new or not.")] = STORE,
) -> None:
    """Take packed stores over: records and contact sheets that the target lacks.

    Example: `polyscore images adopt stage-32.zip --into results/images`
    """
    with show.clean():
        from polyscore.experiments.store import Store
        from polyscore.images.parcels import adopt as take

        store = Store(into)
        lines = [f"{take(source, store)} new records from {source}" for source in sources]
    for line in [*lines, f"{into} holds {len(store.records)} records"]:
        show.stdout().print(line, soft_wrap=True)


@app.command("results")
def results(
    store: Annotated[Path, typer.Option(help="Folder of results.")] = STORE,
    out: o.Out = Path("runs/images-report"),
    as_json: o.Json = False,
) -> None:
    """Write the table of counts (Markdown, LaTeX, CSV), figures, claims with verdicts, and one HTML report.

    Example: `polyscore images results --store results/images --out runs/images-report`
    """
    with show.clean(), show.progress("writing", quiet=as_json):
        from polyscore.experiments.store import Store
        from polyscore.paper.images.report import write_image_report

        written = write_image_report(Store(store), out)
    if as_json:
        show.write_json(written.to_dict())
    else:
        for line in written.sentences():
            show.stdout().print(line, soft_wrap=True)
