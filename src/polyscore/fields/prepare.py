"""A composition prepared for a grid of times: `field(x, i) -> (S, excess)`.

A sampler visits the same few hundred times for every particle, so what depends on time alone is computed once, in
float64. Gaussians become one affine map and one quadratic form a step, whatever the number of conditions:

    S = c - P x,     |S|^2 - sum w |s_a|^2 = x'Q x - 2 l'x + k.

Mixtures need one matrix of component logits, linear in x where they share a covariance, else in its products too.
Everything else asks its family. `excess` is
|S|^2 - sum_a w_a |s_a|^2, the part of the residual that needs the single scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyscore.algebra import Composition
from polyscore.distributions.components import Components
from polyscore.fields.field import Field
from polyscore.fields.gaussian import GaussianField
from polyscore.fields.mixture import MixtureField
from polyscore.fields.network import NetworkField
from polyscore.fields.scores import ScoreField
from polyscore.fields.unlike import UnlikeField
from polyscore.models.network import NetworkCondition, common_networks, network_conditions


def prepare(q: Composition, times: Tensor, like: Tensor) -> Field:
    """Return the fastest field for `q` on `times` `(T,)` (float64), in the dtype and on the device of `like`."""
    if q.is_gaussian:
        return GaussianField(q, times, like)
    if (mixtures := q.mixtures) is not None:
        if _share_covariance(mixtures):
            return MixtureField(q, times, like)
        return UnlikeField(q, times, like) if UnlikeField.serves(mixtures, times, like) else ScoreField(q, times, like)
    columns = [network_conditions(factor) for factor in q.factors]
    if _same_networks(columns):
        return NetworkField(q, columns, times, like)
    return ScoreField(q, times, like)


def _same_networks(columns: list[list[NetworkCondition]]) -> bool:
    """Whether all parts rest on the same networks, which can be evaluated as one."""
    return len({(group.network.alike, group.precision) for group in common_networks(columns)}) == 1


def _share_covariance(mixtures: list[Components]) -> bool:
    """Whether every component of every factor has one covariance."""
    covariances = torch.cat([components.covariances for components in mixtures])
    return torch.allclose(covariances, covariances[:1], rtol=1e-12, atol=0)
