"""The coordinates in which models live: x = (y - shift) / scale of the data y, or the data's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyscore.errors import CompositionError, require, shorten
from polyscore.notices import warn


class Units(NamedTuple):
    """Standardised coordinates x of the data y = shift + scale x; both are `(d,)`. In float64 between the two."""

    shift: Tensor
    scale: Tensor

    @classmethod
    def of(cls, pair: tuple[Tensor, Tensor] | None, event: tuple[int, ...] | None = None) -> Units | None:
        """Return (shift, scale) as units, if they are some for points of shape `event`."""
        if event is not None and pair is not None and not _is_pair(pair, event):
            raise CompositionError(
                f"units must be (shift, scale), two tensors of shape {event}, scales positive; got {shorten(pair)}. "
                "Take the mean and standard deviation of the data, as torch tensors."
            )
        return pair if pair is None or isinstance(pair, Units) else cls(*pair)

    @property
    def is_bent(self) -> bool:
        """Whether dy/dx differs from point to point; see `polyscore.models.bend`."""
        return False

    def standardise(self, y: Tensor) -> Tensor:
        """Return points of the data in standardised coordinates."""
        shift, scale = (part.to(y.device, torch.float64) for part in self)
        return ((y.double() - shift) / scale).to(y.dtype)

    def restore(self, x: Tensor) -> Tensor:
        """Return standardised points in the data's own units."""
        shift, scale = (part.to(x.device, torch.float64) for part in self)
        return (shift + scale * x.double()).to(x.dtype)

    def per_unit(self, scores: Tensor, x: Tensor) -> Tensor:
        """Return scores in x as scores in y: a gradient gains 1 / scale, wherever x is."""
        return (scores.double() / self.scale.to(scores.device)).to(scores.dtype)

    def log_volume(self, x: Tensor) -> Tensor | float:
        """Return log |dy/dx|: a number that is the same everywhere, unless the coordinates are bent."""
        return self.scale.double().log().sum().item()

    def widths(self) -> Tensor:
        """Return dy/dx in the middle, at x = 0."""
        return self.scale.double()

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Check that points in the data's units can be told apart in `dtype`, before any are computed."""
        scale, limits = self.scale.double(), torch.finfo(dtype)
        ends = self.restore(torch.stack([torch.full_like(scale, 100.0), torch.full_like(scale, -100.0)]))
        reach, remedy = ends.abs().max().item(), f"Pass dtype=torch.float64; {dtype} is too short."
        require(reach < limits.max and scale.min().item() > limits.tiny, "the data's units", f"fit {dtype}",
                f"values up to {reach:.3g}, scales from {scale.min().item():.3g}", remedy)  # fmt: skip
        if (lost := self.lost(dtype)) > 1e-2:
            warn(
                f"points should be told apart in {dtype}; the data lie so far from 0 that they are rounded to "
                f"{lost:.2g} of their own deviation. {remedy}"
            )

    def lost(self, dtype: torch.dtype) -> float:
        """Return by how much of a deviation of the data points in their middle are rounded in `dtype`."""
        middle = self.restore(torch.zeros_like(self.scale.double())).abs()
        return (torch.finfo(dtype).eps * middle / self.widths()).max().item()

    def same(self, other: Units | None) -> bool:
        """Whether these are the same coordinates."""
        return type(other) is type(self) and all(
            torch.equal(a.double(), b.double()) for a, b in zip(self, other, strict=True)
        )

    def described(self, variables: Sequence[str]) -> str:
        """Return what is done to the variables, in words."""
        return "standardised"

    def __str__(self) -> str:
        shift, scale = ([float(f"{v:.4g}") for v in part.flatten()[:4].tolist()] for part in self)
        return f"shift {shift}, scale {scale}"


def _is_pair(pair: Any, event: tuple[int, ...]) -> bool:
    good = len(pair) == 2 and all(isinstance(part, Tensor) and tuple(part.shape) == event for part in pair)
    return good and bool((pair[1] > 0).all())


def standard_score(member: Any, x: Tensor, t: Tensor | float) -> Tensor:
    """Return a score model's score at standardised points; a model that knows of no units lives in these."""
    inside = getattr(member, "standard_score", member.score)
    return inside(x, t)


def common_units(members: Mapping[str, object], given: Units | None = None) -> Units | None:
    """Return the coordinates that all members share: `given`, or those in which they were trained.

    Members that were trained in other coordinates cannot be composed: their scores belong to other variables. `given`
    also speaks for members without coordinates of their own, such as closed forms.
    """
    own = {name: Units.of(getattr(member, "units", None)) for name, member in members.items()}
    first = next((name for name, units in own.items() if units is not None), None)
    expected = given if given is not None or first is None else own[first]
    if first is None or expected is None:
        return expected
    whose = repr(first) if given is None else "the family"
    for name, units in own.items():
        if not expected.same(units) and not (units is None and given is not None):
            raise CompositionError(
                f"all members must live in the same coordinates; {whose} has {expected}, {name!r} has "
                f"{units or 'none (not standardised)'}. Train them in one call of fit, or all with standardise=False."
            )
    return expected
