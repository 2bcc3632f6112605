"""Which experiments a command is about, and where their results live."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyscore.experiments.experiment import Experiment
    from polyscore.experiments.store import Store


@dataclass(frozen=True)
class Asked:
    """What a command line asks for.

    Attributes:
        spec: a spec file; None are the paper's own experiments.
        everything: all of them, whatever the names.
        paper: whether the spec may be in the paper's words.
    """

    spec: Path | None
    names: tuple[str, ...] = ()
    everything: bool = False
    runs: int | None = None
    particles: str | None = None
    quick: bool = False
    store: Path = Path("runs/paper")
    paper: bool = False

    @property
    def spec_word(self) -> str:
        """How a spec is named to this command."""
        return "--spec" if self.paper else "spec"

    @property
    def program(self) -> str:
        """The beginning of a command of the same kind."""
        return "polyscore paper" if self.paper else "polyscore"

    def known(self) -> dict[str, Experiment]:
        """Return the experiments by name: of the spec, or the paper's."""
        if self.paper:
            from polyscore.paper import specs

            return specs.read(self.spec) if self.spec else {name: specs.named(name) for name in specs.names()}
        from polyscore.experiments.spec import load_spec

        return load_spec(self.spec or "")

    def chosen(self) -> list[Experiment]:
        """Return the experiments that are asked for, with the command line's changes."""
        from polyscore.errors import require
        from polyscore.experiments.checks import check_size
        from polyscore.experiments.experiment import quick

        experiments = self.known()
        found = [e for name in self.names for e in _named(name, experiments)]
        found = list(experiments.values()) if self.everything else found
        require(self.runs is None or self.runs >= 1, "--runs", "be at least 1", self.runs,
                "Leave it out for the experiment's own.")  # fmt: skip
        changes: dict[str, Any] = {} if self.runs is None else {"runs": self.runs}
        if self.particles is not None:
            changes["particles"] = counts(self.particles)
        found = [quick(experiment) for experiment in found] if self.quick else found
        found = [dataclasses.replace(experiment, **changes) for experiment in found]
        for experiment in found if changes else ():
            check_size(experiment)
        return found

    @property
    def place(self) -> Path:
        """The store's folder: quick results stay apart."""
        named = self.store if self.store.name else self.store.resolve()
        return named.with_name(named.name + "-quick") if self.quick else self.store

    def stored(self) -> Store:
        """Return the store to read, which must be there."""
        from polyscore.experiments.lock import StoreError
        from polyscore.experiments.store import Store

        if not (self.place / "store.json").exists():
            own = ", or read the repository's own with --store results/paper" if self.paper else ""
            raise StoreError(
                f"a store must be there to be read; {self.place} is none. Fill it with `{self.program} run`{own}."
            )
        return Store(self.place)

    def report(self, chosen: list[Experiment]) -> str:
        """Return the command that shows what this one has computed, `chosen` being what it was."""
        plain = dataclasses.replace(self, runs=None, particles=None).chosen()
        both = list(zip(chosen, plain, strict=True))
        more_runs = any(c.runs > o.runs for c, o in both)
        more_particles = any(not set(c.particles) <= set(o.particles) for c, o in both)
        options = {"--store": self.store, "--spec": self.paper and self.spec, "--runs": more_runs and self.runs,
                   "--particles": more_particles and self.particles}  # fmt: skip
        given = "".join(f" {option} {shlex.quote(str(value))}" for option, value in options.items() if value)
        first = "" if self.paper else f" {shlex.quote(str(self.spec))}"
        return f"{self.program} report{first}{' --quick' if self.quick else ''}{given}"


def counts(text: str) -> tuple[int, ...]:
    """The particle counts of `1,4,16`, each once, the smallest first."""
    from polyscore.errors import ArgumentError, require, shorten

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.removeprefix("-").isdecimal() and len(part) < 20 for part in parts):
        raise ArgumentError(
            f"--particles must be whole numbers such as 1,4,16; got {shorten(text)}. Separate them by commas."
        )
    found = tuple(sorted({int(part) for part in parts}))
    require(found[0] >= 1, "--particles", "be at least 1", text, "Write it as 1,4,16.")
    return found


def _named(name: str, experiments: dict[str, Experiment]) -> list[Experiment]:
    """An experiment by name, or all of a family."""
    from polyscore.errors import ArgumentError, nearest, shorten

    found = [experiments[name]] if name in experiments else [e for e in experiments.values() if e.family == name]
    if not found:
        names = dict.fromkeys([*experiments, *(e.family for e in experiments.values())])
        raise ArgumentError(
            f"an experiment must be one of {', '.join(experiments)}; got {shorten(name)}."
            f"{nearest(name, names) or ' Choose one of these.'}"
        )
    return found


def shows_nothing(experiments: list[Experiment], store: Store) -> bool:
    """Whether a store has no composition of the experiments: a table of them would be empty."""
    from polyscore.experiments.cells import COMPOSITION

    cells = ((cell, e) for e in experiments for cell in e.cells() if cell.target == COMPOSITION)
    return not any(e.key(cell) in store for cell, e in cells)


def left_out(experiments: list[Experiment], store: Store) -> int:
    """Return how many records of a store do not belong to the experiments as they were chosen."""
    shown = {e.key(cell) for e in experiments for cell in e.cells()}
    return len(store.records.keys() - shown)
