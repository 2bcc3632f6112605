"""How far data support a composition of fitted mixtures: what other data would move, and how far out it lies.

Fits that as many points could as well have given (`alternatives`) compose to other densities q'. Samples of q, weighted
by q' / q, say where their mean and width would be, and no second run is needed; of Gaussians in many dimensions a
formula does. It takes the form of the fits for granted.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.algebra.alternatives import alternatives, fitted
from polyscore.samplers.run import Run
from polyscore.targets.closed_form import ClosedForm

_POINTS, _OTHERS = 512, 16  # samples that are asked, and redrawn fits
_ROUNDED = 0.1  # of a deviation of the data, from which it is not these samples that were drawn
_WEIGHABLE = 10  # coordinates up to which weighted samples and the formula agree


def supported(run: Run, q: Composition) -> Run:
    """Return the run with what its data say of it; as it is where no mixture was fitted, or rounding moved samples."""
    units = q.family.units
    if not fitted(q) or (units is not None and units.lost(run.samples.dtype) > _ROUNDED):
        return run
    return replace(run, moved=moved(q, run.samples), outside=farthest(q, run.samples))


def moved(q: Composition, samples: Tensor) -> float:
    """Return by how many deviations other data would move a coordinate's mean or width, as a standard error.

    NaN where nothing is known of the error: closed forms that nobody fitted, networks, fewer than two samples.

    Args:
        samples: of q, `(N, d)`, in the data's units.
    """
    x = _standard(q, samples)
    others = alternatives(q, _OTHERS) if q.has_density and len(x) > 1 else []
    if not others:
        return math.nan
    by_formula = q.is_gaussian and x.shape[1] > _WEIGHABLE
    shifts = (_among_gaussians if by_formula else _by_weights)(q, others, x)
    return shifts.square().mean(0).sqrt().max().item()


def _by_weights(q: Composition, others: list[Composition], x: Tensor) -> Tensor:
    """How far other compositions move mean and width of each coordinate, `(others, 2 d)`, of samples x."""
    deviation = x.std(0, correction=0).clamp_min(torch.finfo(x.dtype).tiny)
    z = (x - x.mean(0)) / deviation
    features = torch.cat([z, 0.5 * (z.square() - 1)], dim=1)
    own = _log_density(q, x)
    return torch.stack([torch.softmax(_log_density(other, x) - own, 0) @ features for other in others])


def _among_gaussians(q: Composition, others: list[Composition], x: Tensor) -> Tensor:
    """The same in closed form: of many coordinates few of the weighted samples would count, and move by chance."""
    if not all(each.validity().proper for each in (q, *others)):
        return _by_weights(q, others, x)
    own, *found = [ClosedForm(each).gaussian.components for each in (q, *others)]
    variance = own.covariances[0].diagonal()
    means = [(one.means[0] - own.means[0]) / variance.sqrt() for one in found]
    widths = [0.5 * (one.covariances[0].diagonal() / variance - 1) for one in found]
    return torch.cat([torch.stack(means), torch.stack(widths)], dim=1)


def farthest(q: Composition, samples: Tensor) -> tuple[str, float]:
    """Return the fitted condition that has least to say of the samples, and by how many deviations they lie outside.

    A Gaussian's log-density at r deviations is r^2 / 2 below that of its middle; so for the median sample and, instead
    of the middle, the median of the condition's own draws. ("", NaN) where no condition was fitted.
    """
    x, found = _standard(q, samples), {}
    for name, member in fitted(q).items():
        drawn = member.log_prob(member.sample(_POINTS, dtype=x.dtype)).median()
        found[name] = math.sqrt(2 * max(0.0, (drawn - member.log_prob(x).median()).item()))
    name = max(found, key=found.__getitem__, default="")
    return name, found.get(name, math.nan)


def _standard(q: Composition, samples: Tensor) -> Tensor:
    return q.family.standardise(samples[:_POINTS]).cpu().double()


def _log_density(q: Composition, x: Tensor) -> Tensor:
    one = torch.ones((), dtype=x.dtype)
    return q.standard_log_density(x, one, 0 * one)
