"""Whether a composition of Gaussian mixtures can be normalised.

It is integrable if its rate of decay (`tails`) is positive in every direction, and is not if it is negative in one (a
cone around it then diverges). Between the two, where the least rate is zero or could not be bounded, the honest answer
is "cannot tell".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polyscore.algebra.validity.answer import Validity
from polyscore.algebra.validity.tails import ZERO, tails_of
from polyscore.distributions.components import Components


def mixture_validity(
    mixtures: Sequence[Components], exponents: Sequence[float], alpha: Tensor, sigma: Tensor
) -> Validity:
    """Return the validity of prod_a mixtures_a^{w_a} after noising by (alpha, sigma)."""
    own = tails_of(mixtures, exponents, alpha, sigma)
    tails, back = own.standardised()
    direction, rate = tails.slowest()
    proved = rate >= -tails.margin and tails.proved()
    if not proved and rate >= -tails.margin and tails.mixed:
        direction, rate, proved = tails.search(direction, rate)
    if proved:
        return Validity(True, None, "it decays in every direction")
    shown = own.shown(direction, back)
    if rate < -tails.margin:
        return Validity(False, shown, f"its density grows along {_show(shown)}")
    if rate <= ZERO and all(components.count == 1 for components in mixtures):
        return Validity(False, shown, f"its density does not decay along {_show(shown)}")
    return Validity(None, shown, f"its tails could not be bounded; the slowest decay found is along {_show(shown)}")


def _show(direction: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.3g}" for value in direction[:12])
    return f"({shown}, ...)" if len(direction) > 12 else f"({shown})"
