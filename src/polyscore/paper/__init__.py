"""The paper, on top of everything: its settings, experiments, published numbers, theory and demonstration."""

from polyscore.paper.published import Published, published
from polyscore.paper.settings import SETTINGS, setting
from polyscore.paper.specs import PROTOCOL, experiment, named, names

__all__ = ["PROTOCOL", "SETTINGS", "Published", "experiment", "named", "names", "published", "setting"]
