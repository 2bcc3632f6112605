"""`polyscore images train`, `export`: networks for pictures; the rest of `images` is in `image_results`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyscore.cli import options as o
from polyscore.cli import show
from polyscore.cli.image_results import app as app
from polyscore.cli.image_results import beside

if TYPE_CHECKING:
    from polyscore.images import Mixtures, Trained

_HELP = {
    "data": "A dataset of pictures by class, or a folder with its shards.",
    "out": "Folder for checkpoints and, once complete, the export; one that was cut goes on.",
    "setting": "id-, ood- or ood-both- with painting or table; or a YAML or JSON file {classes: [...], conditions: "
    "{name: [masses]}}.",
    "preset": "256 (also: paper), 128, 64, 32, tiny. Larger pictures are made smaller by means of squares.",
    "model": "conditional (one network told the condition) or separate (one network each, a share of the batch each).",
    "minutes": "Save and stop in time before they have passed; the same command goes on.",
    "form": "plain, kernels, compiled; auto: kernels where a GPU is.",
    "graph": "Replay steps as a CUDA graph, where one process has a GPU.",
}
_ALIASES = {"paper": "256"}


@app.command("train")
def train(
    data: Annotated[Path, typer.Argument(help=_HELP["data"])],
    out: Annotated[Path, typer.Argument(help=_HELP["out"])],
    setting: Annotated[str, typer.Option("--setting", "-s", help=_HELP["setting"])],
    preset: Annotated[str, typer.Option(help=_HELP["preset"])] = "64",
    model: Annotated[str, typer.Option(help=_HELP["model"])] = "conditional",
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; the preset's by default.")] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures a step; the preset's by default.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of AdamW; the preset's by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, batches and noise.")] = 0,
    minutes: Annotated[float | None, typer.Option(help=_HELP["minutes"])] = None,
    device: o.Device = None,
    form: Annotated[str, typer.Option(help=_HELP["form"])] = "auto",
    graph: Annotated[bool, typer.Option(help=_HELP["graph"])] = True,
    as_json: o.Json = False,
) -> None:
    """Train a U-Net on mixtures of classes. Stopped by Ctrl-C, a deadline or a crash, the same command goes on.

    Several GPUs: `accelerate launch -m polyscore images train ...`

    Example: `polyscore images train runs/rooms runs/model --preset 32 --setting ood-painting`
    """
    with show.clean(), show.resumable(out), show.progress("reading", quiet=as_json) as tell:
        from polyscore.images import train as learn
        from polyscore.images.presets import recipe_of
        from polyscore.images.real import opened

        show.require_device(device)
        given = {"steps": steps, "batch": batch, "learning_rate": learning_rate}
        recipe = recipe_of(
            _ALIASES.get(preset, preset), model=model, **{k: v for k, v in given.items() if v is not None}
        )
        mixtures = mixtures_of(setting)
        trained = learn(
            opened(data, beside(out, "-data")), mixtures, out, recipe=recipe, seed=seed, device=device,
            minutes=minutes, form=form, graph=graph,
            progress=lambda step, of, loss: tell(step, of, f"training, loss {loss:.3f}"),
        )  # fmt: skip
    _tell(trained, as_json)


def mixtures_of(setting: str) -> Mixtures:
    """Return the mixtures of a setting by name, or of a YAML or JSON file."""
    from polyscore.errors import ArgumentError
    from polyscore.files.yaml_file import YamlError, parse, read_text
    from polyscore.images import Mixtures
    from polyscore.paper.images.settings import setting as named

    if Path(setting).suffix.lower() in (".yaml", ".yml", ".json"):
        try:
            return Mixtures.parse(parse(read_text(setting)), setting)
        except YamlError as error:
            raise ArgumentError(f"--setting must be a readable file; got {setting!r} ({error}). Check it.") from error
    return named(setting).mixtures


def _tell(trained: Trained, as_json: bool) -> None:
    told: dict[str, Any] = {
        "path": str(trained.path), "complete": trained.complete, "steps": trained.steps, "of_steps": trained.of_steps,
        "held_out": trained.held_out, "history": trained.history, "seconds": trained.seconds,
    }  # fmt: skip
    if as_json:
        show.write_json(told)
        return
    losses = ", ".join(f"{name} {loss:.4f}" for name, loss in trained.held_out.items())
    more = "" if trained.complete else "; the same command goes on"
    lines = [f"{trained.steps} of {trained.of_steps} steps, {trained.seconds:.0f} s{more}"]
    lines += [f"held-out loss: {losses}"] if losses else []
    lines += [f"wrote {trained.path / 'export'}"] if trained.complete else []
    for line in lines:
        show.stdout().print(line, soft_wrap=True)


@app.command("export")
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a training, complete or not.")],
    out: Annotated[Path, typer.Argument(help="New or empty folder.")],
) -> None:
    """Write the averaged weights of a training in half precision, in shards of at most 15 MiB; of one that is not
    complete, those of its newest checkpoints.

    Example: `polyscore images export runs/model runs/model-small`
    """
    with show.clean():
        from polyscore.images.export import about
        from polyscore.images.extract import extract

        folder, steps = extract(run, out)
        size = sum(file.stat().st_size for file in folder.iterdir())
        held = ", ".join(about(folder)["mixtures"]["conditions"])
    show.stdout().print(f"wrote {folder} with {held}, {size / 2**20:.1f} MiB, of step {steps}", soft_wrap=True)
