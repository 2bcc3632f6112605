"""What needs the extra `images`, asked for in one place, and kept quiet."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from polyscore.errors import ArgumentError


def load(module: str, what: str) -> Any:
    """Import a module of the extra, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"{what} must have {error.name} installed; it is missing. Run `pip install 'polyscore[images]'`."
        ) from error


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
