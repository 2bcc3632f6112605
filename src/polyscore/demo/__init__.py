"""The demonstration: the paper's Figure 1 and its analytic columns, recomputed in about a minute."""

from polyscore.demo.report import Demo, run_demo
from polyscore.demo.table import Row, Sizes

__all__ = ["Demo", "Row", "Sizes", "run_demo"]
