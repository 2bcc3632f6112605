"""Distributions by name, as family files and the command line say them.

    @ps.distributions.KINDS.register("student-t")
    class StudentT(ps.Density): ...

    conditions: {a: {kind: student-t, nu: 3}}        # once the module that registers it has been imported

The keys of an entry are the parameters of what was registered, a class or a function. A name imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from polyscore.distributions.distribution import Distribution
from polyscore.distributions.gaussian import Gaussian
from polyscore.distributions.mixture import Mixture
from polyscore.registry import Registry

KINDS: Registry[Callable[..., Distribution]] = Registry(
    "a distribution's kind",
    {"gaussian": Gaussian, "mixture": Mixture},
    hint="One of your own must be registered first: @ps.distributions.KINDS.register(name).",
)
