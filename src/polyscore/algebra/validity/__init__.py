"""When a weighted composition can be normalised.

For Gaussians, exactly when Lambda = sum_a w_a cov_a^-1 is positive definite; for their mixtures by their tails; for
other densities where Hoelder's inequality proves it. Where nothing can be proved the answer is "cannot tell".
"""

from polyscore.algebra.validity.answer import Validity
from polyscore.algebra.validity.mixtures import mixture_validity
from polyscore.algebra.validity.path import path_validity
from polyscore.algebra.validity.unknown import unknown_validity

__all__ = ["Validity", "mixture_validity", "path_validity", "unknown_validity"]
