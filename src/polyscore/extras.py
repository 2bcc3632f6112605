"""What comes with an extra, asked for in one place and kept quiet; networks of others, whole or not at all."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from polyscore.errors import ArgumentError, listed, require
from polyscore.notices import warn


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


def read_whole(kind: Any, source: Any, **options: Any) -> Any:
    """Read a network of diffusers or transformers of which every weight is there.

    A weight that its file lacks is drawn at random by both libraries, anew at every start; one that the network of the
    configuration has no place for is left out.
    """
    network, told = kind.from_pretrained(str(source), use_safetensors=True, output_loading_info=True, **options)
    lacking = sorted({str(name) for key in ("missing_keys", "mismatched_keys") for name in told[key]})
    require(not lacking, f"weights of {source}", "be all that its configuration asks for",
            f"a file without {listed(lacking, 3, str)}", "Save or download it again.")  # fmt: skip
    unused = sorted(map(str, told["unexpected_keys"]))
    if unused:
        warn(f"weights of {source} should all have a place in the network that its configuration describes; "
             f"{listed(unused, 3, str)} have none. Another network was saved than is read.")  # fmt: skip
    return network


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
