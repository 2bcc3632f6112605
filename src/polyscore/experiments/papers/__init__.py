"""Papers as data: their settings, their experiments and their published numbers."""

from polyscore.experiments.papers.published import Published, published
from polyscore.experiments.papers.settings import SETTINGS, setting
from polyscore.experiments.papers.specs import load, names

__all__ = ["SETTINGS", "Published", "load", "names", "published", "setting"]
