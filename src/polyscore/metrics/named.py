"""Metrics by name: functions of samples, a reference and options; a user registers more.

    @METRICS.register("far")
    def far(samples, reference, options):
        return (samples.norm(dim=-1) > 10).double().mean().item()

One whose reference has a default needs none, and can measure where nobody knows the exact answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from polyscore.metrics.mmd import mmd2
from polyscore.metrics.sliced import sliced_wasserstein
from polyscore.registry import Registry


@dataclass(frozen=True)
class Options:
    """What a metric may need beside points: a seed of the cell's own, and the projections of sliced W2."""

    seed: int = 0
    projections: int = 2000


Metric = Callable[[Tensor, Tensor, Options], float]
METRICS: Registry[Metric] = Registry("a metric", hint="Register it with METRICS.register, or name module:function.")


@METRICS.register("sw2")
def sw2(samples: Tensor, reference: Tensor, options: Options) -> float:
    """Return sliced Wasserstein-2."""
    return sliced_wasserstein(samples, reference, options.projections, options.seed)


METRICS.register("mmd2")(lambda samples, reference, options: mmd2(samples, reference))


def needs_reference(metric: Metric) -> bool:
    """Whether a metric compares with a reference: its second argument has no default, or nobody can tell."""
    try:
        second = list(inspect.signature(metric).parameters.values())[1:2]
    except (ValueError, TypeError):  # a builtin without a signature
        return True
    return not second or second[0].default is inspect.Parameter.empty
