"""What all commands share: our errors as clean messages, warnings as one line, progress on stderr, JSON on stdout.

Text is shown as it is: no markup, no emoji codes, nothing that commands the terminal, whoever named things. Styles are
given as `Text` or `style=`.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from polyscore.errors import ArgumentError, PolyscoreError, PolyscoreWarning, shorten, visible
from polyscore.progress import silenced

Tell = Callable[[int, int, str], None]
_IN_ASCII = {"–": "-", "—": "-", "±": "+/-", "×": "x", "≤": "<=", "≥": ">=", "≠": "!=", "ε": "eps", "²": "^2",
             "→": "->", "…": "...", "α": "alpha",
             "σ": "sigma", "η": "eta", "Σ": "Sum", "·": "*", "−": "-", "’": "'"}  # fmt: skip


class _Console(Console):
    """A console that shows every text as it is, line breaks apart."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text with what is unprintable in it spelled out."""
        return super().render_str("\n".join(map(visible, text.split("\n"))), **options)


def stderr() -> Console:
    """Return a console for messages and progress."""
    return _Console(stderr=True, soft_wrap=True, markup=False, emoji=False)


def stdout() -> Console:
    """Return a console for results; where a table would lose its columns to a narrow terminal, it may wrap instead."""
    console = _Console(markup=False, emoji=False)
    if console.width < 60:
        console.width = 80
    return console


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    """Spell what a stream cannot encode: Greek letters, dashes, and file names that are no text at all."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(c) or c.encode("unicode_escape").decode() for c in missing), error.end


@contextmanager
def streams() -> Iterator[None]:
    """Let output survive its streams: other encodings are spelled out; full or closed ones end in words, not traces."""
    codecs.register_error("polyscore", _spelled_out)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="polyscore")
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`: the reader has what it wanted
        _discard(sys.stdout)
        sys.exit(1)
    except OSError as error:
        _discard(sys.stdout)
        _last_words(f"error: {error.filename or 'the output'} must be writable; {error.strerror or error}.")
        sys.exit(2)


def _discard(stream: TextIO | None) -> None:
    """Send what a stream still holds nowhere, so that Python's own last flush does not fail once more."""
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass


def _last_words(text: str) -> None:
    try:
        sys.stderr.write(visible(text) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # nobody listens
        _discard(sys.stderr)


def check_options(arguments: list[str]) -> None:
    """Refuse an option that cannot be shown: the parser would repeat it to the terminal as it is."""
    for argument in arguments:
        if argument.startswith("-") and not argument.split("=")[0].isprintable():
            raise ArgumentError(f"an option must be printable; got {argument.split('=')[0]!r}. See --help.")
    _check_import(arguments)


def _check_import(arguments: list[str]) -> None:
    """Refuse an --import after the command, for which the parser would propose other options."""
    before = ["", *arguments[:-1]]
    commands = (k for k, a in enumerate(arguments) if not a.startswith("-") and before[k] != "--import")
    late = [a for a in arguments[next(commands, len(arguments)) :] if a.split("=")[0] == "--import"]
    if late:
        raise ArgumentError(
            "--import must stand before the command; got it behind. Write polyscore --import my_module COMMAND ..."
        )


@contextmanager
def resumable(place: object) -> Iterator[None]:
    """Say on Ctrl-C that nothing is lost, and end with the code of an interruption."""
    try:
        yield
    except KeyboardInterrupt:
        stderr().print(f"stopped; {place} holds what is done, and the same command goes on.")
        raise typer.Exit(130) from None


@contextmanager
def clean() -> Iterator[list[str]]:
    """Turn our errors into a red message and exit code 2, our warnings into yellow lines; yield those warnings."""
    with _yellow() as told, silenced():
        try:
            yield told
        except PolyscoreError as error:
            _refuse(str(error), error)
        except OSError as error:
            if error.filename is None:  # a stream of this process; `streams` tells
                raise
            _refuse(
                f"a path must be usable; got {shorten(str(error.filename))} ({error.strerror}). Choose another.", error
            )
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "memory" not in str(error).lower():
                raise
            _refuse("the work must fit into memory; it did not. Ask for fewer samples, particles or steps.", error)


@contextmanager
def _yellow() -> Iterator[list[str]]:
    """Show our warnings as yellow lines, each once, and leave others to Python; yield those shown."""
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", PolyscoreWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if not issubclass(category, PolyscoreWarning):
                others(message, category, *where)
            elif str(message) not in told:
                told.append(str(message))
                stderr().print(Text(f"warning: {message}", style="yellow"))

        warnings.showwarning = show  # type: ignore[assignment]
        yield told


def _refuse(message: str, error: Exception) -> NoReturn:
    stderr().print(Text(f"error: {message}", style="bold red"))
    raise typer.Exit(2) from error


def require_device(device: str | None) -> None:
    """Check that torch knows `device` and has one."""
    from polyscore.devices import check_device

    if device is not None:
        check_device(device, "--device")


@contextmanager
def progress(description: str, quiet: bool) -> Iterator[Tell]:
    """Yield a function (done, all, what) that drives a bar on stderr; with `quiet`, one that does nothing."""
    if quiet:
        yield lambda done, total, what: None
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(description, total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=visible(what or description))

        yield report


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
