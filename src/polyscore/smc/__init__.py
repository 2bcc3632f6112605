"""Sequential Monte Carlo that knows nothing of diffusion: weights and their ESS, resampling."""

from polyscore.smc.resampling import (
    SCHEMES,
    Multinomial,
    Resampler,
    Residual,
    Stratified,
    Systematic,
    invert,
    resampler,
)
from polyscore.smc.weights import Weights, effective_sample_size, log_mean_exp, unique_ancestors, weigh

__all__ = [
    "SCHEMES",
    "Multinomial",
    "Resampler",
    "Residual",
    "Stratified",
    "Systematic",
    "Weights",
    "effective_sample_size",
    "invert",
    "log_mean_exp",
    "resampler",
    "unique_ancestors",
    "weigh",
]
