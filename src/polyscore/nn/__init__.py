"""Networks whose parameters carry a leading model axis, by kind; and the kernels that evaluate them fast.

@NETWORKS.register("mine")
class Mine(Stack): ...

ps.fit(data, kind="mine")
"""

from polyscore.nn.mixture import Mixed
from polyscore.nn.mlp import StackedMLP
from polyscore.nn.network import Architecture, ScoreNetwork
from polyscore.nn.perceptron import Perceptron
from polyscore.nn.stack import Stack, StackNetwork, uniform_start
from polyscore.nn.structured import Structured
from polyscore.nn.vanilla import Vanilla
from polyscore.registry import Registry

NETWORKS: Registry[type[Stack]] = Registry(
    "a network's kind",
    {"vanilla": Vanilla, "structured": Structured, "mixture": Mixed},
    hint="Import the module that registers it first.",
)

__all__ = ["NETWORKS", "Architecture", "Perceptron", "ScoreNetwork", "Stack", "StackNetwork", "StackedMLP",
           "uniform_start"]  # fmt: skip
