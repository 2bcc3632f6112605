"""`module:function`: code of a user's that a spec or a command line names.

It is looked up there and nowhere else: a record, a model file, a parcel or a protocol never names what is imported.
Workers get it in the job that the driver made, and refuse code that differs from the driver's.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
    """A module by name, and a folder in which it is looked for after all others.

    Attributes:
        digest: of its file, once it was loaded; a worker's must be the same.
    """

    name: str
    folder: str = ""
    digest: str = ""

    def seen(self) -> Module:
        """Import it and return it with the hash of its source."""
        return replace(self, digest=source_digest(self.load()))

    def load(self) -> Any:
        """Import it; `CodeError` says what is wrong with it."""
        module = self._imported()
        if self.digest and source_digest(module) != self.digest:
            raise CodeError(
                f"{self.name} must be the same wherever it runs; here it has another source. Copy the driver's file."
            )
        return module

    def _imported(self) -> Any:
        if len(self.name) > _LONGEST or not _MODULE.fullmatch(self.name):
            raise CodeError(
                f"a module must be named like my_module or package.module; got {shorten(self.name)}. Rename its file."
            )
        if self.folder and self.folder not in sys.path:
            sys.path.append(self.folder)  # last: a file beside a spec must not take the place of a library
        try:
            return importlib.import_module(self.name)
        except (Exception, SystemExit) as error:  # whatever a user's module does while it is imported
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
        found.load()
        return cls(found.module, name, found.source())

    def load(self) -> Callable[..., Any]:
        """Import it; a worker whose code is not the driver's says so."""
        module = self.module.load()
        made = getattr(module, self.name, None)
        if not callable(made):
            raise CodeError(f"{self.module.name} must have a function {self.name}; got {shorten(made)}. Define it.")
        if self.digest and self.source() != self.digest:
            raise CodeError(
                f"{self.text} must be the same wherever it runs; here it has another source. Copy the driver's file."
            )
        return made

    def source(self) -> str:
        """Return the hash of the module that names it, and of the one that defines it where that is another's."""
        module = self.module.load()
        digests = dict.fromkeys([source_digest(module), source_digest(getattr(module, self.name, None))])
        return "-".join(digest for digest in digests if digest)

    @property
    def text(self) -> str:
        """`module:function`."""
        return f"{self.module.name}:{self.name}"

    @property
    def content(self) -> dict[str, str]:
        """What a key holds of it."""
        return {"function": self.text, "source": self.digest}


def outside(things: Iterable[Any]) -> dict[str, str]:
    """Return the hashes of the files that define classes and functions of a user's, by their names."""
    found = {getattr(thing, "__qualname__", repr(thing)): source_digest(thing) for thing in things}
    return {name: found[name] for name in sorted(found) if found[name]}


def source_digest(thing: Any) -> str:
    """Return a hash of the file that defines a function, class or module, "" where there is none or it is our own.

    Modules beside that file which it imports count as well; libraries do not.
    """
    module = thing if inspect.ismodule(thing) else inspect.getmodule(thing)
    if module is None or not _file(module) or module.__name__.split(".")[0] == "polyscore":
        return ""
    files = sorted(_files(module, Path(_file(module)).resolve().parent, set()))
    content = [Path(file).read_bytes() for file in files]
    return hashlib.sha256(content[0] if len(content) == 1 else b"".join(content)).hexdigest()[:16]


def _files(module: Any, folder: Path, seen: set[str]) -> set[str]:
    """The files of a module and of what it imports from its own folder."""
    file = _file(module)
    if not file or file in seen or folder not in Path(file).resolve().parents or "site-packages" in file:
        return seen
    seen.add(file)
    for name in _imported(file):
        if name in sys.modules:
            _files(sys.modules[name], folder, seen)
    return seen


def _imported(file: str) -> set[str]:
    """The modules that a file names in its imports: constants do not say whence; a compiled file none."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (SyntaxError, ValueError):
        return set()
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


def _file(module: Any) -> str:
    return getattr(module, "__file__", None) or ""
