"""Exact references: what a perfect sampler would draw from a composition of densities.

| method | where | exact? |
|---|---|---|
| closed form | all factors Gaussian | yes |
| grid | any densities in one and two dimensions | to its cell: inverse-CDF draws, jittered within the cell |
| rejection | mixtures that share their components, where 1 % or more is accepted | yes |
| importance | any mixtures | in the limit |

Evidence of rejection and importance is the mean weight of a fixed draw; its effective sample size is `target.ess`, and
is warned of below 500.

Every draw is seeded; a reference can be drawn again.
"""

from __future__ import annotations

from polyscore.algebra import Composition
from polyscore.algebra.proper import proper
from polyscore.devices import on_cpu_by_default
from polyscore.errors import require, shorten
from polyscore.notices import warn
from polyscore.targets.closed_form import ClosedForm
from polyscore.targets.grid import OnGrid
from polyscore.targets.importance import Importance, ProductImportance
from polyscore.targets.rejection import Rejection, rejection_plan
from polyscore.targets.rescaled import Rescaled, standard
from polyscore.targets.target import Target

__all__ = ["ClosedForm", "Importance", "OnGrid", "ProductImportance", "Rejection", "Rescaled", "Target", "exact"]

_LOW_ACCEPTANCE = 0.01


def exact(q: Composition, method: str | None = None) -> Target:
    """Return the exact target of `q`, by the first method that applies unless one is named.

    Args:
        q: a proper composition of densities: Gaussians and mixtures, or any in one and two dimensions.
        method: "closed form", "grid", "rejection", "importance" or "product importance" (numerators alone propose).
    """
    require(isinstance(q, Composition), "an exact target", "be that of a composition", type(q).__name__,
            'Take it from a family: p["a"] * p["b"], or ps.base_composition(p).')  # fmt: skip
    with on_cpu_by_default():
        q = proper(q)
        q.validity().settle(repr(q))
        for name in q.conditions:
            q.density(name)  # says which has none
        if q.family.units is None:
            return _exact(q, method)
        require(not q.is_tilted, "an exact target in bent coordinates", "have W = 1",
                f"W = {q.total:g}", "Sample it: FeynmanKac weights for the bend; or fit with bend=False.")  # fmt: skip
        return Rescaled(q, _exact(standard(q), method))


def _exact(q: Composition, method: str | None) -> Target:
    if q.mixtures is None:
        require(method in (None, OnGrid.method), "method", f"be {OnGrid.method!r} for densities that are no mixtures",
                repr(method), "Leave method=None.")  # fmt: skip
        return OnGrid(q)
    if method is None and not q.is_gaussian and q.event[0] <= 2:
        grid = OnGrid(q)
        if grid.coarseness < 0.5:
            return grid
    if method is None:
        method = "closed form" if q.is_gaussian else _beyond_two(q)
    kinds = {kind.method: kind for kind in (ClosedForm, OnGrid, Rejection, Importance, ProductImportance)}
    require(isinstance(method, str) and method in kinds, "method", f"be one of {', '.join(kinds)}", shorten(method),
            "Leave method=None.")  # fmt: skip
    require(method != "closed form" or q.is_gaussian, "the closed form", "be asked of Gaussians", repr(q),
            "Leave method=None.")  # fmt: skip
    target = kinds[method](q)
    if isinstance(target, OnGrid) and target.coarseness >= 0.5:
        warn(
            f"a grid's cells should be narrower than the density's features; they are {target.coarseness:.2g} of the "
            "narrowest deviation. Use method=None, which chooses another method here."
        )
    return target


def _beyond_two(q: Composition) -> str:
    """Rejection where it accepts often enough, else importance."""
    if rejection_plan(q) is None or Rejection(q).acceptance < _LOW_ACCEPTANCE:
        return "importance"
    return "rejection"
