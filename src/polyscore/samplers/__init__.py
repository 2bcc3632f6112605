"""Samplers of compositions: `Denoise` (SDE to ODE) and `FeynmanKac`."""

from polyscore.samplers.denoise import Denoise
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.run import Run

__all__ = ["Denoise", "FeynmanKac", "Run"]
