"""Distributions whose noised scores are known; those of Gaussians and their mixtures in closed form."""

from polyscore.distributions.distribution import Density, Distribution
from polyscore.distributions.gaussian import Gaussian
from polyscore.distributions.kinds import KINDS
from polyscore.distributions.mixture import Mixture, mixture_of

__all__ = ["KINDS", "Density", "Distribution", "Gaussian", "Mixture", "mixture_of"]
