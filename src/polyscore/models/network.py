"""Our networks behind conditions: one evaluation serves all conditions of a group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyscore.devices import without_autocast
from polyscore.models.asking import time_like
from polyscore.models.calls import PRECISIONS
from polyscore.models.ensemble import Ensemble
from polyscore.models.group import Condition, Group
from polyscore.models.units import Units
from polyscore.nn import ScoreNetwork
from polyscore.schedules import T_MAX, T_MIN, Schedule

__all__ = ["PRECISIONS", "Network", "NetworkCondition", "common_networks", "network_conditions"]


class Network(Group):
    """The group behind a conditional or separate network: one evaluation serves all its conditions.

    Args:
        precision: "fp16" (tensor cores on a GPU, float32 elsewhere), "table" (the same; where some 260,000 particles or
            more move in the plane, they are interpolated from a fine table of the network), "auto" (that on a GPU; on a
            CPU, a table as coarse as its own check allows), "bf16", "tf32" or "float32". Without tables, and so with
            "float32", a swarm on a CPU has the same bytes in whatever company.
        units: (shift, scale) of the standardised coordinates in which it was trained, or None.
    """

    def __init__(
        self,
        network: ScoreNetwork,
        schedule: Schedule,
        precision: str = "auto",
        units: Units | tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__((network.dim,), schedule, units)
        self.network = network
        self.set_precision(precision)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.device

    def to(self, device: torch.device | str) -> None:
        """Move the network."""
        self.network.to(device)

    def set_compile(self, compile: bool) -> None:
        """Leave it as it is: kernels of its own, or one CUDA graph a step, are there already."""

    def ask(self, x: Tensor, t: Tensor, members: Sequence[Condition]) -> Tensor:
        """Return `scores`: outside of samplers in float32, whatever their precision."""
        return self.scores(x, t, members)

    def condition(self, index: int) -> NetworkCondition:
        """Return a member of a family: the index-th condition of the network."""
        return NetworkCondition(self, index)

    def scores(self, x: Tensor, t: Tensor | float, members: Sequence[Condition]) -> Tensor:
        """Return the scores of some conditions at standardised points, `(A, *x.shape)`.

        The network itself computes in float32.
        """
        t = time_like(t, x).clamp(T_MIN, T_MAX)
        picked = self.network.pick([member.index for member in members])
        sigma = self.schedule.sigma(t)
        with without_autocast(x.device):
            noise = picked.noise_at(x.float(), t.float()).to(x.dtype)
        return -noise / (sigma[..., None] if t.ndim else sigma)


class NetworkCondition(Condition):
    """One condition of a `Network`."""

    group: Network
    index: int

    def __repr__(self) -> str:
        return repr(self.group.network)


def common_networks(columns: Sequence[Sequence[NetworkCondition]]) -> list[Network]:
    """Return the networks on which all members rest, in one order; none where members differ in them."""
    groups = [model.group for model in columns[0]]
    return groups if all([model.group for model in column] == groups for column in columns) else []


def network_conditions(member: object) -> list[NetworkCondition]:
    """Return the networks' conditions behind a member: its own, or those of an ensemble's models.

    None where anything else is among them, an ensemble in an ensemble for instance.
    """
    models = member.models if isinstance(member, Ensemble) else [member]
    conditions = [model for model in models if isinstance(model, NetworkCondition)]
    return conditions if len(conditions) == len(models) else []
