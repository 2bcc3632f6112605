"""Pretrained image features: an image becomes a vector in which distances mean something.

from polyscore import features

a, b = features.embed(real), features.embed(made)       # (N, H, W, 3) uint8 -> (N, 1280); needs the extra `images`
features.frechet(a, b), features.kernel_distance(a, b)
"""

from polyscore.features.distances import frechet, kernel_distance
from polyscore.features.embedding import DEFAULT, EMBEDDINGS, Embed, choose, embed

__all__ = ["DEFAULT", "EMBEDDINGS", "Embed", "choose", "embed", "frechet", "kernel_distance"]
