"""One style: colours that stay apart for every eye (Okabe & Ito 2008), no chart junk, and text that is safe to show."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from polyscore.devices import on_cpu_by_default
from polyscore.errors import cut

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6E6E6E"
PICTURES = (".png", ".pdf", ".svg")
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.labelcolor": "#222222",
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the house's style, leaving the caller's as it is."""

    @functools.wraps(draw)
    def inside(*arguments: Any, **options: Any) -> Figure:
        import matplotlib

        with matplotlib.rc_context(STYLE), on_cpu_by_default():  # type: ignore[arg-type]
            return draw(*arguments, **options)

    return inside


def plain(text: str) -> str:
    """Return a name as a title or label shows it: no formula where it has dollars, no command, wrapped and cut.

    A label that begins with an underscore would be left out of a legend; a blank before it keeps it.
    """
    lines = [part for line in text.split("\n") for part in textwrap.wrap(cut(line, 140), 48)]
    shown = "\n".join(lines).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
