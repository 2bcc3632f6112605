"""Checkpoints of one network's training: the last two, each whole; one that was damaged gives way to the one before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from polyscore.errors import differing, is_count
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.images.export import is_history
from polyscore.images.trainer import Trainer
from polyscore.notices import warn
from polyscore.training.keeper import CheckpointError
from polyscore.training.trainer import Snapshot

T = TypeVar("T")
_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{8})\.safetensors")


class Keeper:
    """Saves snapshots of one training into a folder, and recognises its own.

    Args:
        folder: made when something is saved.
        identity: all that decides the result, JSON-ready.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps({"kind": "image training", **identity}))
        self.history: list[dict[str, Any]] = []
        self.saved: int | None = None

    def files(self) -> list[Path]:
        """Return the checkpoints that are there, the newest first."""
        found = self.folder.glob("checkpoint-*.safetensors") if self.folder.is_dir() else ()
        return sorted((path for path in found if _NAME.fullmatch(path.name)), reverse=True)

    def resume(self, trainer: Trainer) -> None:
        """Go on from the newest checkpoint that is whole, if there is one."""
        self.newest(lambda path: self._restore(path, trainer))

    def newest(self, read: Callable[[Path], T]) -> T | None:
        """Return what `read` makes of the newest checkpoint that it can read, with a warning where that is an older
        one; None where there is none, and a `FileError` where all are damaged."""
        files, damage = self.files(), list[FileError]()
        for path in files:
            try:
                return read(path)
            except FileError as error:
                damage.append(error)
                if path != files[-1]:
                    warn(f"a checkpoint should be whole; {path} is not, and the one before it is used. ({error})")
        if damage:
            raise FileError(
                f"a training must have a whole checkpoint to go on from; got none in {self.folder} ({damage[-1]}). "
                "Delete them to start again."
            ) from damage[-1]
        return None

    def _restore(self, path: Path, trainer: Trainer) -> None:
        tensors, about = read_tensors(path)
        step, history = about.pop("step", None), about.pop("history", None)
        self._check(about, path)
        if not is_count(step) or step > trainer.steps:
            raise FileError(
                f"a checkpoint's step must be from 1 to {trainer.steps}; {path} has {step!r:.50}. Delete it."
            )
        if not is_history(history, self.identity["mixtures"]["conditions"]):
            raise FileError(
                f"a checkpoint's history must hold the losses of its conditions; {path} has {history!r:.50}. Delete it."
            )
        try:
            trainer.restore(Snapshot(step, tensors))
        except RuntimeError as error:
            raise FileError(
                f"a checkpoint must hold every tensor of its training, in shape; {path} does not ({error}). Delete it."
            ) from error
        self.history, self.saved = history, step

    def _check(self, about: dict[str, Any], path: Path) -> None:
        if other := differing(about, self.identity):
            raise CheckpointError(
                f"a checkpoint must belong to this training; {path} differs in {other}. "
                "Name another folder, or delete it to start again."
            )

    def save(self, trainer: Trainer) -> None:
        """Write the state of a whole step, then let go of the oldest."""
        snapshot = trainer.snapshot()
        about = {**self.identity, "step": snapshot.step, "history": self.history}
        write_tensors(self.folder / f"checkpoint-{snapshot.step:08}.safetensors", snapshot.tensors, about)
        self.saved = snapshot.step
        for path in [*self.files()[_KEPT:], *self.folder.glob(".checkpoint-*.part.safetensors")]:  # a kill's, too
            path.unlink(missing_ok=True)
