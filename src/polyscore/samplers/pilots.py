"""The sampler that pilot runs speak for: how many particles, and whether to trust networks with any.

Swarms that agree on the evidence say that there are enough particles; by half the deviation of Z^ / Z their outputs are
off in total variation. Where scores are exact, outputs are drawn from all swarms by their evidence and are off by none
of that: it is then enough that half of the swarms count. That swarms agree does not say that scores are right: those of
a network that is wrong in an orderly way agree about it. So where nothing is known of that, outputs are compared with
what the sources' own draws compose to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from polyscore.algebra import Composition
from polyscore.errors import ScoreError
from polyscore.rng import derive
from polyscore.samplers.denoise import Denoise
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.run import Run
from polyscore.samplers.sampler import Sampler
from polyscore.samplers.spread import growth
from polyscore.samplers.stand_in import EACH, distance, outputs, some_particles, stand_in

_SWARMS = 256
_AGREED = 0.9  # effective share of swarms by their evidence: the bias in total variation is then at most 0.17
_TORN = 0.3
_SHARED, _SOME = 0.5, 0.1  # effective share at which pooled swarms are enough, and from which they are pooled at all
_FIRST = 16  # particles
_LITTLE = 1.0  # variance of log-weights beyond which fewer than exp(-1) of the samples count
_AWAY, _FAR = 3.0, 0.15  # times the distance of two draws, and deviations: networks are at odds with themselves
UNKNOWN = (
    " Nothing is known of the error of these scores, and where they are wrong correction makes it worse: fit with "
    "kind='structured' or ensemble=5 to know it."
)


class Choice(NamedTuple):
    """A sampler, why it was chosen, and what the pilots found that speaks against any."""

    sampler: Sampler
    reason: str
    doubts: tuple[str, ...] = ()


class Pilots:
    """Runs of few swarms, each made once.

    Attributes:
        runs: what each sampler gave; None where that is nothing.
    """

    def __init__(self, q: Composition, steps: int, seed: int) -> None:
        self.q, self.steps, self.seed = q, steps, seed
        self.runs: dict[Sampler, Run | None] = {}

    def run(self, sampler: Sampler) -> Run | None:
        """Return the run of a sampler."""
        if sampler not in self.runs:
            asked = replace(sampler, steps=self.steps)
            swarms = _SWARMS * EACH if isinstance(sampler, Denoise) else _SWARMS
            try:
                self.runs[sampler] = asked.sample(self.q, swarms, self.seed, progress=False, history=False)
            except ScoreError:
                self.runs[sampler] = None
        return self.runs[sampler]

    def agreement(self, sampler: Sampler) -> float:
        """Return the effective share of swarms; 0 where they come to nothing."""
        run = self.run(sampler)
        return 0.0 if run is None or run.evidence_share != run.evidence_share else run.evidence_share


def by_agreement(pilots: Pilots, most: int) -> Choice:
    """Return the fewest particles for which swarms agree; where none do, the clip or the most that there may be."""
    particles, shares = min(_FIRST, most), dict[int, float]()
    exact = pilots.q.is_closed_form  # then swarms are pooled, and need not agree so well
    while True:
        shares[particles] = pilots.agreement(FeynmanKac(particles, threshold=0.5))
        if shares[particles] >= (_SHARED if exact else _AGREED) or particles >= most:
            break
        particles = min(4 * particles, most)
    said = ", ".join(f"{100 * share:.0f} % at K = {k}" for k, share in shares.items()) + " of pilot swarms count"
    asked = shares[particles] < _AGREED and not exact  # swarms agree on no evidence that is not there
    doubts = tuple(filter(None, [growth(pilots.q, pilots.seed)])) if asked else ()
    if shares[particles] < _TORN and not exact:
        return _torn(most, said, doubts)
    pooled = exact and shares[particles] >= _SOME
    also = ", outputs drawn from all swarms by their evidence" if pooled else ""
    return Choice(
        FeynmanKac(particles, threshold=0.5, pooled=pooled),
        f"Chosen: FeynmanKac({particles}), resampled when half of a swarm counts{also}. By their evidence {said}.",
        doubts,
    )


def _torn(most: int, said: str, doubts: tuple[str, ...]) -> Choice:
    """The clip, for swarms that do not agree."""
    clipped = _clipped(most)
    torn = (
        f"pilot swarms should agree on the evidence without a clip; by theirs {said}. So the correction is not "
        "settled, and a clip hides that. Compare with Denoise(), and do not trust log Z."
    )
    return Choice(
        clipped,
        f"Chosen: FeynmanKac({clipped.particles}, clip=15). By their evidence {said}; a clip bounds what wrong "
        "scores can do.",
        (*doubts, torn),
    )


def _clipped(most: int) -> FeynmanKac:
    return FeynmanKac(min(_FIRST, most), clip=15.0)


def by_stand_in(pilots: Pilots, most: int, signal: float) -> Choice:
    """Return the sampler whose outputs are nearest to what the sources' own draws compose to, if they compose.

    Args:
        signal: the variance of log-weights of samples that only add scores.
    """
    q, seed = pilots.q, pilots.seed
    choice = by_agreement(pilots, most)
    stand = stand_in(q, seed)
    drawn = None if stand is None else outputs(stand, derive(seed, "expected"), _SWARMS)
    if drawn is None:
        return choice._replace(reason=choice.reason + UNKNOWN)
    expected, others = drawn
    settled = isinstance(choice.sampler, FeynmanKac) and choice.sampler.clip is None and len(pilots.runs) == 1
    for sampler in (Denoise(),) if settled else (Denoise(), _clipped(most)):  # a clip takes from what all agree on
        pilots.run(sampler)
    away = {sampler: distance(q, some_particles(run, seed), expected)
            for sampler, run in pilots.runs.items() if run is not None}  # fmt: skip
    if not away:
        return choice._replace(reason=choice.reason + UNKNOWN)
    best, own = min(away, key=away.__getitem__), distance(q, others, expected)
    doubts = choice.doubts if best == choice.sampler else ()
    doubts += left_as_they_are(signal) if isinstance(best, Denoise) else ()
    return Choice(best, _judged(best, away, own), doubts + _at_odds(away[best], own))


def _judged(best: Sampler, away: dict[Sampler, float], own: float) -> str:
    """What was compared, in words."""
    said = ", ".join(f"{value:.2f} of {_short(sampler)}" for sampler, value in away.items())
    return (
        f"Chosen: {_short(best)}. Nothing is known of the error of these scores, so samplers were judged by what "
        f"mixtures fitted to each condition's own draws compose to: outputs are away from that by {said}, two draws of "
        f"it by {own:.2f} (sliced W2 of asinh, in deviations of the data)."
    )


def _at_odds(nearest: float, own: float) -> tuple[str, ...]:
    """What speaks against networks none of whose samplers comes near to what their own draws compose to."""
    if nearest <= max(_AWAY * own, _FAR):
        return ()
    return (
        "a composition of networks should look like what their own draws of each condition compose to; the nearest "
        f"sampler's outputs are {nearest:.2g} deviations away, {nearest / own:.0f} times as far as two draws of that. "
        "So the networks are wrong where the composition lies, or no small mixture fits their draws. Fit with "
        "kind='structured', and compare.",
    )


def left_as_they_are(signal: float) -> tuple[str, ...]:
    """Return what speaks against samples that stay uncorrected though there is much to correct."""
    if signal <= _LITTLE:
        return ()
    return (
        "adding scores should leave little to correct where no correction can be trusted; here the log-weights of its "
        f"samples have a variance of {signal:.2g}. So neither these nor weighted samples need be near the composition. "
        "Take more data, or conditions that overlap more.",
    )


def _short(sampler: Sampler) -> str:
    """A sampler by what is chosen of it."""
    if not isinstance(sampler, FeynmanKac):
        return "Denoise"
    return f"FeynmanKac({sampler.particles}{'' if sampler.clip is None else ', clip=15'})"
