"""Demonstrations: correction that repairs, correction that fails, and the paper's analytic columns."""

from polyscore.paper.demo.exact_part import ExactPart, Line
from polyscore.paper.demo.learned import LearnedPart
from polyscore.paper.demo.run import Demo, run_demo
from polyscore.paper.demo.scenes import Distances, Scene

__all__ = ["Demo", "Distances", "ExactPart", "LearnedPart", "Line", "Scene", "run_demo"]
