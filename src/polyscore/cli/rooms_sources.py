"""`polyscore rooms generate` and `rooms select`: rooms by a text-to-image model, and those that are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from polyscore.cli import show
from polyscore.cli.options import Device, Json

if TYPE_CHECKING:
    from polyscore.rooms.selecting import Selection

_CLASS = "A class, may be repeated; all by default."
_MODEL = "Folder of a Flux pipeline, or its name: what was downloaded before is used, else it is downloaded (34 GB)."
_DRAWN = "Pixels a side at which the model draws, a multiple of the resolution; at least 256 by default."
_SELECTOR = "Of `rooms select` (file or folder): go on until COUNT pictures of each class are accepted."
_MOST = "With --selector: pictures of a class at which it gives up; ten times the count by default."
_EMBEDDING = "efficientnet-lite0, dinov2-large, or auto: DINOv2 where its weights are."
_THRESHOLD = "Least probability of acceptance of a picture without a label, 0 to 1."
_USE = "Use this selector (file or folder) instead of learning one."


def generate(
    out: Annotated[Path, typer.Argument(help="Folder: new, empty, or a dataset of the same options, which grows.")],
    count: Annotated[int, typer.Option("-n", "--count", help="Pictures of each class.")] = 100,
    classes: Annotated[list[str] | None, typer.Option("--class", help=_CLASS)] = None,
    seed: Annotated[int, typer.Option(help="A picture is a function of seed, class and index.")] = 0,
    model: Annotated[str, typer.Option(help=_MODEL)] = "black-forest-labs/FLUX.1-schnell",
    resolution: Annotated[int, typer.Option(help="Pixels a side, 8 to 2048.")] = 256,
    drawn: Annotated[int | None, typer.Option(help=_DRAWN)] = None,
    steps: Annotated[int, typer.Option(help="Of the model.")] = 4,
    selector: Annotated[Path | None, typer.Option(help=_SELECTOR)] = None,
    most: Annotated[int | None, typer.Option(help=_MOST)] = None,
    batch: Annotated[int, typer.Option(help="Pictures at a time.")] = 8,
    device: Device = None,
    offload: Annotated[bool, typer.Option(help="Keep on the GPU only the part that works.")] = False,
    as_json: Json = False,
) -> None:
    """Generate rooms by **FLUX.1-schnell**, with weighted prompts; pictures that are there are kept.

    Needs the extra **images**. Example: `polyscore rooms generate runs/flux -n 1500`, then `rooms label`, `select`
    and, with too few accepted, `polyscore rooms generate runs/flux -n 2000 --selector runs/selected`
    """
    with show.clean(), show.resumable(out), show.progress("loading", quiet=as_json) as report:
        show.require_device(device)
        from polyscore.rooms.generating import Drawing
        from polyscore.rooms.generating import generate as make
        from polyscore.rooms.selector import Selector

        found = make(
            out, count, classes=classes or None, seed=seed, drawing=Drawing(resolution, drawn, steps, model),
            selector=None if selector is None else Selector.load(selector), most=most, batch=batch, device=device,
            offload=offload, progress=lambda done, total: report(done, total, f"picture {done} of {total}"),
        )  # fmt: skip
    told: dict[str, Any] = {"dataset": str(out), "accepted": found.accepted, **found.dataset.about}
    if as_json:
        show.write_json(told)
        return
    rooms = ", ".join(f"{made} {name}" for name, made in told["classes"].items())
    show.stdout().print(f"{out} holds {rooms}", soft_wrap=True)
    if found.accepted is not None:
        rooms = ", ".join(f"{good} {name}" for name, good in found.accepted.items())
        show.stdout().print(f"accepted: {rooms}", soft_wrap=True)


def select(
    data: Annotated[Path, typer.Argument(help="Dataset with labels: dataset.json and labels.jsonl.")],
    out: Annotated[Path, typer.Argument(help="New or empty folder for the accepted pictures and the selector.")],
    per_class: Annotated[int, typer.Option(help="Accepted pictures to copy of each class.")] = 2000,
    classes: Annotated[list[str] | None, typer.Option("--class", help=_CLASS)] = None,
    embedding: Annotated[str, typer.Option(help=_EMBEDDING)] = "efficientnet-lite0",
    weights: Annotated[str | None, typer.Option(help="Folder or name of the weights of dinov2-large.")] = None,
    threshold: Annotated[float, typer.Option(help=_THRESHOLD)] = 0.5,
    selector: Annotated[Path | None, typer.Option(help=_USE)] = None,
    seed: Annotated[int, typer.Option(help="Of the parts that cross-validation leaves out.")] = 0,
    batch: Annotated[int, typer.Option(help="Pictures at a time.")] = 64,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Learn from labels which pictures to **accept**, one logistic regression a class, and copy those.

    A label decides where there is one. Needs the extra **images**. Example:
    `polyscore rooms select runs/flux runs/selected --per-class 2000`
    """
    with show.clean(), show.progress("learning", quiet=as_json) as report:
        show.require_device(device)
        from polyscore.rooms.selecting import select as choose
        from polyscore.rooms.selector import Selector

        found = choose(
            data, out, per_class=per_class, classes=classes or None, embedding=embedding, weights=weights,
            threshold=threshold, selector=None if selector is None else Selector.load(selector), seed=seed,
            batch=batch, device=device, progress=lambda done, total: report(done, total, f"picture {done} of {total}"),
        )  # fmt: skip
    if as_json:
        show.write_json({"dataset": str(out), "classes": {name: _told(found, name) for name in found.looked}})
        return
    show.stdout().print(_table(found))
    show.stdout().print(f"{out} holds {len(found.dataset)} pictures and their selector", soft_wrap=True)


def _told(found: Selection, name: str) -> dict[str, Any]:
    one = found.selector.of(name)
    return {"labels": {"accepted": one.accepted, "rejected": one.rejected}, "c": one.judge.c,
            "held_out": one.worth._asdict(), "looked": found.looked[name],
            "copied": len(found.dataset.records(name))}  # fmt: skip


def _table(found: Selection) -> Table:
    """Figures of each class: held out where they tell what the selector is worth."""
    columns = ("class", "labels (+/-)", "held-out accuracy", "AUC", "precision", "looked at", "copied")
    by, threshold = found.selector.embedding, found.selector.threshold
    table = Table(*columns, title=f"accepted by {by}, threshold {threshold:g}", title_justify="left")
    for name in found.looked:
        one, worth = found.selector.of(name), found.selector.of(name).worth
        table.add_row(
            name, f"{one.accepted}/{one.rejected}", f"{worth.accuracy:.3f}", f"{worth.auc:.3f} ± {worth.auc_error:.3f}",
            f"{worth.precision:.3f}", str(found.looked[name]), str(len(found.dataset.records(name))),
        )  # fmt: skip
    return table
