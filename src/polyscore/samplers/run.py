"""What a sampler returns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyscore.errors import ArgumentError, warn
from polyscore.samplers import diagnosis
from polyscore.smc import unique_ancestors


@dataclass(frozen=True)
class Run:
    """The result of sampling N swarms of K particles.

    Attributes:
        samples: one particle per swarm, drawn by its final weight, `(N, *event)`.
        particles: all of them, `(N, K, *event)`.
        log_weights: unnormalised, since the last resampling, `(N, K)`.
        log_evidence: each swarm's estimate of log Z, `(N,)`; exp of it is unbiased up to the time step. NaN for
            `Denoise`, which carries no weights.
        lowest_ess: each swarm's least effective sample size, `(N,)`.
        mean_ess: effective sample size after each step, averaged over swarms, `(steps,)`.
        step_losses: log(K / ESS) that each step's gains alone cost, averaged over swarms, `(steps,)`.
        ancestors: the starting slot from which each particle descends, `(N, K)`.
        clipped_fraction: share of log-weight rates that the clip changed.
        reason: why this sampler, where an automatic choice was made.
        arithmetic: what the scores were computed in: "closed form", "model" (whatever it does), or for networks
            "table", "fp16", "tf32" or "float32"; chunks that differ are named in their order, "table, float32".
        ancestry: the slot before each step from which a particle descends, `(steps, N, K)`, if it was asked for.
        ess_history: `ess`, or None where it would have been too large to keep unasked.
        sampler, composition: what ran, as text.
        possible_log_evidence: the least and the largest log Z that any such composition can have.
    """

    samples: Tensor
    particles: Tensor
    log_weights: Tensor
    log_evidence: Tensor
    lowest_ess: Tensor
    mean_ess: Tensor
    step_losses: Tensor
    ancestors: Tensor
    clipped_fraction: float
    reason: str = ""
    arithmetic: str = ""
    ancestry: Tensor | None = None
    ess_history: Tensor | None = None
    sampler: str = ""
    composition: str = ""
    possible_log_evidence: tuple[float, float] = (-math.inf, math.inf)

    @property
    def ess(self) -> Tensor:
        """Effective sample size after each step, before resampling, `(steps, N)`."""
        if self.ess_history is None:
            raise ArgumentError(
                "the ESS of every step and swarm must be asked for where it has more than 5e7 entries; got "
                f"{len(self.mean_ess)} steps of {len(self.samples)} swarms. Pass history=True to sample, or use "
                "lowest_ess and mean_ess."
            )
        return self.ess_history

    @property
    def unique_ancestors(self) -> Tensor:
        """How many starting particles survive in each swarm, `(N,)`."""
        return unique_ancestors(self.ancestors)

    @property
    def total_log_evidence(self) -> float:
        """log of the mean evidence over swarms: the best single estimate of log Z."""
        count = torch.tensor(float(len(self.log_evidence)))
        return (torch.logsumexp(self.log_evidence.double(), 0) - count.log()).item()

    @property
    def log_evidence_error(self) -> float:
        """Standard error of `total_log_evidence` from the swarms' disagreement; NaN for fewer than two swarms."""
        return math.sqrt(max(0.0, 1 / self.evidence_share - 1) / len(self.log_evidence))

    @property
    def evidence_share(self) -> float:
        """Effective number of swarms, by their evidence, over N: 1 where all agree, 1/N where one holds all of it."""
        shares = torch.softmax(self.log_evidence.double(), 0)
        return 1 / (len(shares) * shares.square().sum().item()) if bool(shares.isfinite().all()) else math.nan

    @property
    def strays(self) -> int:
        """How many of 20 samples or more are over 30 times as far from their middle as the median one.

        None where scores are in closed form: such samples belong to the target.
        """
        return 0 if self.arithmetic == "closed form" else diagnosis.strays(self.samples)

    @property
    def findings(self) -> list[str]:
        """What makes this result doubtful, a sentence each; none is good news."""
        return diagnosis.findings(self)

    def summary(self) -> str:
        """Return what happened, in words."""
        return diagnosis.summary(self)

    def warn_if_degenerate(self) -> None:
        """Warn of every finding."""
        for finding in self.findings:
            warn(finding)
