"""The loop of a training: to the end, the deadline, Ctrl-C or a loss that is not finite, saving on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from polyscore.images.keeper import Keeper
from polyscore.images.trainer import Trainer
from polyscore.training.loop import DivergenceError, interrupts

Tell = Callable[[int, int, float], None]  # step, steps, mean loss
LOOK = 50  # steps between looks at the loss: each waits for the device
_MEASURES = 5  # of the held-out loss, in a whole training
_BYTES_A_SECOND = 2e8  # of a checkpoint, before one was written


@dataclass
class Pace:
    """When to save and when to stop.

    Attributes:
        save_every: steps between two checkpoints, or None.
        save_seconds: seconds between two checkpoints.
        deadline: a reading of `time.monotonic` before which all must be written, or None.
    """

    save_every: int | None = None
    save_seconds: float = 60.0
    deadline: float | None = None
    saving: float = 0.0  # seconds that the last checkpoint took

    def is_late(self, now: float) -> bool:
        """Whether there is just time left to save."""
        return self.deadline is not None and now + 1.5 * self.saving + 1.0 > self.deadline


def run(trainer: Trainer, keeper: Keeper, pace: Pace, progress: Tell | None) -> bool:
    """Step to the end; return whether it was reached. Before the deadline it saves and returns False."""
    pace.saving = max(pace.saving, 16 * sum(p.numel() for p in trainer.parameters) / _BYTES_A_SECOND)
    saved = time.monotonic()
    with interrupts(True) as interrupted:
        while trainer.step < trainer.steps:
            stop = trainer.workers.agree(bool(interrupted) or pace.is_late(time.monotonic()), trainer.step)
            if not stop:
                trainer.advance()
                _look(trainer, keeper, progress)
            every = pace.save_every is not None and trainer.step % pace.save_every == 0
            due = every or (trainer.workers.agree(time.monotonic() - saved > pace.save_seconds, trainer.step))
            if stop or due or trainer.step == trainer.steps:
                _save(trainer, keeper, pace)
                saved = time.monotonic()
            if stop and interrupted:
                raise KeyboardInterrupt
            if stop:
                return False
    return True


def _look(trainer: Trainer, keeper: Keeper, progress: Tell | None) -> None:
    """At some steps, and by their number alone: look at the loss, tell it, measure on held-out pictures."""
    end = trainer.step == trainer.steps
    measured = trainer.step % max(1, trainer.steps // _MEASURES) == 0 or end
    if trainer.step % LOOK and not measured:
        return
    loss = trainer.look()
    if not math.isfinite(loss):
        raise _diverged(trainer, keeper, f"it is {loss}")
    if progress:
        progress(trainer.step, trainer.steps, loss)
    if measured:
        entry = {"step": trainer.step, "loss": loss, "held_out": trainer.held_out()}
        keeper.history.append(entry)


def _save(trainer: Trainer, keeper: Keeper, pace: Pace) -> None:
    """Write a checkpoint unless this step has one; weights that are not finite never replace good ones."""
    if keeper.saved == trainer.step or trainer.step == 0:
        return
    if not trainer.is_sound():
        raise _diverged(trainer, keeper, "weights are not finite")
    began = time.monotonic()
    if trainer.workers.first:
        keeper.save(trainer)
    trainer.workers.wait()
    pace.saving = time.monotonic() - began


def _diverged(trainer: Trainer, keeper: Keeper, what: str) -> DivergenceError:
    kept = f" The last good checkpoint, of step {keeper.saved}, is in {keeper.folder}." if keeper.saved else ""
    return DivergenceError(
        f"the loss must stay finite; {what} by step {trainer.step}. Lower learning_rate, or set clip to 1.{kept}"
    )
