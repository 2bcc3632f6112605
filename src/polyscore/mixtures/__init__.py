"""Gaussian mixtures of points: fitted by EM, their number of components and shape chosen by BIC."""

from polyscore.mixtures.choose import fit_halves, fit_mixture
from polyscore.mixtures.em import Fit
from polyscore.mixtures.redraw import Parts, redrawn, support
from polyscore.mixtures.shapes import SHAPES, Shape

__all__ = ["SHAPES", "Fit", "Parts", "Shape", "fit_halves", "fit_mixture", "redrawn", "support"]
