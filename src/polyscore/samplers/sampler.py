"""What all samplers are: fields that choose the parts, a pure step, and one loop that runs them.

A sampler of your own is a frozen dataclass on top of `Sampler`. The least of them changes defaults: its own move, grid
or kernels. One with a step of its own overrides `step`, made of the pieces in `polyscore.samplers.step`, and says what
random numbers it takes in `draws`; one with a score of its own overrides `prepare`. The loop knows none of that:
chunks, memory, progress, alarms, history, devices and units are the same for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.proper import proper
from polyscore.devices import on_cpu_by_default
from polyscore.errors import is_number, require
from polyscore.fields import Field, prepare
from polyscore.notices import recording, warn
from polyscore.progress import reporting
from polyscore.rng import as_seed
from polyscore.samplers import step
from polyscore.samplers.centring import centred
from polyscore.samplers.checks import Asked, warn_of_rounding
from polyscore.samplers.chunks import Listener, run
from polyscore.samplers.discrete import by_steps
from polyscore.samplers.grids import GRIDS, extent_of
from polyscore.samplers.integrators import INTEGRATORS
from polyscore.samplers.kernels import KERNELS, Kernel
from polyscore.samplers.moves import MOVES, Balanced, Move
from polyscore.samplers.parts import by_name, by_value, several
from polyscore.samplers.plan import Plan
from polyscore.samplers.pooling import pooled
from polyscore.samplers.quadratures import QUADRATURES
from polyscore.samplers.run import Run
from polyscore.samplers.starts import STARTS
from polyscore.samplers.step import State
from polyscore.samplers.support import supported
from polyscore.schema import Checked, Domain, count, flag, number, optional, setting
from polyscore.smc import SCHEMES, Resampler, resampler

_STEPPING = ("begin", "prepare", "steer", "step", "tables")
_CHURN = dataclasses.replace(number(0, 100), remedy="1 is the SDE, 0 the ODE.")
_GRID = by_name(GRIDS, "a function (schedule, steps, extent) -> TimeGrid")
_INTEGRATOR = by_name(INTEGRATORS, "a function (schedule, grid, W, churn, move) -> Steps")
_START = by_name(STARTS, "a function (composition, move, first time, seed) -> Start")
_QUADRATURE = by_name(QUADRATURES, "a function (schedule, grid, extent) -> Quadrature")
_SHARE = dataclasses.replace(number(0, 1), rule="be a share of K in [0, 1]")
RESAMPLING = by_name(SCHEMES, "a Resampler", lambda value: isinstance(value, Resampler))


def _is_window(window: Any) -> bool:
    """Whether it is (low, high) within [0, 1]."""
    if not isinstance(window, tuple | list) or len(window) != 2 or not all(map(is_number, window)):
        return False
    return bool(0 <= window[0] < window[1] <= 1)


_WINDOW = Domain("be (low, high) with 0 <= low < high <= 1", _is_window, lambda window: tuple(map(float, window)))


class Draw(NamedTuple):
    """The random numbers of one swarm in one step: standard normal, or uniform on [0, 1)."""

    shape: tuple[int, ...]
    normal: bool = True


def fixed(value: Any, domain: Domain) -> Any:
    """A field that is no option of this sampler; a subclass that opens it by another default has its domain."""
    return dataclasses.field(default=value, init=False, metadata={"domain": domain})


@dataclass(frozen=True, repr=False)
class Sampler(Checked):
    """A way to draw from a composition.

    Args:
        steps: from noise to data.
        churn: nu / eta, at least 0: 1 is the reverse SDE, 0 the probability-flow ODE.
        move: how W enters the drift; see `polyscore.samplers.moves`.
        grid: "snr" (in log-SNR, denser where the sources' parts appear), "equal" times, or the "timesteps" of a model.
        integrator: "multistep" (second order), "frozen" (first order, DDIM to DDPM), "ancestral" (the same for any
            move, DDPM's own where it is unbalanced) or "euler", which unbalanced moves take in any other case where W
            is not 1, and nothing where alpha(1) = 0: that is "frozen". With kernels "multistep" is "frozen" too: they
            move a particle off the line through its last two clean points.
        start: "matched" to the sources' means and covariances, or "noise", as if no signal were left.
        kernels: applied after every step, at the time that it led to; see `polyscore.samplers.kernels`.

    Every part is a registered name or an object of one's own. What only some samplers have stands here with the value
    that it has in all others: `particles` K, `clip`, `order`, `resampling` (None: no weights), `threshold`, `window`,
    `ancestry`, `quadrature`, `pooled`. A subclass opens one by `particles: int = 8`.
    """

    particles: int = fixed(1, count())
    steps: int = setting(100, count())
    clip: float | None = fixed(None, optional(number(0, 1e30, ends=False)))
    churn: float = setting(1.0, _CHURN)
    order: int = fixed(1, Domain("be 1 or 2", lambda value: value in (1, 2)))
    resampling: str | Resampler | None = fixed(None, optional(RESAMPLING))
    threshold: float = fixed(1.0, _SHARE)
    window: tuple[float, float] | None = fixed(None, optional(_WINDOW))
    move: Move = setting(Balanced(), by_value(MOVES, Move))
    ancestry: bool = fixed(False, flag())
    grid: str | Callable[..., Any] = setting("snr", _GRID)
    integrator: str | Callable[..., Any] = setting("multistep", _INTEGRATOR)
    quadrature: str | Callable[..., Any] = fixed("noise", _QUADRATURE)
    start: str | Callable[..., Any] = setting("matched", _START)
    kernels: tuple[Kernel, ...] = setting((), several(by_value(KERNELS, Kernel)))
    pooled: bool = fixed(False, flag())

    def __repr__(self) -> str:
        """Its settings, those at their defaults left out but for the first two."""
        options = [field for field in dataclasses.fields(self) if field.init]
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for index, field in enumerate(options)
            if index < 2 or getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    @property
    def reason(self) -> str:
        """Why it was chosen, where `auto` has: no option, and no part of what it is."""
        return self.__dict__.get("_reason", "")

    @property
    def doubts(self) -> tuple[str, ...]:
        """What was found when it was chosen that speaks against its result."""
        return self.__dict__.get("_doubts", ())

    @property
    def weighted(self) -> bool:
        """Whether particles carry weights."""
        return self.resampling is not None

    @property
    def carries(self) -> bool:
        """Whether a swarm may keep its weights over a step."""
        return self.threshold < 1 or self.window is not None

    @property
    def tabular(self) -> bool:
        """Whether a step is a row of the table and nothing else, so that its error can be told beforehand."""
        return self.order == 1 and type(self).step is Sampler.step

    @property
    def graphable(self) -> bool:
        """Whether a step is tensor code without decisions of the host, which a CUDA graph can hold."""
        plain = self.window is None and self.order == 1 and not by_steps(self)
        return plain and all(kernel.graphable for kernel in self.kernels)

    @property
    def is_movable(self) -> bool:
        """Whether it may sample about another origin: nothing but the move asks where that is.

        What overrides a step or a part of it may ask; so may starts and kernels from elsewhere.
        """
        own = any(getattr(type(self), name) is not getattr(Sampler, name) for name in _STEPPING)
        return self._follows_data and not own

    @property
    def _follows_data(self) -> bool:
        """Whether move, start and kernels do the same about another origin."""
        parts = type(self.move) is Balanced and self.start in ("matched", "noise")
        return parts and all(kernel.movable for kernel in self.kernels)

    def check(self, q: Composition) -> None:
        """Say why `q` cannot be sampled this way, where it cannot."""

    def prepare(self, q: Composition, times: Tensor, like: Tensor) -> Field:
        """Return what gives score and excess at the grid's times, `(steps + 1,)`."""
        return prepare(q, times, like)

    def tables(self, q: Composition, times: Tensor, like: Tensor) -> dict[str, Tensor]:
        """Return tables of one's own, on the device of `like`: `fields.row(plan.tables[name], i)` is that of time i."""
        return {}

    def draws(self, q: Composition) -> dict[str, Draw]:
        """Return the random numbers that a step takes, by purpose: streams of different purpose are independent."""
        found = {"noise": Draw((self.particles, *q.event))} if self.churn else {}
        if self.resampling is not None and self.particles > 1:
            found["resampling"] = Draw((resampler(self.resampling).uniforms(self.particles),), normal=False)
        for k, kernel in enumerate(self.kernels):
            found[f"kernel {k} normals"] = Draw((kernel.normals, self.particles, *q.event))
            found[f"kernel {k} uniforms"] = Draw((kernel.uniforms, self.particles), normal=False)
        return found

    def begin(self, plan: Plan, first: int, stop: int) -> State:
        """Return the state of swarms first..stop at the first time."""
        return step.begin(plan, first, stop)

    def step(self, plan: Plan, state: State, i: int | Tensor, noise: Mapping[str, Tensor]) -> State:
        """Return the state at time i + 1 for that at time i; pure, and on a GPU captured into a graph.

        Args:
            i: a number, or a device tensor `(1,)` inside a CUDA graph.
            noise: what `draws` asked for, `(swarms, *shape)` each.
        """
        state = step.advance(plan, state, i, noise)
        return step.apply_kernels(plan, state, i + 1, noise) if self.kernels else state

    def steer(self, plan: Plan, state: State, x: Tensor, i: int | Tensor) -> Tensor:
        """Return the proposed points x of step i with a drift of one's own; what it adds to g, `steered` says."""
        return x

    def steered(self, plan: Plan, before: State, after: State, i: int | Tensor, gained: Tensor) -> Tensor:
        """Return what log-weights gain in step i under `steer`: a drift c adds div c + <c, S> to the rate."""
        return gained

    def sample(
        self,
        q: Composition,
        n: int,
        seed: int = 0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        max_particles: int | None = None,
        progress: Listener | bool | None = None,
        history: bool | None = None,
    ) -> Run:
        """Return `n` swarms and one sample of each; the same bytes for the same seed, n and device.

        A swarm's random numbers do not depend on the others. Asked for in other company (fewer swarms, other chunks),
        Gaussians in few dimensions keep their bytes; matrix products of mixtures and networks round otherwise there, in
        the last digits, and a resampling may flip on them.

        Args:
            device: where to compute; by default where the family's networks are, or the CPU.
            max_particles: bound on particles in memory at once; by the device's memory unless given. Swarms come in
                blocks; where one holds more, a model is asked about it in pieces of at most so many particles.
            progress: called with (steps done, steps in all). By default a bar shows in a terminal or notebook once two
                seconds have passed; False shows nothing.
            history: keep `run.ess` of every step and swarm; by default up to 5e7 entries.
        """
        require(isinstance(q, Composition), "what is sampled",
                "be a composition, such as p[\"a\"] or p[\"a\"] * p[\"b\"]", type(q).__name__,
                'Take it from a family: p["a"].')  # fmt: skip
        asked = Asked(n, as_seed(seed), device, dtype, max_particles, history)
        with on_cpu_by_default():
            with recording() as doubts, reporting(progress, "sampling") as told:
                for doubt in self.doubts:
                    warn(doubt)
                result = self._run(sampled := proper(q), asked, told)
            result = pooled(result, asked.seed) if self.pooled else result
            names = q.family.variables if q.family.has_names else ()
            result = dataclasses.replace(result, variables=names, doubts=tuple(doubts), reason=self.reason)
            result = supported(result, sampled)
            result.warn_if_degenerate()
        return result

    def _run(self, q: Composition, asked: Asked, listener: Listener | None) -> Run:
        """Run where the composition is, or about the origin, and bring it back."""
        moved = centred(q) if self.is_movable else None
        if moved is None:
            return run(self, q, asked, listener)
        result = moved.back(run(self, moved.q, dataclasses.replace(asked, scale=moved.size), listener))
        warn_of_rounding(extent_of(q), asked.dtype)
        return result
