"""Families of conditions and the algebra over them: `p["a"] * p["b"] / p["base"]`."""

from polyscore.algebra.base import BASES, base_composition, parse
from polyscore.algebra.composition import Composition
from polyscore.algebra.family import Family

__all__ = ["BASES", "Composition", "Family", "base_composition", "parse"]
