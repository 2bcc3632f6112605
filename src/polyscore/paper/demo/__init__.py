"""Demonstrations: correction that repairs, correction that fails, and the paper's analytic columns."""

from polyscore.paper.demo.learned import LearnedDemo, run_learned
from polyscore.paper.demo.report import Demo, run_demo
from polyscore.paper.demo.scenes import Distances, Scene
from polyscore.paper.demo.table import Row, Sizes

__all__ = ["Demo", "Distances", "LearnedDemo", "Row", "Scene", "Sizes", "run_demo", "run_learned"]
