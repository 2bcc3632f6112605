"""What all samplers are: settings for a composition, and one loop that runs them."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod

import torch

from polyscore.algebra import Composition
from polyscore.errors import is_count, is_number, require
from polyscore.notices import recording
from polyscore.progress import reporting
from polyscore.rng import as_seed
from polyscore.samplers.grids import GRIDS
from polyscore.samplers.loop import Progress, run
from polyscore.samplers.moves import INTEGRATORS, Move
from polyscore.samplers.plan import Settings
from polyscore.samplers.run import Run
from polyscore.samplers.starts import STARTS


class Sampler(ABC):
    """A way to draw from a composition."""

    def __repr__(self) -> str:
        """Its settings, those at their defaults left out but for the first two."""
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for index, field in enumerate(dataclasses.fields(self))  # type: ignore[arg-type]
            if index < 2 or getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    @abstractmethod
    def settings(self, q: Composition) -> Settings:
        """Return what the loop needs to know, or say why `q` cannot be sampled this way."""

    def sample(
        self,
        q: Composition,
        n: int,
        seed: int = 0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        max_particles: int | None = None,
        progress: Progress | bool | None = None,
        history: bool | None = None,
    ) -> Run:
        """Return `n` swarms and one sample of each; the same bytes for the same seed, n and device.

        A swarm's random numbers do not depend on the others. Asked for in other company (fewer swarms, other chunks),
        Gaussians in few dimensions keep their bytes; matrix products of mixtures and networks round otherwise there, in
        the last digits, and a resampling may flip on them.

        Args:
            device: where to compute; by default where the family's networks are, or the CPU.
            max_particles: bound on particles in memory at once; by the device's memory unless given.
            progress: called with (steps done, steps in all). By default a bar shows in a terminal or notebook once two
                seconds have passed; False shows nothing.
            history: keep `run.ess` of every step and swarm; by default up to 5e7 entries.
        """
        require(isinstance(q, Composition), "what is sampled",
                "be a composition, such as p[\"a\"] or p[\"a\"] * p[\"b\"]", type(q).__name__)  # fmt: skip
        seed = as_seed(seed)
        with recording() as doubts:
            settings = self.settings(q)
            q.family.check_dtype(dtype)
            with reporting(progress, "sampling") as told:
                result = run(
                    q, settings, n, seed, device=device, dtype=dtype, max_particles=max_particles, progress=told,
                    history=history, sampler=repr(self),
                )  # fmt: skip
        names = q.family.variables if q.family.has_names else ()
        result = dataclasses.replace(result, variables=names, doubts=tuple(doubts))
        result.warn_if_degenerate()
        return result


def check_common(steps: int, churn: float, move: Move, grid: str, integrator: str, start: str) -> None:
    """Check what every sampler takes."""
    require(is_count(steps), "steps", "be a whole number of at least 1", steps)
    require(is_number(churn) and 0 <= churn <= 100, "churn", "be a number of at least 0, and at most 100", churn,
            "1 is the SDE, 0 the ODE.")  # fmt: skip
    require(isinstance(move, Move), "move", "be Balanced(), Paper() or Published()", move)
    for name, value, known in (
        ("grid", grid, GRIDS),
        ("integrator", integrator, INTEGRATORS),
        ("start", start, STARTS),
    ):
        require(isinstance(value, str) and value in known, name, f"be one of {', '.join(known)}", repr(value))
