"""What a causal model refuses: rule, value and remedy, before any work."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import polyscore as ps
from polyscore.causal import Additive, Linear, Mechanism, Mixing, Model

XY = Model({"x": Linear(), "y": Linear({"x": 0.8})})


def first(p: torch.Tensor) -> torch.Tensor:
    return p[..., 0]


def broken(p: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such thing")


def through(forward, inverse, log_det):
    return lambda: Model(XY.mechanisms, Mixing(forward, inverse, log_det)).distribution()


def zeros(z):
    return torch.zeros(z.shape[:-1], dtype=z.dtype)


class Own(Mechanism):
    """One that somebody wrote, with parents of any kind."""

    def __init__(self, parents):
        self.parents = parents

    def log_prob(self, value, given):
        return -value.square()

    def sample(self, given, seed):
        return given.new_zeros(len(given) + 1)

    def __repr__(self):
        raise RuntimeError("no words")


CASES = {
    "no parents at all": (lambda: Model({"x": Linear(), "y": Own(None)}), "parents of 'y' must be a tuple of names"),
    "parents that are text": (lambda: Model({"x": Linear(), "y": Own("x")}), "parents of 'y' must be a tuple of names"),
    "a parent that is no name": (lambda: Model({"x": Linear(), "y": Own((3,))}), "a parent of 'y' must be a non-empty"),
    "draws of another number": (lambda: Model({"x": Linear(), "y": Own(("x",))}).distribution(), "sample of 'y' must"),
    "effects beyond all numbers": (lambda: Model.linear(1e20 * torch.ones(20, 20).tril(-1)).distribution(),
                                   "effects of a causal model must be finite"),
    "a chain that only looks singular": (lambda: Model.linear(1e10 * torch.eye(60).roll(1, 0).tril(-1)).distribution(),
                                         "must be finite"),
    "circle": (lambda: Model({"x": Linear({"y": 1}), "y": Linear({"x": 1})}), "the circle 'x' -> 'y' -> 'x'"),
    "own parent": (lambda: Model({"x": Linear({"x": 1})}), "acyclic; got the circle 'x' -> 'x'"),
    "a matrix with a circle": (lambda: Model.linear([[0, 1], [1, 0]]), "acyclic; got the circle"),
    "unknown parent": (lambda: Model({"dose": Linear(), "y": Linear({"doze": 1})}), "a parent of 'y' must be one of "
                       "the variables 'dose', 'y'; got 'doze'. Did you mean 'dose'?"),
    "unknown target": (lambda: XY.distribution({"yy": Linear()}), "a target must be one of the variables 'x', 'y'; got "
                       "'yy'. Did you mean 'y'?"),
    "unknown variable": (lambda: XY["w"], "a variable must be one of"),
    "no target": (lambda: XY.distribution({}), "an intervention must be a mapping from target to mechanism, of one"),
    "a list": (lambda: XY.distribution(["x"]), "an intervention must be a mapping"),
    "a number for a mechanism": (lambda: XY.distribution({"x": 2.0}), "'x' must be a Mechanism; got 2.0"),
    "overlap": (lambda: XY.distribution({"x": Linear({}, 1.0)}, {"x": Linear()}), "disjoint targets"),
    "nothing": (lambda: Model({}), "mechanisms must be a mapping from variable to mechanism"),
    "negative variance": (lambda: Linear(variance=-1), "variance must be a positive number; got -1. A vari"),
    "no variance": (lambda: Linear(variance=0), "use a small variance"),
    "infinite shift": (lambda: Linear(shift=math.inf), "shift must be a finite number; got inf"),
    "text": (lambda: Linear({"x": "much"}), "the coefficient of 'x' must be a finite number; got 'much'"),
    "truth": (lambda: Linear(variance=True), "variance must be a positive number; got True"),
    "coefficients as a list": (lambda: Linear([0.8]), "coefficients must be a mapping"),
    "newline in a name": (lambda: Model({"x\n": Linear()}), r"a variable must be a non-empty string .* got 'x.n'"),
    "a number as a name": (lambda: Model({1: Linear()}), "a variable must be a non-empty string"),
    "quotes in a parent": (lambda: Linear({'"': 1.0}), "a parent must be a non-empty string without quotes"),
    "a long name": (lambda: Model({"x" * 300: Linear()}), "at most 200 characters"),
    "odd condition": (lambda: XY.family({"\u202eA": {"x": Linear()}}), "a condition must be"),
    "base twice": (lambda: XY.family({"control": {"x": Linear()}}), "no intervention's name; got 'control'"),
    "families of lists": (lambda: XY.family([{"x": Linear()}]), "interventions must be a mapping from condition"),
    "no draws": (lambda: XY.data({"A": {"x": Linear()}}, n=0), "n must be at least 1"),
    "square": (lambda: Model.linear([[0, 1]]), r"coefficients must be a square matrix \(d, d\); got shape \(1, 2\)"),
    "names": (lambda: Model.linear([[0, 0], [1, 0]], variables=["x"]), "variables must be 2 names"),
    "names twice": (lambda: Model.linear([[0, 0], [1, 0]], variables=["x", "x"]), "be named once; got 'x'"),
    "shifts": (lambda: Model.linear([[0, 0], [1, 0]], shift=[1, 2, 3]), r"shift must be a number or \(2,\); got shape"),
    "variances": (lambda: Model.linear([[0, 0], [1, 0]], variance=[1, -2]), "be a positive number; got -2"),
    "singular": (lambda: Model(XY.mechanisms, [[1, 2], [2, 4]]), "mixing must be invertible, of condition below"),
    "mixing of zeros": (lambda: Model(XY.mechanisms, np.zeros((2, 2))), "mixing must be invertible"),
    "mixing shape": (lambda: Model(XY.mechanisms, np.eye(3)), r"mixing must be a matrix \(2, 2\); got shape \(3, 3\)"),
    "mixing alone": (lambda: Model(XY.mechanisms, torch.sinh), r"Write ps.causal.Mixing\(forward, inverse, log_det\)"),
    "mixing of numbers": (lambda: Mixing(1, 2, 3), "forward must be a function; got 1"),
    "not the inverse": (through(lambda z: 2 * z, lambda x: x, zeros), "the inverse of a mixing must give z back"),
    "not its log_det": (through(lambda z: 2 * z, lambda x: x / 2, zeros),
                        "log_det of a mixing must be .* got 0 where differences give 1.386"),
    "log_det of the inverse": (through(torch.sinh, torch.asinh, lambda z: -z.cosh().log().sum(-1)), "the other sign"),
    "log_det's shape": (through(torch.sinh, torch.asinh, lambda z: z.cosh().log()), r"log_det .* finite values \(8,\)"),
    "infinite mixing": (through(lambda z: z / 0, lambda x: x, zeros), "got values that are not finite"),
    "failing mixing": (through(broken, lambda x: x, zeros), "forward of a mixing must take .* no such thing"),
    "no function": (lambda: Additive("sin", ["x"]), "function must be a function of the parents' values"),
    "parents as text": (lambda: Additive(first, "x"), "parents must be a list of names; got 'x'"),
    "a function of nothing": (lambda: Additive(first), r"Write Additive\(0.0\) or Additive\(function, \['x'\]\)"),
    "noise in two dimensions": (lambda: Additive(first, ["x"], ps.Gaussian(dim=2)), r"one dimension; got event \(2,\)"),
    "negative noise": (lambda: Additive(first, ["x"], -2.0), "noise, as a variance, must be a positive number"),
    "a field of another": (lambda: Linear().changed(noise=1.0), "a field of Linear must be one of coefficients, shift"),
    "shape of a function": (lambda: Model({"x": Linear(), "y": Additive(lambda p: p, ["x"])}).distribution(),
                            r"the function of x must return a tensor \(8,\) for values \(8, 1\); got \(8, 1\)"),
    "failing function": (lambda: Model({"x": Linear(), "y": Additive(broken, ["x"])}).distribution(), "no such thing"),
    "infinite function": (lambda: XY.distribution({"y": Additive(lambda p: 1 / (0 * first(p)), ["x"])}),
                          "sample of 'y' must return finite values"),
    "points": (lambda: Model({"x": Additive(0.0)}).distribution().log_prob(torch.zeros(3, 2)), r"\(\.\.\., 1\)"),
}  # fmt: skip


@pytest.mark.parametrize("ask, message", CASES.values(), ids=CASES)
def test_bad_input_is_refused_by_rule_value_and_remedy(ask, message):
    with pytest.raises(ValueError, match=message) as caught:
        ask()
    assert " must " in str(caught.value) and "; got" in str(caught.value)


def test_what_is_printed_is_short_and_says_it():
    model = Model({f"v{k}": Linear() for k in range(40)} | {"last": Additive(first, ["v0"])})
    assert "Causal model of 41 variables" in repr(model) and len(repr(model)) < 2000
    assert repr(model["last"]).startswith("Additive(first, ['v0'], noise=Gaussian")
