"""What can be proved where a factor's tails are not known: it is a density, and no more is asked of it.

Let u_a > 0 be the exponents of such densities, V their sum, and m that of Gaussian mixtures, all positive. By Hoelder

    V = 1:  the integral of prod p_a^{u_a} is at most 1, and mixtures are bounded;
    V < 1:  prod p_a^{u_a} * mix^m is integrable, since mix^(m / (1 - V)) is, whatever m > 0;
    V > 1:  noised densities are bounded by (2 pi sigma^2)^(-d/2), so that V - 1 of the powers can be left out.

These bound the integral from above: where supports do not overlap it is 0, and nothing is left to sample. Without noise
a density may have a pole, whose square need not be integrable; and a denominator may decay faster than all the rest.
Then there is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyscore.algebra.validity.answer import Validity

_ROUNDING = 1e-9


def unknown_validity(names: Sequence[str], exponents: Sequence[float], mixed: Sequence[bool], noised: bool) -> Validity:
    """Return what can be said of a product of which some factors are no mixtures.

    Args:
        mixed: for each factor, whether it is a Gaussian mixture.
        noised: whether there is noise, which bounds every density.
    """
    unknown = [name for name, mixture in zip(names, mixed, strict=True) if not mixture]
    if min(exponents) < 0:
        return _cannot_tell(unknown, "and an exponent is negative")
    volume = sum(w for w, mixture in zip(exponents, mixed, strict=True) if not mixture)
    if volume < 1 - _ROUNDING and not any(mixed):
        return _cannot_tell(unknown, f"and exponents that sum to {volume:g} make them heavier")
    if volume > 1 + _ROUNDING and not noised:
        return _cannot_tell(unknown, f"nor of its poles, which exponents that sum to {volume:g} sharpen")
    return Validity(True, None, "its exponents are positive, and densities that overlap are integrable (Hoelder)")


def _cannot_tell(unknown: Sequence[str], why: str) -> Validity:
    return Validity(None, None, f"nothing is known of the tails of {unknown[0]!r}, which is no Gaussian mixture, {why}")
