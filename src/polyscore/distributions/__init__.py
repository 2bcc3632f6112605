"""Distributions with closed forms at every noise level."""

from polyscore.distributions.distribution import Distribution
from polyscore.distributions.gaussian import Gaussian
from polyscore.distributions.mixture import Mixture

__all__ = ["Distribution", "Gaussian", "Mixture"]
