"""`module:function`: code of a user's that a spec or a command line names.

It is looked up there and nowhere else: a record, a model file, a parcel or a protocol never names what is imported.
Workers get it in the job that the driver made, and refuse code that differs from the driver's.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyscore.errors import PolyscoreError, shorten

_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LONGEST = 200


class CodeError(PolyscoreError):
    """A module or function that is not there, cannot be imported or is not what it should be."""


def is_function(text: object) -> bool:
    """Whether a text has the form `module:function`."""
    return isinstance(text, str) and len(text) <= _LONGEST and _PATTERN.fullmatch(text) is not None


@dataclass(frozen=True)
class Module:
    """A module by name, and a folder in which it is looked for after all others."""

    name: str
    folder: str = ""

    def load(self) -> Any:
        """Import it; `CodeError` says what is wrong with it."""
        if len(self.name) > _LONGEST or not _MODULE.fullmatch(self.name):
            raise CodeError(f"a module must be named like my_module or package.module; got {shorten(self.name)}.")
        if self.folder and self.folder not in sys.path:
            sys.path.append(self.folder)  # last: a file beside a spec must not take the place of a library
        try:
            return importlib.import_module(self.name)
        except Exception as error:  # whatever a user's module does while it is imported
            why = f"{type(error).__name__}: {shorten(str(error), 120)}"
            raise CodeError(
                f"a module must be importable; {self.name} is not ({why}). It is looked for where Python looks, then "
                f"in {self.folder or 'no other folder'}."
            ) from error


@dataclass(frozen=True)
class Function:
    """A function of a module, by the hash of its source: other code is another function.

    Attributes:
        digest: of the module's file; "" where it has none.
    """

    module: Module
    name: str
    digest: str = ""

    @classmethod
    def find(cls, text: str, folder: str = "") -> Function:
        """Return the function that `module:function` names, once it has been seen to be there."""
        if not is_function(text):
            raise CodeError(f"a function must be named as module:function; got {shorten(text)}. Write my_module:make.")
        module, _, name = text.partition(":")
        found = cls(Module(module, folder), name)
        return cls(found.module, name, source_digest(found.load()))

    def load(self) -> Callable[..., Any]:
        """Import it; a worker whose code is not the driver's says so."""
        module = self.module.load()
        made = getattr(module, self.name, None)
        if not callable(made):
            raise CodeError(f"{self.module.name} must have a function {self.name}; got {shorten(made)}. Define it.")
        if self.digest and source_digest(made) != self.digest:
            raise CodeError(
                f"{self.text} must be the same wherever it runs; here it has another source. Copy the driver's file."
            )
        return made

    @property
    def text(self) -> str:
        """`module:function`."""
        return f"{self.module.name}:{self.name}"

    @property
    def content(self) -> dict[str, str]:
        """What a key holds of it."""
        return {"function": self.text, "source": self.digest}


def source_digest(thing: Any) -> str:
    """Return a hash of the file that defines a function or class, "" where there is none or it is our own."""
    module = inspect.getmodule(thing)
    file = getattr(module, "__file__", None)
    if module is None or file is None or module.__name__.split(".")[0] == "polyscore":
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
