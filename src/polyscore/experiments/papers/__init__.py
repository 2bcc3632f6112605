"""Papers as data: their settings and their published numbers."""

from polyscore.experiments.papers.published import Published, published
from polyscore.experiments.papers.settings import SETTINGS, setting

__all__ = ["SETTINGS", "Published", "published", "setting"]
