"""Where the models behind members are, how to move them, and whether they are ready to be asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from polyscore.errors import require, shorten
from polyscore.models.calls import check_precision
from polyscore.models.ensemble import Ensemble
from polyscore.models.group import Group
from polyscore.models.learned import Learned
from polyscore.notices import warn


def groups_of(members: Iterable[Any]) -> list[Any]:
    """Return the groups behind members, each once."""
    found = (getattr(model, "group", None) for member in members for model in _models(member))
    return list({id(group): group for group in found if group is not None}.values())


def move(
    members: Iterable[Any], device: torch.device | str | None, precision: str | None, compile: bool | None = None
) -> None:
    """Move every model behind members to a device, and set how it is evaluated; None leaves it as it is."""
    members = list(members)
    require(compile in (None, True, False), "compile", "be True, False or None", shorten(compile),
            "Leave it out to change nothing.")  # fmt: skip
    if precision is not None:
        check_precision(precision)
    sources = [model.source for member in members for model in _models(member) if isinstance(model, Learned)]
    every = {id(group): group for group in (*groups_of(members), *sources)}
    for group in every.values():
        for name, value in (("to", device), ("set_precision", precision), ("set_compile", compile)):
            if value is not None and hasattr(group, name):  # a group need not offer more than scores
                getattr(group, name)(value)


def device_of(members: Iterable[Any]) -> torch.device:
    """Return where models behind members are; the CPU for closed forms."""
    members = list(members)
    places = [group.device for group in groups_of(members) if hasattr(group, "device")]
    places += [parameter.device for module in _modules(members) for parameter in module.parameters()]
    return places[0] if places else torch.device("cpu")


def warn_of_training(members: Iterable[Any]) -> None:
    """Warn of modules that answer otherwise in training: by chance, or by who else is in the batch."""
    members = list(members)
    inside = [module for group in groups_of(members) if isinstance(group, Group) for module in group._modules]
    for module in dict.fromkeys([*_modules(members), *inside]):
        odd = next((type(part).__name__ for part in module.modules() if _is_odd(part)), None)
        if odd is not None:
            warn(
                f"a model should be asked in evaluation mode; {type(module).__name__} is in training mode, in which "
                f"its {odd} makes another answer of the same points at every call. Call model.eval() first."
            )


def _is_odd(part: nn.Module) -> bool:
    drops = isinstance(part, _DropoutNd) and part.p > 0
    return part.training and (drops or (isinstance(part, _BatchNorm) and part.track_running_stats))


def _models(member: Any) -> list[Any]:
    """The models behind one member; an ensemble has several."""
    return [model for inner in member.models for model in _models(inner)] if isinstance(member, Ensemble) else [member]


def _modules(members: Iterable[Any]) -> list[nn.Module]:
    """The modules inside `Learned` members."""
    every = [model for member in members for model in _models(member)]
    found = [model.model for model in every if isinstance(model, Learned)]
    return [module for module in found if isinstance(module, nn.Module)]
