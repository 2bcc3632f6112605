"""Structural causal models, and what interventions make of them.

Variables are set one after the other from their parents in an acyclic graph, and seen through an invertible mixing g:

    Q(z) = prod_i Q(z_i | parents of z_i),        P(x) = Q(z) |det J_g(z)|^-1 at z = g^-1(x).

An intervention replaces the mechanisms of its targets. Interventions with disjoint targets compose: what each does is a
ratio of its own mechanisms, the mixing cancels, and P_AB = P_A P_B / P_0 with nothing to normalise.
"""

from polyscore.causal.mechanisms import Additive, Linear, Mechanism
from polyscore.causal.mixing import Mixing
from polyscore.causal.model import Intervention, Model
from polyscore.causal.structural import Structural

__all__ = ["Additive", "Intervention", "Linear", "Mechanism", "Mixing", "Model", "Structural"]
