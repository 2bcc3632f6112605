"""What a sampler returns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import DegeneracyWarning
from polyscore.sample_file import check_sample_file, write_samples
from polyscore.smc import unique_ancestors

_FAR = 30  # times the median distance: of Gaussian samples in one dimension, one in 10^90 is beyond


@dataclass(frozen=True, repr=False)
class Run:
    """The result of sampling N swarms of K particles.

    Attributes:
        samples: one particle per swarm, drawn by its final weight, `(N, *event)`.
        particles: all of them, `(N, K, *event)`.
        log_weights: unnormalised, since the last resampling, `(N, K)`.
        log_evidence: each swarm's estimate of log Z, `(N,)`; exp of it is unbiased up to the time step. NaN for
            `Denoise`, which carries no weights.
        ess: effective sample size after each step, before resampling, `(steps, N)`.
        ancestors: the starting slot from which each particle descends, `(N, K)`.
        clipped_fraction: share of log-weight rates that the clip changed.
        reason: why this sampler, where an automatic choice was made.
        arithmetic: what the scores were computed in: "closed form", "model" (whatever it does), or for networks
            "table", "fp16", "tf32" or "float32"; chunks that differ are named in their order, "table, float32".
        ancestry: the slot before each step from which a particle descends, `(steps, N, K)`, if it was asked for.
        variables: names of the coordinates, where the family has them.
    """

    samples: Tensor
    particles: Tensor
    log_weights: Tensor
    log_evidence: Tensor
    ess: Tensor
    ancestors: Tensor
    clipped_fraction: float
    reason: str = ""
    arithmetic: str = ""
    ancestry: Tensor | None = None
    variables: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line a fact; the tensors are there to be asked."""
        swarms, particles = self.log_weights.shape
        flat = self.samples.double().flatten(1)
        names = self.variables or tuple(f"x{k + 1}" for k in range(flat.shape[1]))
        columns = zip(names[:6], flat.mean(0).tolist(), flat.std(0, correction=0).tolist(), strict=False)
        moments = ", ".join(f"{name} {mean:.4g} ± {std:.3g}" for name, mean, std in columns)
        more = f", ... ({len(names)} variables)" if len(names) > 6 else ""
        evidence = self.total_log_evidence
        weights = "no weights" if math.isnan(evidence) else f"log evidence {evidence:.4g}"
        event = " x ".join(map(str, self.samples.shape[1:]))
        return (
            f"Run of {swarms} swarms of {particles} particles, points of {event} in {self.samples.dtype}\n"
            f"  mean ± deviation: {moments}{more}\n  {weights}; computed in {self.arithmetic or 'unknown arithmetic'}"
        )

    def save(self, path: str | Path, *, force: bool = False, about: Mapping[str, Any] | None = None) -> Path:
        """Write the samples, by the path's ending: .csv or .parquet, one row each under the variables' names, or .npz.

        Args:
            force: replace a file that is there.
            about: kept in an npz file as JSON, beside each swarm's evidence, lowest ESS and surviving ancestors.
        """
        path = check_sample_file(path, force)
        others = {
            "log_evidence": self.log_evidence.cpu().numpy(),
            "lowest_ess": self.ess.amin(0).cpu().numpy(),
            "unique_ancestors": self.unique_ancestors.cpu().numpy(),
        }
        samples = self.samples.float() if self.samples.dtype == torch.bfloat16 else self.samples  # NumPy has none
        return write_samples(path, samples.cpu().numpy(), self.variables, others, about or {})

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
    def strays(self) -> int:
        """How many of 20 samples or more are over 30 times as far from their middle as the median one.

        None where scores are in closed form: such samples belong to the target.
        """
        if self.arithmetic == "closed form":
            return 0
        distances = (self.samples - self.samples.median(0).values).flatten(1).norm(dim=1)
        return int((distances > _FAR * distances.median()).sum()) if len(distances) >= 20 else 0

    def warn_if_degenerate(self) -> None:
        """Warn of strays, and when the median swarm's effective sample size, of 8 particles or more, fell below 1.5."""
        strays = self.strays
        if strays:
            warnings.warn(
                f"samples must stay together; {strays} of {len(self.samples)} are over {_FAR} times as far from the "
                "middle as the median one. Unless the target has such a part, scores point away from all data out "
                "there: trust no mean or distance that counts them; train on more data, or for fewer steps.",
                DegeneracyWarning,
                stacklevel=3,
            )
        particles = self.log_weights.shape[1]
        if particles < 8 or not len(self.ess):
            return
        lowest = self.ess.amin(0).float().median().item()
        if lowest < 1.5:
            warnings.warn(
                f"the median swarm's effective sample size fell to {lowest:.2f} of {particles}: single particles "
                "hold the weight. Use more steps or particles, or a clip, and do not trust the evidence.",
                DegeneracyWarning,
                stacklevel=3,
            )
