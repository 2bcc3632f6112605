"""Class-conditional image models: U-Nets trained on mixtures of classes, counted by a classifier."""

from polyscore.images.export import load
from polyscore.images.mixtures import Mixtures
from polyscore.images.presets import PRESETS
from polyscore.images.recipe import Recipe, UNet
from polyscore.images.training import Trained, train

__all__ = ["PRESETS", "Mixtures", "Recipe", "Trained", "UNet", "load", "train"]
