"""Small figures in one style: `scatter` and `density` for people, panels for whoever draws more."""

from polyscore.plots.panels import Panels, circle, reach_of, scatter_panel
from polyscore.plots.pictures import density, scatter
from polyscore.plots.style import BLUE, GREEN, GREY, ORANGE, PICTURES, PINK, plain

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PICTURES",
    "PINK",
    "Panels",
    "circle",
    "density",
    "plain",
    "reach_of",
    "scatter",
    "scatter_panel",
]
