"""What a finished run says about itself: findings that make it doubtful, and a summary in words.

Of swarms of two particles or more: how few hold the weight, how few starting particles are left (of four or more),
whether one step decides, and whether swarms agree on the evidence; of all runs: whether samples ran away, and whether
the evidence is possible. A swarm's output is off by the covariance of its
evidence estimate with what is measured, so in total variation by at most half the deviation of Z^ / Z: swarms that
disagree are a bias, not only noise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from polyscore.samplers.run import Run

_FAR = 30  # times the median distance: of Gaussian samples in one dimension, one in 10^90 is beyond
_FEWEST = 20  # swarms below which shares among them say nothing
_ALONE = 0.05  # share of the way from 1 to K below which single particles hold the weight
_DECIDES = 0.5  # share of all loss of log ESS in one step, and nats of it, beyond which that step decides
_AGREE = 0.8  # effective share of swarms from which even a few tell the error of log Z
_DISAGREE = 0.3  # effective share of swarms by their evidence; the bias in total variation is then up to 0.76
_POOLED, _MANY = 0.1, 100  # effective share and number of swarms below which pooled outputs are those of few
_MOVED = 0.05  # deviations by which evidence may move a mean or a width
_UNIT = (0.03, 30.0)  # widths beyond which data are not of unit size: 0.01 comes out with 14 times its variance
_TAIL, _OUTSIDE = 4, 10  # deviations beyond which thousands of rows have none, and that are out of any question
_UNCERTAIN = 0.3  # deviations by which other data would move a mean or a width
_STUCK = 0.1  # acceptance over all levels below which a kernel hardly moves
_CLIPPED = 0.01  # share of rates that a clip may change and log Z still be read
_IMPOSSIBLE = 0.1  # nats beyond what is possible, besides four standard errors


def findings(run: Run) -> list[str]:
    """Return a sentence for everything about a result that makes it doubtful."""
    particles = run.log_weights.shape[1]
    found = [_of_strays(run), _of_reach(run), _of_outside(run), _of_data(run), _of_width(run), _of_acceptance(run)]
    if particles > 1:
        found += [_of_weights(run, particles), _of_ancestors(run, particles), _of_steps(run)]
        found += [_of_shift(run, particles)]
    if particles > 1 or run.pooled:
        found += [_of_swarms(run, particles)]
    return [sentence for sentence in [*found, _of_evidence(run)] if sentence]


def strays(samples: Tensor) -> int:
    """Count the samples that are over 30 times as far from their middle as the median one; 0 of fewer than 20."""
    distances = (samples - samples.median(0).values).flatten(1).norm(dim=1)
    return int((distances > _FAR * distances.median()).sum()) if len(distances) >= _FEWEST else 0


def _of_strays(run: Run) -> str:
    count = run.strays
    if not count:
        return ""
    return (
        f"samples must stay together; {count} of {len(run.samples)} are over {_FAR} times as far from the middle as "
        "the median one. Unless the target has such a part, scores point away from all data out there: trust no mean "
        "or distance that counts them; train on more data, or for fewer steps."
    )


def _of_reach(run: Run) -> str:
    if not run.reach > _OUTSIDE:
        return ""
    return (
        f"samples should lie where the data were; half of them are {run.reach:.3g} deviations of the training data "
        "away, or more, in some variable. Train for longer, or look at each condition by itself first."
    )


def _of_outside(run: Run) -> str:
    name, away = run.outside
    if not away > _OUTSIDE:
        return ""
    return (
        f"samples should lie where their conditions have data; half of them are {away:.3g} deviations outside of "
        f"{name!r}, or more. There a fit says how its form falls off, and no row whether that is so. Take conditions "
        "that overlap more; else this is an extrapolation, and log Z is one too."
    )


def _of_data(run: Run) -> str:
    if not run.moved > _UNCERTAIN:
        return ""
    return (
        "data should settle where a composition lies; as many other rows would move its mean or width by "
        f"{run.moved:.2g} deviations (a standard error). No sampler mends that: take more rows of the conditions that "
        "have few, or exponents nearer to 0."
    )


def _of_width(run: Run) -> str:
    least, most = _UNIT
    if run.sized or not (run.width < least or run.width > most) or len(run.samples) < _FEWEST:
        return ""
    remedy = (
        "Standardise the data, name its units: Family(members, units=(shift, scale)), or write its moments()."
        if math.isnan(run.reach)  # else they are in units
        else "Train for longer, or look at each condition by itself first."
    )
    return (
        "sources of unknown size should be about 1 wide, for which noise and steps are chosen; these samples are "
        f"{run.width:.2g} wide. {remedy}"
    )


def _of_acceptance(run: Run) -> str:
    if run.acceptance is None or not run.acceptance.mean() < _STUCK:
        return ""
    return (
        f"proposals should be accepted more often; {100 * run.acceptance.mean():.3g} % were, so that kernels hardly "
        "move a particle. Use a smaller size of their steps."
    )


def _of_shift(run: Run, particles: int) -> str:
    """Compare plain and evidence-weighted moments: a swarm's output is off by the covariance with its evidence."""
    moved, error = (0.0, 0.0) if run.pooled else shift(run)
    if len(run.samples) < 5 * _FEWEST or not moved > max(_MOVED, 5 * error):
        return ""
    trusted = "" if run.arithmetic == "closed form" else "with scores that you trust "
    return (
        "K should be large enough for swarms to count alike; weighted by their evidence, the samples' mean or width "
        f"would be {moved:.2g} deviations elsewhere: a bias of about that size is left by K = {particles}. Use "
        f"{4 * particles} particles, or {trusted}pooled=True, which draws outputs from all swarms by their evidence."
    )


def shift(run: Run) -> tuple[float, float]:
    """Return by how many deviations a coordinate's mean or deviation moves when swarms count by their evidence.

    And the standard error of that difference; the largest over coordinates and the two moments, by the first.
    """
    x = run.samples.double().flatten(1)
    shares = torch.softmax(run.log_evidence.double(), 0)[:, None]
    spare = shares - 1 / len(x)
    deviation = x.std(0, correction=0).clamp_min(torch.finfo(torch.float64).tiny)
    z = (x - x.mean(0)) / deviation
    features = torch.cat([z, 0.5 * z.square()], dim=1)
    moved = (spare * features).sum(0)
    error = (spare * (features - (shares * features).sum(0))).square().sum(0).sqrt()
    worst = int((moved.abs() - 5 * error).argmax())
    return moved[worst].abs().item(), error[worst].item()


def _of_weights(run: Run, particles: int) -> str:
    lowest = run.lowest_ess.float().median().item()
    if lowest >= 1 + min(0.5, _ALONE * (particles - 1)):
        return ""
    return (
        f"weight should be shared; the median swarm's effective sample size fell to {lowest:.2f} of {particles}, so "
        "that single particles hold it. Use more steps or particles, or a clip, and do not trust the evidence."
    )


def _of_ancestors(run: Run, particles: int) -> str:
    alone = (run.unique_ancestors == 1).float().mean().item()
    if particles < 4 or alone < 0.5:
        return ""
    return (
        f"swarms should keep several of their {particles} starting particles; {100 * alone:.0f} % descend from one. "
        "Their samples are one draw each, and no better than a few particles would give. Use a threshold below 1, or "
        "window=, to resample less often; compare with a smaller K."
    )


def _of_steps(run: Run) -> str:
    losses = run.step_losses.double()
    total, worst = losses.sum().item(), int(losses.argmax())
    if len(losses) < 8 or not losses[worst] > max(_DECIDES, _DECIDES * total):
        return ""
    return (
        f"no single step should decide; step {worst + 1} of {len(losses)} costs {100 * losses[worst] / total:.0f} % of "
        "all that the weights cost. Near the data that is an error of the scores, not of the samplers: use a clip, or "
        "fewer particles; at the start, a schedule that ends in noise."
    )


def _of_swarms(run: Run, particles: int) -> str:
    share, swarms = run.evidence_share, len(run.samples)
    if swarms < _FEWEST or not share < _DISAGREE:
        return ""
    if run.pooled and share >= _POOLED and run.effective_swarms >= _MANY:
        return ""
    return (
        f"swarms should agree on the evidence; by theirs only {100 * share:.3g} % of {swarms} count, so that "
        f"K = {particles} does not settle the correction{_and_no_error(run)}. Use more particles until this stops, or "
        "Denoise."
    )


def tells_error(effective: float, swarms: int) -> bool:
    """Whether so many effective swarms of all tell the error of log Z; those without weights tell nothing."""
    return effective >= _FEWEST or effective >= _AGREE * swarms


def _and_no_error(run: Run) -> str:
    return "" if tells_error(run.effective_swarms, len(run.samples)) else ", and the error of log Z is unknown"


def _of_evidence(run: Run) -> str:
    value, (low, high) = run.total_log_evidence, run.possible_log_evidence
    error = run.log_evidence_error
    slack = _IMPOSSIBLE + 4 * (error if error == error else 1.0)  # what swarms that disagree would say at most
    if math.isnan(value) or len(run.samples) < 2 or low - slack <= value <= high + slack:
        return ""
    rule = f"at least {low:g}" if value < low else f"at most {high:g}"
    return (
        f"log Z of such a composition must be {rule}; the estimate is {value:.3g}. Scores that belong to no densities, "
        "or too few steps or particles, give that: do not trust the correction."
    )


def possible_log_evidence(exponents: list[float]) -> tuple[float, float]:
    """Return the least and the largest log Z of prod_a p_a^{w_a} over all densities, where W = 1.

    Hoelder: at most 0 if no exponent is negative. Reversed, with one positive exponent: at least 0. No bound otherwise;
    with W other than 1 the units of the data move log Z anywhere.
    """
    if abs(sum(exponents) - 1) > 1e-9:
        return -math.inf, math.inf
    positive = sum(w > 0 for w in exponents)
    low = 0.0 if positive == 1 else -math.inf
    return low, 0.0 if positive == len(exponents) else math.inf


def summary(run: Run) -> str:
    """Return what happened, in words: a few lines that end in what to think of it."""
    swarms, particles = run.log_weights.shape
    what = f"{swarms} samples of {run.composition or 'a composition'} by {run.sampler or 'a sampler'}"
    lines = [f"{what}, scores by {run.arithmetic}." if run.arithmetic else f"{what}."]
    if particles > 1:
        lines.append(_swarm_line(run, particles))
    if run.pooled:
        lines.append(f"Samples are drawn from all swarms, by their evidence: {run.effective_swarms:.3g} count.")
    if not math.isnan(run.total_log_evidence):
        doubt = _doubt(run, swarms)
        told = run.arithmetic == "closed form" or "±" not in doubt
        learned = "" if told else " (the error among swarms; that of the models is not in it)"
        lines.append(f"log Z = {run.total_log_evidence:.4g}{doubt}{learned}.")
    if run.moved <= _UNCERTAIN:
        lines.append(f"As many other rows of data would move its mean or width by {run.moved:.2g} deviations.")
    if _TAIL < run.outside[1] <= _OUTSIDE:
        name, away = run.outside
        lines.append(f"Half of the samples lie {away:.2g} deviations outside of {name!r}, in tails that no row shows.")
    if run.acceptance is not None:
        share, worst = 100 * run.acceptance.mean(), 100 * run.acceptance.min()
        lines.append(f"Of the proposals {share:.3g} % were accepted, and {worst:.3g} % at the level where fewest were.")
    if run.clipped_fraction:
        lines.append(f"The clip changed {100 * run.clipped_fraction:.3g} % of the log-weight rates.")
    if run.reason:
        lines.append(run.reason)
    found = run.findings
    lines += [f"- {finding}" for finding in found] or [verdict(run)]
    return "\n".join(lines)


def is_biased(clipped_fraction: float) -> bool:
    """Whether a clip changed so many rates that log Z has no error to be told."""
    return clipped_fraction > _CLIPPED


def _doubt(run: Run, swarms: int) -> str:
    """What follows log Z: its error, or why there is none."""
    if is_biased(run.clipped_fraction):
        return ", biased by the clip, and nobody knows by how much"
    if (error := run.log_evidence_error) == error:
        return f" ± {error:.2g}"
    return (
        ", of one swarm" if swarms == 1 else f", error unknown: {run.effective_swarms:.2g} of {swarms} swarms hold it"
    )


def verdict(run: Run) -> str:
    """What can be said where nothing was found."""
    composed = run.composition and run.possible_log_evidence != (0.0, 0.0)  # which is known of one condition alone
    unweighted = run.log_weights.shape[1] == 1 and not run.pooled
    if unweighted and composed and run.reason:
        return "Scores were added without weights, for the reason above; FeynmanKac(16) shows what those would change."
    if unweighted and composed:
        return "Without weights nothing is known of the error of adding scores: compare with FeynmanKac(16)."
    return "Nothing speaks against it; compare another K and seed before you believe it."


def _swarm_line(run: Run, particles: int) -> str:
    lowest, kept = run.lowest_ess.float(), run.unique_ancestors.float()
    return (
        f"Swarms of {particles} particles: the effective sample size fell to {lowest.median():.3g} in the median swarm "
        f"and to {lowest.min():.3g} in the worst; {kept.median():.3g} starting particles are left in the median one, "
        f"{kept.min():.3g} in the worst."
    )
