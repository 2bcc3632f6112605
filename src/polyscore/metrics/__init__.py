"""Distances between two sets of points, on tensors alone: sliced Wasserstein-2 and unbiased MMD^2."""

from polyscore.metrics.mmd import mmd2
from polyscore.metrics.named import METRICS, Options
from polyscore.metrics.sliced import sliced_wasserstein

__all__ = ["METRICS", "Options", "mmd2", "sliced_wasserstein"]
