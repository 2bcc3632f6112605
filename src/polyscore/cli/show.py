"""What all commands share: our errors as clean messages, warnings as one line, progress on stderr, JSON on stdout."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from polyscore.errors import PolyscoreError, PolyscoreWarning
from polyscore.progress import silenced

Report = Callable[[int, int, str], None]


def stderr() -> Console:
    """Return a console for messages and progress."""
    return Console(stderr=True, soft_wrap=True)


def stdout() -> Console:
    """Return a console for results."""
    return Console()


@contextmanager
def clean() -> Iterator[list[str]]:
    """Turn our errors into a red message and exit code 2, our warnings into yellow lines; yield those warnings."""
    told: list[str] = []
    with warnings.catch_warnings(), silenced():
        warnings.simplefilter("always", PolyscoreWarning)
        others = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
            line: str | None = None,
        ) -> None:  # fmt: skip
            if not issubclass(category, PolyscoreWarning):
                others(message, category, filename, lineno, file, line)
            elif str(message) not in told:
                told.append(str(message))
                stderr().print(Text(f"warning: {message}", style="yellow"))

        warnings.showwarning = show
        try:
            yield told
        except PolyscoreError as error:
            stderr().print(Text(f"error: {error}", style="bold red"))
            raise typer.Exit(2) from error


def require_device(device: str | None) -> None:
    """Check that torch knows `device` and has one."""
    from polyscore.devices import check_device

    if device is not None:
        check_device(device, "--device")


@contextmanager
def progress(description: str, quiet: bool) -> Iterator[Report]:
    """Yield a function (done, all, what) that drives a bar on stderr; with `quiet`, one that does nothing."""
    if quiet:
        yield lambda done, total, what: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what or description)


def write_json(value: dict[str, Any]) -> None:
    """Print JSON and nothing else; numbers that JSON lacks become null."""
    typer.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
