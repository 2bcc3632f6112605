"""The paper's theorems, its appendix B, and one law beyond them, as statements that compute both of their sides."""

from polyscore.paper.theory.covariance import (
    EpsilonRow,
    composed_covariance,
    epsilon_example,
    naive_covariance,
    product_covariance,
)
from polyscore.paper.theory.statement import Statement
from polyscore.paper.theory.statements import statements

__all__ = [
    "EpsilonRow",
    "Statement",
    "composed_covariance",
    "epsilon_example",
    "naive_covariance",
    "product_covariance",
    "statements",
]
