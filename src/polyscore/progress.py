"""Progress by default: a line on stderr for what takes more than two seconds, where someone is there to see it.

In a terminal or a notebook; nothing where stderr is piped or captured, with `progress=False`, or inside `silenced`: a
command shows a bar of its own. Plain characters and a carriage return: no thread, no other package.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from polyscore.errors import require

_PATIENCE = 2.0  # seconds before anything is shown
_PAUSE = 0.2  # seconds between two looks
_WIDTH = 30

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silenced() -> Iterator[None]:
    """Show nothing inside: something else tells of the progress there."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


@contextmanager
def reporting(progress: Any, what: str) -> Iterator[Callable[..., None] | None]:
    """Yield what a long loop shall call: the caller's own function, a bar, or None.

    Args:
        progress: a callable is passed on; None and True mean a bar where one can be seen, False nothing.
        what: the bar's first word.
    """
    require(progress is None or isinstance(progress, bool) or callable(progress), "progress",
            "be a callable, True or False", repr(progress)[:100],
            "Leave it out for a bar where one can be seen.")  # fmt: skip
    if callable(progress):
        yield progress
        return
    if progress is False or _silent.get() or not _is_seen():
        yield None
        return
    bar = Bar(what)
    try:
        yield bar
    finally:
        bar.close()


def _is_seen() -> bool:
    """Whether stderr is a terminal or a notebook's."""
    try:
        return bool(sys.stderr.isatty()) or _in_notebook()
    except (AttributeError, ValueError, OSError):  # no stderr at all, or a closed one
        return False


def _in_notebook() -> bool:
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return type(ask() if ask else None).__name__ == "ZMQInteractiveShell"


class Bar:
    """A line that is written over itself: called with (done, all) and, of a training, its loss."""

    def __init__(self, what: str) -> None:
        self.what, self.began, self.shown, self.length = what, time.monotonic(), 0.0, 0
        self.first: int | None = None  # a training that goes on begins in the middle

    def __call__(self, done: int, total: int, loss: float | None = None) -> None:
        """Show how far it is, if it is time to."""
        now = time.monotonic()
        self.first = done if self.first is None else self.first
        if now - self.began < _PATIENCE or now - self.shown < _PAUSE:
            return
        self.shown = now
        share = min(1.0, done / max(1, total))
        left = (
            f", {_clock((now - self.began) * (total - done) / (done - self.first))} left" if done > self.first else ""
        )
        told = "" if loss is None else f", loss {loss:.4g}"
        filled = round(_WIDTH * share)
        self._write(f"{self.what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {100 * share:3.0f} %{left}{told}")

    def close(self) -> None:
        """Take the line away."""
        if self.length:
            self._write("")
            self._put("\r")

    def _write(self, text: str) -> None:
        self._put("\r" + text.ljust(self.length))
        self.length = len(text)

    def _put(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # a bar is never worth the work that it tells of
            self.began = float("inf")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
