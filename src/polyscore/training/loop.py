"""The loop of a training: to the end, the time limit, Ctrl-C or a diverging loss."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import PolyscoreError
from polyscore.training.keeper import Keeper
from polyscore.training.trainer import Trainer

Tell = Callable[[int, int, float], None]  # step, steps, mean loss
_CHECK, _PATIENCE = 100, 1.0  # steps, and seconds at most, between looks at the loss: each look waits for the device


class DivergenceError(PolyscoreError):
    """A loss that is no longer finite; the last good checkpoint is kept.

    Attributes:
        datasets: whose models diverged, by their place in `fit_many`.
    """

    def __init__(self, message: str, datasets: Sequence[int] = (0,)) -> None:
        super().__init__(message)
        self.datasets = tuple(datasets)


@dataclass(frozen=True)
class Pace:
    """When to save and when to stop: every so many steps and seconds, after so many seconds."""

    every: int
    save_after: float
    stop_after: float | None

    def saves(self, step: int, steps: int, since: float) -> bool:
        """Whether to save after this step, so many seconds since the last time."""
        return step == steps or step % self.every == 0 or since > self.save_after


def train(trainer: Trainer, keeper: Keeper, pace: Pace, progress: Tell | None) -> None:
    """Step to the end, the time limit, Ctrl-C or a diverging loss."""
    looked = saved = started = time.monotonic()
    with interrupts(keeper.path is not None) as interrupted:
        while trainer.step < trainer.steps:
            losses, now = trainer.advance(), time.monotonic()
            steps = trainer.steps  # a review may have found that this one was the last
            late = pace.stop_after is not None and now - started > pace.stop_after
            stopped = bool(interrupted)  # looked at once: an interrupt from here on waits for the next step
            save = late or stopped or pace.saves(trainer.step, steps, now - saved)
            if not save and trainer.step % _CHECK and now - looked <= _PATIENCE:
                continue
            looked = now
            _stop_if_diverged(trainer, losses, keeper)
            if progress:
                progress(trainer.step, steps, losses.mean().item())
            if save:
                keeper.save(trainer)
                saved = now
            if stopped:
                raise KeyboardInterrupt
            if late:
                return


@contextmanager
def interrupts(wanted: bool) -> Iterator[list[int]]:
    """Let Ctrl-C wait for the end of a step, so that a checkpoint is of a whole one; a second one does not wait.

    Yields the interrupts so far. Handlers belong to the main thread, and to whoever has set one of their own.
    """
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if not wanted or threading.current_thread() is not threading.main_thread() or before != signal.default_int_handler:
        yield seen
        return

    def note(number: int, frame: Any) -> None:
        if seen:
            signal.default_int_handler(number, frame)
        seen.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _stop_if_diverged(trainer: Trainer, losses: Tensor, keeper: Keeper) -> None:
    """Stop on a bad loss, of the last step or of the weights that it left behind."""
    losses = torch.where(losses.isfinite(), trainer.next_losses(), losses)
    bad = (~(losses <= trainer.largest_loss)).nonzero().flatten().tolist()
    if bad:
        kept = f"The last good checkpoint, of step {keeper.saved}, is in {keeper.path}." if keeper.saved else ""
        raise DivergenceError(
            f"the loss must not diverge; that of {trainer.labels[bad[0]]} is {losses[bad[0]].item():.3g} by step "
            f"{trainer.step}. Lower learning_rate or standardise the data. {kept}".strip(),
            sorted({network // trainer.networks_each for network in bad}),
        )
