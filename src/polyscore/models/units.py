"""The coordinates in which models live: x = (y - shift) / scale of the data y, or the data's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyscore.errors import CompositionError

Units = tuple[Tensor, Tensor]


def standardise(y: Tensor, units: Units | None) -> Tensor:
    """Return points of the data, y = shift + scale x, as standardised x; in float64 between, for offsets far from 0."""
    if units is None:
        return y
    shift, scale = (part.to(y.device, torch.float64) for part in units)
    return ((y.double() - shift) / scale).to(y.dtype)


def per_unit(scores: Tensor, units: Units | None) -> Tensor:
    """Return scores in x as scores in y = shift + scale x: a gradient gains 1 / scale."""
    return scores if units is None else (scores.double() / units[1].to(scores.device)).to(scores.dtype)


def standard_score(member: Any, x: Tensor, t: Tensor | float) -> Tensor:
    """Return a score model's score at standardised points; a model that knows of no units lives in these."""
    inside = getattr(member, "standard_score", member.score)
    return inside(x, t)


def common_units(members: Mapping[str, object], given: Units | None = None) -> Units | None:
    """Return the coordinates that all members share: `given`, or those in which they were trained.

    Members that were trained in other coordinates cannot be composed: their scores belong to other variables. `given`
    also speaks for members without coordinates of their own, such as closed forms.
    """
    own = {name: getattr(member, "units", None) for name, member in members.items()}
    first = next((name for name, units in own.items() if units is not None), None)
    if first is None:
        return given
    expected = given or own[first]
    whose = repr(first) if given is None else "the family"
    assert expected is not None
    for name, units in own.items():
        if units is None and given is not None:
            continue
        if units is None or not all(torch.equal(a.double(), b.double()) for a, b in zip(units, expected, strict=True)):
            raise CompositionError(
                f"all members must live in the same coordinates; {whose} has {_units_text(expected)}, {name!r} has "
                f"{_units_text(units)}. Train them in one call of fit, or all with standardise=False."
            )
    return expected


def _units_text(units: Units | None) -> str:
    if units is None:
        return "none (not standardised)"
    shift, scale = ([float(f"{v:.4g}") for v in part.flatten()[:4].tolist()] for part in units)
    return f"shift {shift}, scale {scale}"
