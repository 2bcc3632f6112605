"""Papers as data: their settings, their experiments and their published numbers."""

from polyscore.paper.published import Published, published
from polyscore.paper.settings import SETTINGS, setting
from polyscore.paper.specs import load, names

__all__ = ["SETTINGS", "Published", "load", "names", "published", "setting"]
