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

from torch import Tensor

if TYPE_CHECKING:
    from polyscore.samplers.run import Run

_FAR = 30  # times the median distance: of Gaussian samples in one dimension, one in 10^90 is beyond
_FEWEST = 20  # swarms below which shares among them say nothing
_ALONE = 0.05  # share of the way from 1 to K below which single particles hold the weight
_DECIDES = 0.5  # share of all loss of log ESS in one step, and nats of it, beyond which that step decides
_DISAGREE = 0.3  # effective share of swarms by their evidence; the bias in total variation is then up to 0.76
_IMPOSSIBLE = 0.1  # nats beyond what is possible, besides four standard errors


def findings(run: Run) -> list[str]:
    """Return a sentence for everything that makes the run doubtful."""
    particles = run.log_weights.shape[1]
    found = [_of_strays(run)]
    if particles > 1:
        found += [
            _of_weights(run, particles),
            _of_ancestors(run, particles),
            _of_steps(run),
            _of_swarms(run, particles),
        ]
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
    if particles < 4 or alone < 0.9:
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
    share = run.evidence_share
    if len(run.samples) < _FEWEST or not share < _DISAGREE:
        return ""
    return (
        f"swarms should agree on the evidence; by theirs only {100 * share:.2g} % of {len(run.samples)} count, so that "
        f"K = {particles} does not settle the correction. Use more particles until this stops, or Denoise."
    )


def _of_evidence(run: Run) -> str:
    value, (low, high) = run.total_log_evidence, run.possible_log_evidence
    slack = _IMPOSSIBLE + 4 * run.log_evidence_error
    if math.isnan(value) or math.isnan(slack) or low - slack <= value <= high + slack:
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
    if not math.isnan(run.total_log_evidence):
        error = run.log_evidence_error
        doubt = f" ± {error:.2g}" if error == error else ", of one swarm"
        lines.append(f"log Z = {run.total_log_evidence:.4g}{doubt}.")
    if run.clipped_fraction:
        lines.append(f"The clip changed {100 * run.clipped_fraction:.2g} % of the log-weight rates.")
    if run.reason:
        lines.append(run.reason)
    found = run.findings
    lines += [f"- {finding}" for finding in found] or ["Nothing speaks against it."]
    return "\n".join(lines)


def _swarm_line(run: Run, particles: int) -> str:
    lowest, kept = run.lowest_ess.float(), run.unique_ancestors.float()
    return (
        f"Swarms of {particles} particles: the effective sample size fell to {lowest.median():.3g} in the median swarm "
        f"and to {lowest.min():.3g} in the worst; {kept.median():.3g} starting particles are left in the median one, "
        f"{kept.min():.3g} in the worst."
    )
