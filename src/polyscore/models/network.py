"""Networks behind conditions: one evaluation serves all conditions of a group."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyscore.devices import without_autocast
from polyscore.errors import require
from polyscore.models.ensemble import Ensemble
from polyscore.models.learned import time_like
from polyscore.models.units import Units, per_unit, standardise
from polyscore.nn.mlp import ScoreNetwork
from polyscore.schedules import T_MAX, T_MIN, Schedule

PRECISIONS = ("auto", "table", "fp16", "tf32", "float32")


class Network:
    """The group behind a conditional or separate network: one evaluation serves all its conditions.

    Args:
        precision: "fp16" (tensor cores on a GPU, float32 elsewhere), "table" (the same; where some 260,000 particles or
            more move in the plane, they are interpolated from a table of the network), "auto" (tables on a GPU alone:
            on a CPU a swarm then has the same bytes in whatever company), "tf32" or "float32".
        units: (shift, scale) of the standardised coordinates in which it was trained, or None.
    """

    def __init__(
        self, network: ScoreNetwork, schedule: Schedule, precision: str = "auto", units: Units | None = None
    ) -> None:
        self.network, self.schedule, self.units = network, schedule, units
        self.set_precision(precision)

    def set_precision(self, precision: str) -> None:
        """Choose how samplers evaluate the network."""
        require(precision in PRECISIONS, "precision", f"be one of {', '.join(PRECISIONS)}", repr(precision))
        self.precision = precision

    def scores(self, x: Tensor, t: Tensor | float, members: Sequence[NetworkCondition]) -> Tensor:
        """Return the scores of some conditions at standardised points, `(A, *x.shape)`.

        The network itself computes in float32.
        """
        t = time_like(t, x).clamp(T_MIN, T_MAX)
        picked = self.network.pick([member.index for member in members])
        sigma = self.schedule.sigma(t)
        with without_autocast(x.device):
            noise = picked.noise_at(x.float(), t.float()).to(x.dtype)
        return -noise / (sigma[..., None] if t.ndim else sigma)


class NetworkCondition:
    """One condition of a `Network`; a member of a family."""

    def __init__(self, group: Network, index: int, event: tuple[int, ...]) -> None:
        self.group, self.index, self.event = group, index, event
        self.schedule: Schedule = group.schedule
        self.units = group.units

    def score(self, y: Tensor, t: Tensor | float) -> Tensor:
        """Return the score, like y, both in the data's units."""
        return per_unit(self.standard_score(standardise(y, self.units), t), self.units)

    def standard_score(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Return the score in the coordinates of the training, like x."""
        return self.group.scores(x, t, [self])[0]

    def __repr__(self) -> str:
        network = self.group.network
        kind = "conditional" if network.shared else "separate"
        return f"a {kind} network of {len(network.hidden) + 1} x {network.width}, {network.activation}"


def common_networks(columns: Sequence[Sequence[NetworkCondition]]) -> list[Network]:
    """Return the networks on which all members rest, in one order; none where members differ in them."""
    groups = [model.group for model in columns[0]]
    return groups if all([model.group for model in column] == groups for column in columns) else []


def network_conditions(member: object) -> list[NetworkCondition]:
    """Return the networks' conditions behind a member: its own, or those of an ensemble's models.

    None where anything else is among them, an ensemble in an ensemble for instance.
    """
    models = member.members if isinstance(member, Ensemble) else [member]
    conditions = [model for model in models if isinstance(model, NetworkCondition)]
    return conditions if len(conditions) == len(models) else []
