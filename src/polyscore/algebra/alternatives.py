"""Compositions that the same amount of data could as well have given: what is known of the error of learned scores.

Mixtures that were fitted, alone or inside of a network, are redrawn by their standard errors; of ensembles, each model
is one. Of anything else nothing is known. Standard errors take the form of a mixture for granted; what either half of
the data gave by itself (`halves`) does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Generator, Tensor

from polyscore.algebra.base import recomposed
from polyscore.algebra.composition import Composition
from polyscore.distributions import Distribution
from polyscore.models.ensemble import Ensemble
from polyscore.models.fitted import Fitted
from polyscore.models.network import Network, NetworkCondition
from polyscore.nn import ScoreNetwork, StackNetwork
from polyscore.nn.mixture import Mixed
from polyscore.rng import generator


def alternatives(q: Composition, count: int, seed: int = 0) -> list[Composition]:
    """Return `count` of them, or as many as an ensemble has models; none where nothing is known of the error.

    Closed forms that nobody fitted have no error: they stay what they are.
    """
    members = _uncertain(q)
    models = min((len(m.models) for m in members.values() if isinstance(m, Ensemble)), default=count)
    found = [_other(members, k, seed) for k in range(models if members else 0)]
    return [recomposed(q, other) for other in found if other is not None]


def halves(q: Composition) -> list[Composition]:
    """Return the compositions of what either half of the data gave; none where that is not known of every member."""
    members = _uncertain(q)
    found = [{name: _half(member, h) for name, member in members.items()} for h in range(2)]
    known = members and all(member is not None for half in found for member in half.values())
    return [recomposed(q, half) for half in found] if known else []


def _uncertain(q: Composition) -> dict[str, Any]:
    """The members of a composition by name; none where all are exact."""
    members = {name: q.family.members[name] for name in q.exponents}
    return {} if all(map(_is_exact, members.values())) else members


def fitted(q: Composition) -> dict[str, Fitted]:
    """Return the factors that are fitted mixtures and no more."""
    members = {name: q.family.members[name] for name in q.exponents}
    return {name: member for name, member in members.items() if isinstance(member, Fitted)}


def _half(member: Any, h: int) -> Any | None:
    """What half of the data gave of a member, itself where it is exact, or None."""
    if isinstance(member, Fitted):
        return found[h] if len(found := member.halves()) == 2 else None
    if isinstance(member, NetworkCondition) and (stack := _mixed(member.group.network)) is not None:
        tensors = stack.halved(h)
        return None if tensors is None else _holding(member.group, stack, tensors).condition(member.index)
    return member if _is_exact(member) else None


def _is_exact(member: object) -> bool:
    return isinstance(member, Distribution) and not isinstance(member, Fitted)


def _other(members: dict[str, Any], k: int, seed: int) -> dict[str, Any] | None:
    """The k-th alternative of every member, or None where one has none."""
    networks: dict[int, Network] = {}
    found = {name: _one(member, k, partial(generator, seed, "alternative", name, k), networks)
             for name, member in members.items()}  # fmt: skip
    return None if any(member is None for member in found.values()) else found


def _one(member: Any, k: int, source: Callable[[], Generator], networks: dict[int, Network]) -> Any | None:
    """The k-th alternative of a member; conditions of one group are those of one network, which is redrawn once."""
    chosen = member.models[k] if isinstance(member, Ensemble) else member
    # Mixtures inside of an ensemble all saw the same points, so they are redrawn as well.
    if isinstance(chosen, Fitted):
        return chosen.redrawn(source())
    if isinstance(chosen, NetworkCondition) and (stack := _mixed(chosen.group.network)) is not None:
        if id(chosen.group) not in networks:  # named by its first condition: what others learned errs by itself
            networks[id(chosen.group)] = _holding(chosen.group, stack, stack.redrawn(source()))
        return networks[id(chosen.group)].condition(chosen.index)
    return chosen if isinstance(member, Ensemble) or _is_exact(chosen) else None


def _mixed(network: ScoreNetwork) -> Mixed | None:
    stack = getattr(network, "stack", None)
    return stack if isinstance(stack, Mixed) else None


def _holding(group: Network, stack: Mixed, tensors: dict[str, Tensor]) -> Network:
    """The group with other mixtures inside of its networks."""
    return Network(StackNetwork.of(stack, tensors), group.schedule, group.precision, group.units)
