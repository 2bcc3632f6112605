"""Mixtures of classes: checked vectors, exact masses of compositions."""

import numpy as np
import pytest

from polyscore.errors import ArgumentError, CompositionError, DegeneracyWarning
from polyscore.images import Mixtures

PAIR = (-1.0, 1.0, 1.0)


def three(base, one, two):
    return Mixtures(conditions={"base": base, "a": one, "b": two})


def weights(w):
    return dict(zip(("base", "a", "b"), w, strict=True))


def test_masses_of_independent_presence_are_products():
    """With presence independent in every condition, a composition's presence is so too: odds multiply."""
    one, two = {"base": 0.05, "a": 0.95, "b": 0.05}, {"base": 0.1, "a": 0.1, "b": 0.7}
    vectors = {
        k: ((1 - one[k]) * (1 - two[k]), one[k] * (1 - two[k]), (1 - one[k]) * two[k], one[k] * two[k]) for k in one
    }
    found = Mixtures(conditions=vectors).masses(weights(PAIR))
    odds = [np.prod([(p[k] / (1 - p[k])) ** w for k, w in weights(PAIR).items()]) for p in (one, two)]
    first, second = (o / (1 + o) for o in odds)
    expected = ((1 - first) * (1 - second), first * (1 - second), (1 - first) * second, first * second)
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:class masses should be")
@pytest.mark.parametrize("w", [PAIR, (-0.5, 1.5, 0.7), (0.0, 2.0, 0.0), (1.0, 0.0, 0.0)])
def test_masses_against_numpy(w):
    vectors = np.random.default_rng(3).dirichlet(np.ones(4), 3)
    found = three(*vectors).masses(weights(w))
    powers = np.prod(vectors ** np.array(w)[:, None], 0)
    np.testing.assert_allclose(list(found.values()), powers / powers.sum(), rtol=1e-10)


@pytest.mark.parametrize("w", [(0.0, 0.5, 0.0), (0.0, 1.0, 1.0), (-0.5, 1.5, 0.7)])
def test_masses_of_other_sums_are_doubted(w):
    """Squared, a class whose pictures spread a third as far in one direction counts three times as much."""
    some = three((0.4, 0.2, 0.2, 0.2), (0.25,) * 4, (0.1, 0.5, 0.2, 0.2))
    with pytest.warns(DegeneracyWarning, match=rf"exponents that sum to 1; these sum to {sum(w):g}"):
        some.masses(weights(w))
    some.masses(weights((-0.1, 0.2, 0.9)))  # 1 but for rounding


def test_masses_where_a_class_is_missing():
    found = three((0.4, 0.2, 0.2, 0.2), (0.5, 0.5, 0, 0), (0, 0.5, 0.5, 0)).masses(weights(PAIR))
    assert found == {"empty": 0.0, "couch": 1.0, "painting": 0.0, "couch+painting": 0.0}
    with pytest.raises(ArgumentError, match=r"'couch'.*must be positive.*0 in 'base'.*small mass"):
        three((1, 0, 0, 0), (0.5, 0.5, 0, 0), (0.5, 0.5, 0, 0)).masses(weights(PAIR))
    with pytest.raises(ArgumentError, match="leave mass to some class"):
        three((0.25,) * 4, (1, 0, 0, 0), (0, 1, 0, 0)).masses(weights(PAIR))


@pytest.mark.parametrize("exponents", [None, 3, ["a"], "a"])
def test_exponents_that_are_no_mapping_are_refused(exponents):
    with pytest.raises(ArgumentError, match="exponents must be a mapping from conditions"):
        three((0.25,) * 4, (0.25,) * 4, (0.25,) * 4).masses(exponents)


def test_masses_do_not_overflow():
    found = three((1 - 3e-200, 1e-200, 1e-200, 1e-200), (0.1, 0.4, 0.3, 0.2), (0.1, 0.2, 0.3, 0.4)).masses(
        weights((-3.0, 2.0, 2.0))
    )
    np.testing.assert_allclose(sum(found.values()), 1)
    np.testing.assert_allclose(found["painting"] / found["couch"], (0.3 * 0.3 / (0.4 * 0.2)) ** 2)


@pytest.mark.parametrize(
    ("vector", "told"),
    [
        ((0.5, 0.5, 0.1, 0), "sum to 1 within 1e-06; got .*which sum to 1.1. Divide them by their sum"),
        ((0.5, 0.5), "have 4 masses"),
        ((1.5, -0.5, 0, 0), "at least 0"),
        ((float("nan"), 1, 0, 0), "finite"),
        ("abcd", "have 4 masses"),
        ((True, 0, 0, 0), "finite masses"),
    ],
)
def test_bad_vectors_are_refused(vector, told):
    with pytest.raises(ArgumentError, match=told):
        Mixtures(conditions={"base": vector})


def test_bad_names_are_refused():
    for classes in ((), ("a", "a"), "ab", (1, 2)):
        with pytest.raises(ArgumentError, match="classes must be different names"):
            Mixtures(classes, {"base": (1.0, 0.0)})
    with pytest.raises(CompositionError, match="condition"):
        Mixtures(("a", "b"), {'x"': (1.0, 0.0)})
    with pytest.raises(ArgumentError, match="at least one"):
        Mixtures(("a", "b"), {})
    with pytest.raises(ArgumentError, match=r"one of base; got 'bse'. Did you mean 'base'"):
        Mixtures(("a", "b"), {"base": (1.0, 0.0)}).masses({"bse": 1.0})


def test_parse_takes_what_files_hold():
    whole = Mixtures(("x", "y"), {"base": (0.25, 0.75), "a": (1, 0)})
    assert Mixtures.parse(whole.to_dict()) == whole
    assert Mixtures.parse({"classes": ["x", "y"], "conditions": {"base": [0.25, 0.75], "a": {"x": 1}}}) == whole
    assert Mixtures.parse({"conditions": {"base": [1, 0, 0, 0]}}).classes[1] == "couch"
    with pytest.raises(ArgumentError, match="Did you mean 'couch'"):
        Mixtures.parse({"conditions": {"base": {"coach": 1}}})
    with pytest.raises(ArgumentError, match="be a mapping with `conditions`"):
        Mixtures.parse([1])
