"""Samplers of compositions: `Denoise` (SDE to ODE), `FeynmanKac`, and what others are made of."""

from polyscore.samplers.auto import Auto, auto
from polyscore.samplers.catalogue import SAMPLERS, build_sampler, describe, parts_of
from polyscore.samplers.controlled import Controlled
from polyscore.samplers.denoise import Denoise
from polyscore.samplers.feynman_kac import FeynmanKac
from polyscore.samplers.grids import GRIDS, TimeGrid
from polyscore.samplers.integrators import INTEGRATORS
from polyscore.samplers.kernels import KERNELS, Kernel
from polyscore.samplers.langevin import MALA, ULA, AnnealedLangevin
from polyscore.samplers.moves import MOVES, Move, Steps
from polyscore.samplers.precision import PrecisionFeynmanKac, PrecisionWeighted
from polyscore.samplers.quadratures import QUADRATURES
from polyscore.samplers.run import Run
from polyscore.samplers.sampler import Draw, Sampler
from polyscore.samplers.starts import STARTS, Start
from polyscore.samplers.superdiff import SuperDiffAnd, SuperDiffOr

__all__ = [
    "GRIDS",
    "INTEGRATORS",
    "KERNELS",
    "MALA",
    "MOVES",
    "QUADRATURES",
    "SAMPLERS",
    "STARTS",
    "ULA",
    "AnnealedLangevin",
    "Auto",
    "Controlled",
    "Denoise",
    "Draw",
    "FeynmanKac",
    "Kernel",
    "Move",
    "PrecisionFeynmanKac",
    "PrecisionWeighted",
    "Run",
    "Sampler",
    "Start",
    "Steps",
    "SuperDiffAnd",
    "SuperDiffOr",
    "TimeGrid",
    "auto",
    "build_sampler",
    "describe",
    "parts_of",
]
