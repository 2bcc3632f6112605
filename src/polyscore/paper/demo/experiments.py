"""What the demonstration computes: experiments like any others, smaller than the paper's in runs and networks."""

from __future__ import annotations

import dataclasses
from typing import Any

from polyscore.experiments.experiment import Experiment, quick
from polyscore.experiments.protocol import Protocol
from polyscore.paper.demo.scenes import HARMED
from polyscore.paper.specs import PROTOCOL, experiment
from polyscore.samplers import FeynmanKac

GAUSSIANS = (
    "gaussian-factorized-id",
    "gaussian-nonfactorized-id",
    "gaussian-factorized-ood",
    "gaussian-nonfactorized-ood",
)
_TINY: dict[str, Any] = {"swarms": 256, "projections": 100}


def ours(protocol: Protocol) -> Protocol:
    """Return a protocol with `FeynmanKac` as it is by default in place of the paper's sampler."""
    sampler = FeynmanKac()
    fields = {name: getattr(sampler, name) for name in ("steps", "clip", "grid", "integrator", "quadrature", "start")}
    return dataclasses.replace(protocol, corrected=True, **fields)


def analytic_experiments(seed: int = 1, tiny: bool = False) -> dict[str, tuple[Experiment, Experiment]]:
    """Return, by setting, the analytic column with the paper's sampler and with ours, at the paper's own sizes.

    Args:
        tiny: sizes for a look at the output in a few seconds; its numbers mean little.
    """
    letter = dataclasses.replace(PROTOCOL, first_seed=seed, **(_TINY | {"steps": 50} if tiny else {}))
    sizes: dict[str, Any] = {"runs": 2, "particles": (1, 4)} if tiny else {"runs": 3, "particles": (1, 4, 16)}
    sizes["metrics"] = ("sw2",)  # the other would take longer than the sampling
    return {
        name: (
            experiment(name, "analytic", **sizes, protocol=letter, label=f"{name} published"),
            experiment(name, "analytic", **sizes, protocol=ours(letter), label=f"{name} ours"),
        )
        for name in GAUSSIANS
    }


def learned_experiment(seed: int = 1, tiny: bool = False) -> Experiment:
    """Return the experiment with scores learned on the spot; `tiny` is for looking at the output, not its numbers."""
    small = quick(experiment(HARMED, conditions_alone=False, train_sizes=(100, 10_000), runs=2))
    sizes: dict[str, Any] = {"swarms": 1000}
    if tiny:
        sizes = {"swarms": 128, "steps": 20, "train_steps": 50, "width": 16, "projections": 50}
    protocol = dataclasses.replace(ours(small.protocol), first_seed=seed)
    return dataclasses.replace(small, protocol=dataclasses.replace(protocol, **sizes))
