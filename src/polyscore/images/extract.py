"""The export of a training that is not complete, or a copy of that of one that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyscore.errors import require
from polyscore.files.folders import new_folder, require_empty
from polyscore.files.regular import read_regular
from polyscore.files.tensors import read_tensors
from polyscore.images import export
from polyscore.images.keeper import Keeper

_AVERAGE = "average."


def extract(run: Path | str, out: Path | str) -> tuple[Path, int]:
    """Write the averaged weights of a training's folder into a new or empty one; return it, and the steps they took."""
    run, out = Path(run), require_empty(Path(out), "an export")
    whole = (run / export.FOLDER / "model.json").is_file()
    with new_folder(out, last="model.json") as folder:
        with export.reading(run):
            steps = _copied(run / export.FOLDER, folder) if whole else _from_checkpoints(run, folder)
        export.networks(folder, "cpu")  # what cannot be read is no export
    return out, steps


def _copied(source: Path, folder: Path) -> int:
    told = export.about(source)
    for file in ("model.json", *export.shards(told)):
        (folder / file).write_bytes(read_regular(source / file))
    return int(told["steps"])


def _from_checkpoints(run: Path, out: Path) -> int:
    """Write what the newest checkpoints hold; one that is damaged gives way to the one before, with a warning."""
    folders = sorted((run / "checkpoints").glob("*/")) if (run / "checkpoints").is_dir() else []
    read = {folder.name: found for folder in folders if (found := Keeper(folder, {}).newest(read_tensors))}
    require(read, "a training's folder", "hold checkpoints or an export", repr(str(run)), "Check the path.")
    identity = _joined([one for _, one in read.values()])
    networks = {
        name: (tuple(one["mixtures"]["conditions"]),
               {key.removeprefix(_AVERAGE): v.half() for key, v in tensors.items() if key.startswith(_AVERAGE)})
        for name, (tensors, one) in read.items()
    }  # fmt: skip
    history = {name: one["history"] for name, (_, one) in read.items()}
    steps = sum(int(one["step"]) for _, one in read.values())
    export.write(out, identity, networks, history, steps)
    return steps


def _joined(told: list[dict[str, Any]]) -> dict[str, Any]:
    """What several networks of one training say of it."""
    conditions = {name: masses for one in told for name, masses in one["mixtures"]["conditions"].items()}
    first = told[0]
    mixtures = {"classes": first["mixtures"]["classes"], "conditions": conditions}
    return {key: first[key] for key in ("recipe", "seed", "data")} | {"mixtures": mixtures}
