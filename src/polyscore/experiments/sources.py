"""Where an experiment's family comes from: a YAML file, a function of a user's, or a model on disk.

A source is plain data that travels to workers, builds the family there, and knows its content for the cells' keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from os.path import isdir
from pathlib import Path
from typing import Any, Protocol

from polyscore.algebra import Family
from polyscore.algebra.family_file import parse_family
from polyscore.algebra.saved import load as load_model
from polyscore.algebra.saved import model_file
from polyscore.errors import ArgumentError, cut, require, shorten
from polyscore.experiments.functions import Function, is_function
from polyscore.files import yaml_file
from polyscore.models.checkpoints import with_suffix


class Source(Protocol):
    """What builds a family; hashable, so that it is built once."""

    @property
    def content(self) -> Any:
        """What decides the family, JSON-ready; None where its name does."""
        ...

    def build(self) -> Family:
        """Return the family."""
        ...

    def __hash__(self) -> int: ...


@lru_cache(maxsize=32)
def family_of(source: Source) -> Family:
    """Return the family of a source, built once; for reading, since it is shared."""
    return source.build()


@dataclass(frozen=True)
class Written:
    """A family file's text."""

    text: str
    name: str = "family"

    @property
    def content(self) -> Any:
        """The parsed file, and the order of its conditions, which decides random numbers."""
        document = yaml_file.parse(self.text)
        return {"written": document, "order": list(document["conditions"])}

    def build(self) -> Family:
        """Return the family that the text describes."""
        return parse_family(self.text, self.name)


@dataclass(frozen=True)
class Called:
    """A function that returns a family."""

    function: Function

    @property
    def content(self) -> Any:
        """Its name and the hash of its module's source."""
        return self.function.content

    def build(self) -> Family:
        """Call it; whatever a user's code raises is told as its own."""
        make = self.function.load()
        try:
            found = make()
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {cut(str(error), 200).rstrip('.')}"
            raise ArgumentError(
                f"{self.function.text} must return a Family; it raised {why}. It is called without arguments."
            ) from error
        require(isinstance(found, Family), self.function.text, "return a Family", type(found).__name__,
                "Let it return ps.Family({...}).")  # fmt: skip
        return found


@dataclass(frozen=True)
class Saved:
    """A model that `Family.save` or `polyscore fit` wrote.

    Attributes:
        digest: of its weights.
    """

    path: str
    digest: str

    @classmethod
    def find(cls, path: Path) -> Saved:
        """Return the model at a path, once it has been seen to be there."""
        return cls(str(path), _digest(path))

    @property
    def content(self) -> Any:
        """The hash of its weights."""
        return {"model": self.digest}

    def build(self) -> Family:
        """Read it; another file by that name is refused."""
        require(_digest(Path(self.path)) == self.digest, self.path, "hold the same weights wherever it is read",
                "others", "Copy the driver's file.")  # fmt: skip
        return load_model(self.path)


def _digest(path: Path) -> str:
    file = with_suffix(model_file(path))
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ArgumentError(
            f"a model must be readable; got {shorten(str(path))} ({error.strerror}). Check the path."
        ) from error


def beside(folder: Path, name: str, what: str) -> Path:
    """Return the path of a file that a spec names: it lies in the spec's folder or below."""
    path = Path(name)
    inside = not path.is_absolute() and ".." not in path.parts and "\0" not in name
    require(inside, what, "lie beside the spec or below, without ..", shorten(name), "Copy it there.")
    return folder / path


def find_source(text: Any, folder: Path) -> Source:
    """Return the source that a spec or command line names: `module:function`, a model, or else a family file."""
    require(isinstance(text, str) and text, "a family", "be a file's name or module:function", shorten(text, 80),
            "Write family.yaml, or my_module:make_family.")  # fmt: skip
    if is_function(text):
        return Called(Function.find(text, str(folder.resolve())))
    path = beside(folder, text, "a family's file")
    if isdir(path) or path.suffix == ".safetensors":
        return Saved.find(path.resolve())
    try:
        return Written(yaml_file.read_text(path), path.name)
    except yaml_file.YamlError as error:
        raise ArgumentError(
            f"a family file must be readable; got {shorten(str(path))} ({error}). Check the path."
        ) from error
