"""A sampler chosen by what the composition itself says: no reference is asked for.

Five questions, in this order.

1. Is there anything to correct? Particles that only add scores gather log-weights G. Redrawing the fits by their own
   errors (`alternatives`) changes G; where Var(G) is less than four times the variance of that change, which is two
   standard errors, correction would amplify the error of the fits rather than mend that of adding scores. Then scores
   are added, and no more.
2. Is it Gaussian? Then a control leaves nothing to weigh, and four particles do.
3. Does the form fit? Errors of a fit take its form for granted. Where it is wrong, fits to either half of the data
   differ by more (`halves`), and by about as much as the fit is off by; the same factor of four is asked of them.
4. How many particles? As many as it takes for pilot swarms to agree on the evidence: by half the deviation of Z^ / Z
   their outputs are off in total variation. In closed form outputs are pooled (`pooling`), and half of that will do.
5. Of networks that know nothing of their error: whose outputs are nearest to what mixtures compose to that were fitted
   to each source's own draws (`stand_in`)? Adding scores, a clip and the particles of question 4 are compared.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.alternatives import alternatives, halves
from polyscore.algebra.proper import proper
from polyscore.devices import on_cpu_by_default
from polyscore.errors import PolyscoreWarning, is_count, require, shorten
from polyscore.rng import as_seed, derive
from polyscore.samplers import step
from polyscore.samplers.centring import centred
from polyscore.samplers.checks import Asked, before
from polyscore.samplers.controlled import Controlled
from polyscore.samplers.denoise import Denoise
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.loop import iterate
from polyscore.samplers.pilots import UNKNOWN, Choice, Pilots, by_agreement, by_stand_in, left_as_they_are
from polyscore.samplers.plan import Plan
from polyscore.samplers.run import Run
from polyscore.samplers.sampler import Sampler
from polyscore.schema import count, setting

_FEW, _MANY = (8, 256), (64, 1024)  # redrawn fits, and particles that gather log-weights
_CLOSE = 4.0  # times what would decide the other way, within which few of them do not decide
_SMALL = 12  # coordinates, beyond which many take long, and few tell as much: variances are sums over them
_SHOWN = 4.0  # times the variance that other fits give: two standard errors
_MOST_COORDINATES = 256  # of a point, beyond which no pilot is run; none of pictures, whose models are slow


def auto(q: Composition, most: int = 64, steps: int = 100, seed: int = 0) -> Sampler:
    """Return the sampler for `q`, with a `reason` in words.

    Args:
        most: particles a swarm, at most.
        steps: from noise to data, of the pilot runs too.
        seed: of the pilot runs.
    """
    require(isinstance(q, Composition), "what is sampled", "be a composition", type(q).__name__,
            'Take it from a family: p["a"] * p["b"], or ps.base_composition(p).')  # fmt: skip
    require(is_count(most), "most", "be a whole number of at least 1", shorten(most), "Leave it out for 64.")
    with warnings.catch_warnings(), on_cpu_by_default():
        warnings.simplefilter("ignore", PolyscoreWarning)  # the run itself will say it
        choice = _chosen(_as_sampled(proper(q)), int(most), steps, derive(as_seed(seed), "auto"))
    chosen = replace(choice.sampler, steps=steps)
    object.__setattr__(chosen, "_reason", choice.reason)  # beside the fields of a frozen sampler
    object.__setattr__(chosen, "_doubts", choice.doubts)
    return chosen


def _as_sampled(q: Composition) -> Composition:
    """The composition where samplers go: pilots find what there is to correct there."""
    moved = centred(q)
    return q if moved is None else moved.q


def _chosen(q: Composition, most: int, steps: int, seed: int) -> Choice:
    """The first answer that settles it; where none does, pilot swarms count the particles."""
    if (plain := _beforehand(q, most)) is not None:
        return plain
    if q.is_tilted:
        known = q.is_closed_form or alternatives(q, 1, seed)
        also = " Weights are needed for the bend of the coordinates, since W is not 1." + ("" if known else UNKNOWN)
    else:
        found, also = correction(q, seed, steps), ""
        if (settled := _by_correction(q, found, most)) is not None:
            return settled
        if found.redrawn is None and not q.is_closed_form:
            return by_stand_in(Pilots(q, steps, seed), most, found.signal)
    choice = by_agreement(Pilots(q, steps, seed), most)
    return choice._replace(reason=choice.reason + also)


def _beforehand(q: Composition, most: int) -> Choice | None:
    """What needs no pilot, or can have none."""
    if len(q.exponents) == 1 and q.total == 1:
        return Choice(Denoise(), "Chosen: Denoise, since one condition by itself needs no correction.")
    if most == 1:
        return Choice(Denoise(), "Chosen: Denoise, since one particle was asked for at most.")
    if len(q.event) > 1 or q.event[0] > _MOST_COORDINATES:
        return Choice(
            FeynmanKac(min(4, most), threshold=0.5),
            f"Chosen: FeynmanKac({min(4, most)}), since pilot runs of points {tuple(q.event)} would cost more than "
            "they tell. Compare K = 1, 4 and 16.",
        )
    return None


def _by_correction(q: Composition, found: Correction, most: int) -> Choice | None:
    """The first three questions: whether there is something to correct, among Gaussians, in a form that fits."""
    if found.redrawn is not None and found.signal < _SHOWN * found.redrawn:
        return _uncorrected(
            found.signal, found.redrawn, "that other data would change: correction would amplify the error of the fits."
        )
    if q.is_gaussian:
        few = Controlled(min(4, most), bumps=0)
        left = "nothing" if few.sizes(math.prod(q.event))[0] == "affine" else "little"
        return Choice(
            few, f"Chosen: Controlled({few.particles}), since among Gaussians a control leaves {left} to weigh."
        )
    if found.halved is not None and found.signal < _SHOWN * found.halved:
        return _uncorrected(
            found.signal, found.halved, "by which fits to halves of the data differ: more than their errors, so that "
            "their form does not fit, and correction would amplify that.",
        )  # fmt: skip
    return None


def _uncorrected(signal: float, error: float, why: str) -> Choice:
    """Scores added, and no more."""
    return Choice(
        Denoise(),
        f"Chosen: Denoise. What there is to correct has a variance of {signal:.2g}, less than four times the "
        f"{error:.2g} {why}",
        left_as_they_are(signal),
    )


class Correction(NamedTuple):
    """What there is to correct along paths that add scores, and how much of it may be error.

    Attributes:
        signal: Var(G), of the log-weights that they gather.
        redrawn: the mean of Var(G' - G) over redrawn fits; None where nothing is known of their error.
        halved: the same over fits to either half of the data; None where there are none.
    """

    signal: float
    redrawn: float | None
    halved: float | None

    @property
    def is_close(self) -> bool:
        """Whether chance could have decided: eight fits tell their variance to a half."""
        said = [value for value in (self.redrawn, self.halved) if value is not None]
        return any(self.signal < _CLOSE * _SHOWN * value < _CLOSE**2 * self.signal for value in said)


def correction(q: Composition, seed: int, steps: int = 100) -> Correction:
    """Return what there is to correct, and what speaks against it: by a few redrawn fits, by many if that is close."""
    found = _correction(q, seed, steps, *_FEW)
    dear = not q.is_closed_form or math.prod(q.event) > _SMALL
    return found if dear or not found.is_close else _correction(q, seed, steps, *_MANY)


def _correction(q: Composition, seed: int, steps: int, others: int, paths: int) -> Correction:
    plan = before(FeynmanKac(1, steps=steps), q, Asked(paths, seed, history=False))
    points = [state.x for state in iterate(plan, 0, paths, graphs=False)]
    own = _gathered(plan, q, points)
    redrawn, halved = (_mean([_variance(_gathered(plan, other, points) - own) for other in found])
                       for found in (alternatives(q, others, seed), halves(q)))  # fmt: skip
    return Correction(_variance(own), redrawn, halved)


def _gathered(plan: Plan, q: Composition, points: Sequence[Tensor]) -> Tensor:
    """Log-weights that `q` gives to paths through these points, one at every time."""
    field = plan.sampler.prepare(q, plan.times, plan.like)
    rates = [step.rate_of(plan, x, *field(x, i), i)[:, 0].double() for i, x in enumerate(points)]
    total = torch.zeros_like(rates[0])
    for i, (a, b) in enumerate(itertools.pairwise(rates)):
        total += step.gain(plan, a, b, plan.coefficients(i))
    return total


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _variance(values: Tensor) -> float:
    found = values.var(correction=0).item()
    return found if math.isfinite(found) else math.inf


@dataclass(frozen=True, repr=False)
class Auto(Sampler):
    """`auto` as a sampler, for files and commands: it chooses anew for every composition.

    Args:
        most: particles a swarm, at most.
        steps: from noise to data; what else a sampler has is chosen.
    """

    most: int = setting(64, count())

    def sample(self, q: Composition, n: int, seed: int = 0, **options: Any) -> Run:
        """Choose, then sample; `run.reason` says why."""
        return auto(q, self.most, self.steps).sample(q, n, seed, **options)
