"""Networks whose parameters carry a leading model axis, and the kernels that evaluate them fast."""

from polyscore.nn.mlp import ScoreNetwork, StackedMLP

__all__ = ["ScoreNetwork", "StackedMLP"]
