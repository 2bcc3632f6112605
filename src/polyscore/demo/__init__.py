"""Demonstrations: correction that repairs, correction that fails, and the paper's analytic columns."""

from polyscore.demo.learned import LearnedDemo, run_learned
from polyscore.demo.report import Demo, run_demo
from polyscore.demo.scenes import Distances, Scene
from polyscore.demo.table import Row, Sizes

__all__ = ["Demo", "Distances", "LearnedDemo", "Row", "Scene", "Sizes", "run_demo", "run_learned"]
