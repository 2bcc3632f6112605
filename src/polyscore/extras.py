"""What comes with an extra, asked for in one place: who lacks it is told which one to install."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from polyscore.errors import ArgumentError


def load(module: str, what: str, extra: str = "images") -> Any:
    """Import a module of an extra, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(str(error.name), what, extra) from error


def require_found(packages: tuple[str, ...], what: str, extra: str) -> None:
    """Say how to install packages of an extra that are not there, without the time that importing them takes."""
    for package in packages:
        if find_spec(package) is None:
            raise _missing(package, what, extra)


def _missing(package: str, what: str, extra: str) -> ArgumentError:
    return ArgumentError(f"{what} must find {package}; it is not installed. pip install 'polyscore[{extra}]'")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and hints of transformers and diffusers, which would run into ours."""
    with contextlib.ExitStack() as stack:
        for name in ("transformers", "diffusers"):
            with contextlib.suppress(ModuleNotFoundError):
                stack.callback(_silence(importlib.import_module(f"{name}.utils.logging")))
        yield


def _silence(logging: Any) -> Any:
    """Silence one of them; return what lets it speak again."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def restore() -> None:
        logging.set_verbosity(before)
        logging.enable_progress_bar()

    return restore
