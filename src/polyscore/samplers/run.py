"""What a sampler returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import ArgumentError
from polyscore.files.samples import check_sample_file, write_samples
from polyscore.notices import warn
from polyscore.samplers import diagnosis
from polyscore.smc import unique_ancestors


@dataclass(frozen=True, repr=False)
class Run:
    """The result of sampling N swarms of K particles.

    Attributes:
        samples: one particle per swarm, drawn by its final weight, `(N, *event)`; as many from all swarms together, in
            random order, where they are `pooled`.
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
        arithmetic: what the scores were computed in: "closed form", "model" (whatever it does), "model in bf16" or
            "compiled model in tf32" as `Family.to` was told, or for networks "fp16", "bf16", "tf32" or "float32";
            "table" for either. Chunks that differ are named in their order, "table, float32", and so are steps.
        ancestry: the slot before each step from which a particle descends, `(steps, N, K)`, if it was asked for.
        acceptance: share of the kernels' proposals that were accepted at each noise level, `(steps,)`; None where no
            kernel makes any.
        pooled: whether samples were drawn from all swarms, each by its evidence.
        moved: by how many deviations other data would move a coordinate's mean or width; NaN where that is unknown.
        outside: the fitted condition from which samples lie farthest, and how many deviations outside.
        ess_history: `ess`, or None where it would have been too large to keep unasked.
        sampler, composition: what ran, as text.
        possible_log_evidence: the least and the largest log Z that any such composition can have.
        variables: names of the coordinates, where the family has them.
        doubts: what was warned of before and while it ran.
        width: deviation of the particles, averaged over coordinates, in the coordinates in which they were sampled.
        sized: whether the sizes of all sources were known beforehand; otherwise data about 1 wide were assumed.
        reach: the largest median |x| of a coordinate, in deviations of the training data; NaN where these are unknown.
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
    variables: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    reach: float = math.nan
    width: float = math.nan
    sized: bool = False
    acceptance: Tensor | None = None
    pooled: bool = False
    moved: float = math.nan
    outside: tuple[str, float] = ("", math.nan)

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

    def __repr__(self) -> str:
        """One line a fact; the tensors are there to be asked."""
        swarms, particles = self.log_weights.shape
        flat = self.samples.double().flatten(1)
        names = self.variables or tuple(f"x{k + 1}" for k in range(flat.shape[1]))
        columns = zip(names[:6], flat.mean(0).tolist(), flat.std(0, correction=0).tolist(), strict=False)
        moments = ", ".join(f"{name} {mean:.4g} ± {std:.3g}" for name, mean, std in columns)
        more = f", ... ({len(names)} variables)" if len(names) > 6 else ""
        evidence, doubts = self.total_log_evidence, len(self.findings)
        weights = "no weights" if math.isnan(evidence) else f"log evidence {evidence:.4g}"
        event = " x ".join(map(str, self.samples.shape[1:]))
        return (
            f"Run of {swarms} swarms of {particles} particles, points of {event} in {self.samples.dtype}\n"
            f"  mean ± deviation: {moments}{more}\n  {weights}; computed in {self.arithmetic or 'unknown arithmetic'}"
            + (f"\n  {doubts} finding(s) against it: run.summary() says which" if doubts else "")
        )

    def save(self, path: str | Path, *, force: bool = False, about: Mapping[str, Any] | None = None) -> Path:
        """Write the samples, by the path's ending: .csv or .parquet, one row each under the variables' names, or .npz.

        Args:
            force: replace a file that is there.
            about: kept in an npz file as JSON, beside each swarm's evidence, lowest ESS and surviving ancestors; with
                `pooled` where samples are from all swarms, and row i is not swarm i.
        """
        path = check_sample_file(path, force)
        others = {
            "log_evidence": self.log_evidence.cpu().numpy(),
            "lowest_ess": self.lowest_ess.cpu().numpy(),
            "unique_ancestors": self.unique_ancestors.cpu().numpy(),
        }
        samples = self.samples.float() if self.samples.dtype == torch.bfloat16 else self.samples  # NumPy has none
        told = {**(about or {}), **({"pooled": True} if self.pooled else {})}
        return write_samples(path, samples.cpu().numpy(), self.variables, others, told)

    @property
    def unique_ancestors(self) -> Tensor:
        """How many starting particles survive in each swarm, `(N,)`."""
        return unique_ancestors(self.ancestors)

    @property
    def total_log_evidence(self) -> float:
        """log of the mean evidence over swarms: the best single estimate of log Z."""
        return torch.logsumexp(self.log_evidence.double(), 0).item() - math.log(len(self.log_evidence))

    @property
    def log_evidence_error(self) -> float:
        """Standard error of `total_log_evidence` from the swarms' disagreement; NaN where that does not tell it.

        It tells nothing where so few swarms hold the evidence that others like them may not have been met: fewer than
        20 by `effective_swarms`, unless that is nearly all of them. The formula would say 1 at most, however wrong.
        """
        swarms, share = len(self.log_evidence), self.evidence_share
        if swarms < 2 or not diagnosis.tells_error(self.effective_swarms, swarms):
            return math.nan
        return math.sqrt(max(0.0, 1 / share - 1) / (swarms - 1))

    @property
    def effective_swarms(self) -> float:
        """Effective number of swarms by their evidence, from 1 to N; NaN without weights."""
        return len(self.log_evidence) * self.evidence_share

    @property
    def evidence_share(self) -> float:
        """Effective number of swarms, by their evidence, over N: 1 where all agree, 1/N where one holds all of it."""
        shares = torch.softmax(self.log_evidence.double(), 0)
        return 1 / (len(shares) * shares.square().sum().item()) if bool(shares.isfinite().all()) else math.nan

    @property
    def strays(self) -> int:
        """How many of 20 samples or more are over 30 times as far from their middle as the median one.

        0 where scores are in closed form: such samples belong to the target.
        """
        return 0 if self.arithmetic == "closed form" else diagnosis.strays(self.samples)

    @property
    def findings(self) -> list[str]:
        """What makes this result doubtful, a sentence each: what was warned of on the way, and what came of it."""
        return [*self.doubts, *diagnosis.findings(self)]

    def summary(self) -> str:
        """Return what happened, in words."""
        return diagnosis.summary(self)

    def warn_if_degenerate(self) -> None:
        """Warn of what came of it; what there was on the way has been warned of."""
        for finding in diagnosis.findings(self):
            warn(finding)
