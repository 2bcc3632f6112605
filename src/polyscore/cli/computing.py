"""Computing what a store is missing: the engine, the progress, and what is said at the end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from polyscore.cli import show
from polyscore.errors import visible

if TYPE_CHECKING:
    from polyscore.cli.choose import Asked
    from polyscore.experiments.driver import Outcome
    from polyscore.experiments.engines import Engine
    from polyscore.experiments.experiment import Experiment
    from polyscore.experiments.functions import Module
    from polyscore.experiments.store import Store
    from polyscore.experiments.worker import Event

_OWN_OPTIONS = {"ray": ("address", "gpus"), "submitit": ("gpus", "partition", "minutes"), "local": ()}


@dataclass(frozen=True)
class Computing:
    """The options of a run that do not change its results."""

    device: str | None = None
    seconds: float | None = None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    gpus: float | None = None
    partition: str | None = None
    minutes: int | None = None
    networks: int | None = None
    save_samples: bool = True

    def check(self) -> None:
        """Refuse numbers that mean nothing."""
        from polyscore.errors import require

        positive = self.seconds is None or 0 < self.seconds < float("inf")
        require(positive, "--seconds", "be positive and finite", self.seconds, "Leave it out for no limit.")
        require(self.networks is None or self.networks >= 1, "--networks", "be at least 1", self.networks,
                "Leave it out for the default.")  # fmt: skip
        require(self.gpus is None or self.gpus < float("inf"), "--gpus", "be a finite number", self.gpus,
                "Write 0 for none, or 0.5 for two workers a GPU.")  # fmt: skip
        require(self.workers is None or self.workers >= 1, "--workers", "be at least 1", self.workers,
                "Leave it out for the default.")  # fmt: skip
        require(self.workers is None or self.engine != "local" or self.workers <= 256, "--workers",
                "be at most 256 on one machine", self.workers, "Use --engine ray or submitit for more.")  # fmt: skip

    def make(self, quick: bool) -> tuple[Engine, str | None]:
        """Return the engine, from the options that are meant for it, and where its tasks compute."""
        from polyscore.errors import ArgumentError
        from polyscore.experiments.engines import engine

        name, device = self.engine, self.device
        given = {key: getattr(self, key) for key in ("address", "gpus", "partition", "minutes")}
        options = {key: value for key, value in given.items() if value is not None}
        for key in options:
            if name in _OWN_OPTIONS and key not in _OWN_OPTIONS[name]:
                raise ArgumentError(
                    f"--{key} must go with an engine that has it; got --engine {name}. Drop one of them."
                )
        if name in ("ray", "submitit"):
            options.setdefault("gpus", 1 if device is not None and device.startswith("cuda") else 0)
            device = device or ("cuda" if options["gpus"] else "cpu")
        else:
            show.require_device(device)
        workers = self.workers or (_cores(device) if quick and name == "local" else None)
        return engine(name, workers=workers, **options), device


def _cores(device: str | None) -> int:
    """Processes for small networks on the CPU: two of one thread beat one of two."""
    import os

    import torch

    on_gpu = torch.cuda.is_available() if device is None else device != "cpu"
    return 1 if on_gpu else min(2, os.cpu_count() or 1)


def compute(asked: Asked, how: Computing, imports: tuple[Module, ...], as_json: bool) -> None:
    """Compute what is asked for and say what came of it; exit with 1 where a cell could not be computed."""
    with show.clean():
        from polyscore.errors import require
        from polyscore.experiments.store import Store

        both = "both" if asked.names else "neither"
        require(bool(asked.names) != asked.everything, "what to run", "be NAMEs or --all", both,
                "Write either; `polyscore list` shows the names.")  # fmt: skip
        chosen = asked.chosen()
        how.check()
        engine, device = how.make(asked.quick)
        store = Store(asked.place)
        way = {"device": device, "seconds": how.seconds, "save_samples": how.save_samples, "imports": imports}
        outcome = _run(chosen, store, engine, way | _together(how, engine), as_json)
    if as_json:
        show.write_json({**dataclasses.asdict(outcome), "store": str(store.path)})
    else:
        show.stdout().print(
            f"{outcome.computed} cells in {outcome.seconds:.0f} s, {outcome.missing} missing; "
            f"store {visible(str(store.path))}\nsee `{asked.report(chosen)}`", soft_wrap=True,
        )  # fmt: skip
    if outcome.missing and how.seconds is None:  # what is missing could not be computed, and was named
        raise typer.Exit(1)


def _together(how: Computing, engine: Engine) -> dict[str, int]:
    """Networks a job: smaller jobs keep all processes busy; on a GPU, and in this process, they train best together."""
    from polyscore.experiments.driver import MOST_NETWORKS

    together = how.engine != "local" or engine.workers == 1
    return {"networks": how.networks or (MOST_NETWORKS if together else 3)}


def _run(chosen: list[Experiment], store: Store, engine: Engine, way: dict[str, Any], quiet: bool) -> Outcome:
    from polyscore.experiments.driver import run

    before = len(store.records)
    try:
        with show.progress("starting", quiet) as tell:

            def listener(event: Event) -> None:
                tell(event.done, event.total, event.what)

            return run(chosen, store, engine, listener=listener, **way)
    except KeyboardInterrupt:
        new = len(store.records) - before
        show.stderr().print(
            f"stopped; {new} new cells are in {visible(str(store.path))}. The same command goes on from there."
        )
        raise typer.Exit(130) from None
