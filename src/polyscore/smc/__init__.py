"""Sequential Monte Carlo that knows nothing of diffusion: weights and their ESS, resampling."""

from polyscore.smc.resampling import Multinomial, Residual, Resampler, Stratified, Systematic, resampler
from polyscore.smc.weights import effective_sample_size, log_mean_exp, unique_ancestors

__all__ = [
    "Multinomial",
    "Resampler",
    "Residual",
    "Stratified",
    "Systematic",
    "effective_sample_size",
    "log_mean_exp",
    "resampler",
    "unique_ancestors",
]
