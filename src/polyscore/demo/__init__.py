"""Demonstrations: composition with learned scores in small, and the paper's analytic columns."""

from polyscore.demo.learned import LearnedDemo, run_learned
from polyscore.demo.report import Demo, run_demo
from polyscore.demo.table import Row, Sizes

__all__ = ["Demo", "LearnedDemo", "Row", "Sizes", "run_demo", "run_learned"]
