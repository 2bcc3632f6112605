"""Training: denoising loss, many models as one program, checkpoints that survive a kill."""

from polyscore.training.fit import fit, fit_many
from polyscore.training.loop import DivergenceError
from polyscore.training.recipe import Recipe

__all__ = ["DivergenceError", "Recipe", "fit", "fit_many"]
