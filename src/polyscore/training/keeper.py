"""The checkpoint of a training: what is needed to go on, and to know that it is the same training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyscore.errors import PolyscoreError, differing, is_count
from polyscore.files.tensors import FileError, read_tensors, write_tensors
from polyscore.rng import derive
from polyscore.training.pools import Pools
from polyscore.training.recipe import Recipe
from polyscore.training.trainer import Snapshot, Trainer


class CheckpointError(PolyscoreError):
    """A checkpoint of another training."""


class Keeper:
    """Saves snapshots of one training to a file, and recognises its own."""

    def __init__(self, path: Path | None, recipe: Recipe, pools: Pools, seeds: Sequence[int]) -> None:
        self.path, self.saved = path, 0
        contents = (pools.points.numpy().tobytes().hex(), pools.sizes.tolist(), pools.conditions) if path else ()
        data = derive(0, *contents)
        # `steps` may be raised to train on; everything else must agree.
        described = {key: value for key, value in json.loads(json.dumps(recipe.to_dict())).items() if key != "steps"}
        self.about = {"kind": "training", "recipe": described, "seeds": list(map(int, seeds)), "data": str(data)}

    def resume(self, trainer: Trainer) -> None:
        """Go on from the file, if there is one."""
        if self.path is None or not self.path.exists():
            return
        tensors, about = read_tensors(self.path)
        step = self._checked(about, trainer.steps)
        try:
            trainer.restore(Snapshot(step, tensors))
        except (KeyError, TypeError, RuntimeError) as error:  # not by chance: the checksum holds
            raise FileError(
                f"a checkpoint must hold every tensor of its training, in shape; {self.path} does not "
                f"({str(error)[:100]}). Delete it to start again."
            ) from error
        self.saved = step

    def _checked(self, about: dict[str, Any], steps: int) -> int:
        """Return the step of a checkpoint, if it is of this training and not beyond its end."""
        step = about.pop("step", None)
        if about != self.about:
            raise CheckpointError(
                f"a checkpoint must belong to this training; {self.path} differs in {differing(about, self.about)}. "
                "Name another file, or delete it to start again."
            )
        if not is_count(step):
            raise FileError(f"a checkpoint's step must be a whole number; {self.path} has {step!r:.50}. Delete it.")
        if step > steps:
            raise CheckpointError(
                f"a training must not be shorter than its checkpoint; {self.path} is of step {step}, steps is {steps}. "
                "Raise steps, or name another file."
            )
        return step

    def save(self, trainer: Trainer) -> None:
        """Write the state of a whole step."""
        if self.path is None:
            return
        snapshot = trainer.snapshot()
        write_tensors(self.path, snapshot.tensors, {**self.about, "step": snapshot.step})
        self.saved = snapshot.step
