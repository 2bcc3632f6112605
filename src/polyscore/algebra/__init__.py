"""Families of conditions and the algebra over them: `p["a"] * p["b"] / p["base"]`."""

from polyscore.algebra.base import BASES, base_composition, parse
from polyscore.algebra.composition import Composition
from polyscore.algebra.family import Family
from polyscore.algebra.saved import load

__all__ = ["BASES", "Composition", "Family", "base_composition", "load", "parse"]
