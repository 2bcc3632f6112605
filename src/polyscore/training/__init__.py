"""Training: denoising loss, many models as one program, checkpoints that survive a kill."""

from polyscore.training.families import load
from polyscore.training.fit import DivergenceError, fit, fit_many
from polyscore.training.recipe import Recipe

__all__ = ["DivergenceError", "Recipe", "fit", "fit_many", "load"]
