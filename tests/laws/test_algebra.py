"""The algebra: exponents add, cancel and scale; the parser says what the operators say."""

import copy
import json
import math
import pickle
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polyscore as ps
from cases import compose, gaussian_family, points
from polyscore.algebra import composition
from polyscore.cli.fit import example_of
from polyscore.distributions.components import components_of
from polyscore.errors import CompositionError, DegeneracyWarning, ExpressionError, PolyscoreError

P = gaussian_family(3)
NAMES = ["a", "b", "base"]
EXACT = [-2.0, -1.5, -1.0, -0.5, 0.25, 0.5, 1.0, 2.0, 3.0]  # sums and products of these are exact in binary


# a random expression, as text and as the composition that Python's operators build
def _leaf(name):
    return name, P[name]


def _power(pair, power, sign, bracket):
    text, q = pair
    shown = f"({power:g})" if bracket else f"{power:g}"
    return f"({text}){sign}{shown}", q**power


def _product(left, right, operator, space):
    text = f"{left[0]}{space}{operator}{space}({right[0]})"
    return text, left[1] * right[1] if operator == "*" else left[1] / right[1]


expressions = st.recursive(
    st.sampled_from(NAMES).map(_leaf),
    lambda inner: st.one_of(
        st.builds(_power, inner, st.sampled_from(EXACT), st.sampled_from(["^", "**", " ^ "]), st.booleans()),
        st.builds(_product, inner, inner, st.sampled_from("*/"), st.sampled_from(["", " "])),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(expressions)
def test_the_parser_says_what_the_operators_say(pair):
    text, q = pair
    parsed = ps.parse(text, P)
    assert parsed == q
    assert hash(parsed) == hash(q)
    assert parsed.total == pytest.approx(math.fsum(q.exponents.values()))


@settings(max_examples=200, deadline=None)
@given(expressions)
def test_the_repr_of_a_composition_parses_back(pair):
    _, q = pair
    if q.exponents:
        assert ps.parse(repr(q), P).exponents == pytest.approx(q.exponents, rel=1e-5)


@settings(max_examples=200, deadline=None)
@given(expressions, expressions, expressions)
def test_group_laws(x, y, z):
    x, y, z = x[1], y[1], z[1]
    assert x * y == y * x
    assert (x * y) * z == x * (y * z)
    assert x * y / y == x
    assert x / y == x * y**-1
    assert (x * y) ** 2 == x**2 * y**2
    assert (x**2) ** 0.5 == x
    assert x**0 == x / x
    assert (x**0).exponents == {}


def test_the_design_example():
    assert (P["a"] * P["b"] / P["base"]).exponents == {"a": 1.0, "b": 1.0, "base": -1.0}
    assert (P["a"] * P["b"] / P["base"]).total == 1
    assert ps.parse("(a * b)^0.5 / base", P).exponents == {"a": 0.5, "b": 0.5, "base": -1.0}
    assert ps.parse("a**0.5", P) == P["a"] ** 0.5


def test_equal_factors_merge_and_zero_exponents_vanish():
    assert (P["a"] * P["a"]).exponents == {"a": 2.0}
    assert (P["a"] * P["b"] / P["b"]).exponents == {"a": 1.0}
    assert compose(P, a=1, b=0).exponents == {"a": 1.0}
    assert (P["a"] / P["a"]).exponents == {}


def test_what_cancels_up_to_rounding_has_cancelled_for_operators_and_parser_alike():
    q = P["a"] * P["b"] ** 0.1 * P["b"] ** 0.2 / P["b"] ** 0.3
    assert q.exponents == {"a": 1.0}
    assert ps.parse("a * b^0.1 * b^0.2 / b^0.3", P).exponents == {"a": 1.0}


def test_a_fraction_as_a_power():
    with pytest.raises(ExpressionError, match="parentheses"):  # Python would read (a^1)/2
        ps.parse("a^1/2", P)
    assert ps.parse("a^(1/2) * b", P).exponents == {"a": 0.5, "b": 1.0}
    assert ps.parse("a^2/b", P).exponents == {"a": 2.0, "b": -1.0}


def test_a_chained_power_is_refused():
    """Python reads a**2**3 as a**8, the eye as (a^2)^3: the parser asks for parentheses."""
    for text in ("a**2**3", "a^2^3", "a**2^3"):
        with pytest.raises(ExpressionError, match=r"written with parentheses, \(a\^2\)\^3"):
            ps.parse(text, P)
    assert ps.parse("(a**2)**3", P) == P["a"] ** 6


def test_division_by_zero_in_a_power_is_our_error():
    with pytest.raises(ExpressionError, match="its denominator is 0"):
        ps.parse("a^(1/0)", P)
    with pytest.raises(ExpressionError, match="a fraction in a power must stand in parentheses"):
        ps.parse("a^1/0", P)


def test_names_with_signs_dots_and_quotes():
    members = {name: ps.Gaussian() for name in ("CEBPE+ctrl", "x.1", "a-b", "T cell", "ü")}
    family = ps.Family(members)
    q = ps.parse('CEBPE+ctrl * x.1^2 / a-b * "T cell"^0.5 * "ü"', family)
    assert q.exponents == {"CEBPE+ctrl": 1, "x.1": 2, "a-b": -1, "T cell": 0.5, "ü": 1}


def test_base_composition():
    family = ps.Family({name: ps.Gaussian() for name in ("a1", "a2", "a3", "base")})
    q = ps.base_composition(family, base="base")
    assert q.exponents == {"a1": 1, "a2": 1, "a3": 1, "base": -2}
    assert q.total == 1
    assert ps.base_composition(family, base="a2").exponents["a2"] == -2
    two = ps.Family({name: ps.Gaussian() for name in ("base", "x")})
    assert ps.base_composition(two).exponents == {"x": 1}
    with pytest.raises(CompositionError, match="'base'"):
        ps.base_composition(family, base="bas")


@pytest.mark.parametrize("base", ["control", "ctrl", "base", "Control", "CTRL"])
def test_the_base_is_found_by_its_usual_names(base):
    family = ps.Family({name: ps.Gaussian() for name in ("drugA", base, "drugB")})
    q = ps.base_composition(family)
    assert q.exponents == {"drugA": 1, "drugB": 1, base: -1}
    assert f"{base}^-1" in repr(q)  # and it says which


@pytest.mark.parametrize(
    ("names", "together", "rest"),
    [
        (("ctrl", "A+B", "A", "B"), "'A+B'", "A * B * ctrl^-1"),
        (("ctrl", "A+ctrl", "ctrl+B", "A+B"), "'A+B'", "A+ctrl * ctrl+B * ctrl^-1"),
        (("A", "B", "C", "A_B", "C, A, B", "control"), "'A_B', 'C, A, B'", "A * B * C * control^-2"),
    ],
)
def test_measured_doubles_are_no_factors(names, together, rest):
    family = ps.Family({name: ps.Gaussian() for name in names})
    with pytest.warns(DegeneracyWarning, match="hold each effect once") as told:
        ps.base_composition(family)
    assert together in str(told[0].message)
    assert str(ps.parse(rest, family)) == rest and f"parse({rest!r}, family)" in str(told[0].message)
    assert not {name for name in names if repr(name) in together} & set(re.split(r" [*/] ", example_of(list(names))))


@pytest.mark.parametrize("names", [("ctrl", "A", "A+B"), ("control", "A+control", "B+control"), ("base", "a_1", "a_2")])
@pytest.mark.filterwarnings("error")
def test_names_with_joints_are_otherwise_plain(names):
    family = ps.Family({name: ps.Gaussian() for name in names})
    assert len(ps.base_composition(family).exponents) == 3


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("druga / ctrl", "Did you mean 'drugA'?"),
        ("drugA + drugB - ctrl", "Write * for + and / for -"),
        ("drugA+drugB-ctrl", "Write * for + and / for -"),
        ("drugA − ctrl", "Write * for + and / for -"),
        ("drug A * drugB", 'in double quotes: "drug A".'),
        ("drug A 2 / ctrl", 'in double quotes: "drug A 2".'),
    ],
)
def test_what_people_write_first_is_told_the_right_form(text, hint):
    family = ps.Family({name: ps.Gaussian() for name in ("ctrl", "drugB", "drugA", "drug A", "drug A 2")})
    with pytest.raises(ExpressionError, match=re.escape(hint)):
        ps.parse(text, family)


@pytest.mark.parametrize("names", [("a1", "a2"), ("control", "base", "a1"), ("a", "baseline")])
def test_a_base_that_is_missing_or_not_the_only_one_must_be_named(names):
    family = ps.Family({name: ps.Gaussian() for name in names})
    with pytest.raises(CompositionError, match=r"control, ctrl or base.*base_composition\(family, base=") as caught:
        ps.base_composition(family)
    wrong = [name for name in names if name in ("control", "base")] or names
    assert all(name in str(caught.value) for name in wrong)
    assert ps.base_composition(family, base=names[0]).exponents.keys() >= set(names[1:])


def test_many_conditions_do_not_flood_the_error():
    family = ps.Family({f"gene{k}": ps.Gaussian() for k in range(500)})
    with pytest.raises(CompositionError, match="500 in all") as caught:
        ps.base_composition(family)
    assert len(str(caught.value)) < 600


def one_screen(thing, *words):
    text = repr(thing)
    assert len(text.splitlines()) <= 24 and len(text) < 2500, text
    assert all(len(line) < 400 for line in text.splitlines())
    for word in words:
        assert word in text, text


def test_every_repr_fits_one_screen():
    wide = ps.Gaussian(mean=torch.arange(50.0), cov=torch.eye(50) + 0.1)
    one_screen(wide, "50 dimensions", "full covariance", "0 to 49")
    one_screen(ps.Gaussian(cov=2.0, dim=1000), "1000 dimensions", "diagonal", "2 in all")
    one_screen(ps.Mixture(torch.randn(200, 30), 0.5), "200 components", "30 dimensions")
    one_screen(ps.Gaussian(cov=[1, 2]), "Gaussian(mean=[0.0, 0.0], cov=[[1.0, 0.0], [0.0, 2.0]])")
    model = ps.Learned(lambda x, t: x, (50,), ps.VP())
    one_screen(model, "Learned", "(50,)", "eps", "VP")
    one_screen(ps.Ensemble([model] * 9), "Ensemble of 9", "Learned")
    some = ps.Family({"control": wide, "drug": wide, "other": model}, variables=[f"g{k}" for k in range(50)])
    one_screen(some, "3 conditions", "(50,)", "VP", "control: Gaussian in 50", "other: Learned", "g0, g1", "50 in all")
    many = ps.Family({f"gene{k}": ps.Gaussian(cov=1 + k) for k in range(3000)})
    one_screen(many, "3000 conditions", "gene0", "more")
    product = ps.Composition(many, dict.fromkeys(many, 0.5))
    one_screen(product, "gene0^0.5", "3000 factors")
    one_screen(ps.exact(many["gene1"] * many["gene2"]), "gene1 * gene2", "closed form")
    run = ps.FeynmanKac(particles=2, steps=20).sample(many["gene1"], 100)
    one_screen(run, "100 swarms of 2", "x1", "log evidence", "closed form")
    one_screen(ps.Denoise(steps=50).sample(some["drug"], 3), "g5", "50 variables", "no weights")


def test_variables_are_names_one_a_coordinate():
    assert ps.Family({"a": ps.Gaussian(dim=3)}).variables == ("x1", "x2", "x3")
    assert ps.Family({"a": ps.Gaussian()}, variables=["u", "v"]).variables == ("u", "v")
    for bad in (["u"], ["u", "u"], ["u", ""], ["u", 3], "uv"):
        with pytest.raises(CompositionError, match="variables must be 2 different names"):
            ps.Family({"a": ps.Gaussian()}, variables=bad)


def test_a_composition_is_immutable_under_the_operators():
    q = P["a"] * P["b"]
    before = dict(q.exponents)
    _ = (q / P["a"], q**3, q * q)
    assert q.exponents == before


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.__setitem__("base", 5.0), lambda e: e.__delitem__("a"), lambda e: e.update(a=2.0),
        lambda e: e.pop("a"), lambda e: e.popitem(), lambda e: e.clear(), lambda e: e.setdefault("base", 1.0),
        lambda e: e.__ior__({"a": 2.0}),
    ],
)  # fmt: skip
def test_exponents_cannot_be_written_into(change):
    q = P["a"] * P["b"]
    known = {q: "kept"}
    with pytest.raises((PolyscoreError, TypeError), match="exponents must stay as they are"):
        change(q.exponents)
    assert q.exponents == {"a": 1.0, "b": 1.0} and known[P["a"] * P["b"]] == "kept"


def test_exponents_are_read_like_a_dict():
    exponents = (P["a"] / P["b"]).exponents
    assert str(exponents) == "{'a': 1.0, 'b': -1.0}" and json.loads(json.dumps(exponents)) == exponents
    assert {**exponents, "base": 2.0} == exponents | {"base": 2.0} == {"a": 1.0, "b": -1.0, "base": 2.0}
    for other in (copy.copy(exponents), copy.deepcopy(exponents), pickle.loads(pickle.dumps(exponents))):
        assert other == exponents and type(other) is type(exponents)
    given = {"a": 1.0}
    q = ps.algebra.Composition(P, given)
    given["b"] = 3.0
    assert q.exponents == {"a": 1.0}
    with pytest.raises(AttributeError):
        q.exponents = {"b": 1.0}


@pytest.mark.parametrize("schedule", ["VP", ps.VP, {"kind": "VP"}, 0, False])
def test_a_schedule_is_an_object_of_ours(schedule):
    with pytest.raises(PolyscoreError, match=r"schedule must be a schedule, such as ps\.VP\(\)"):
        ps.Family({"a": ps.Gaussian()}, schedule=schedule)


@pytest.mark.parametrize("value", [True, "1", None, 1j, math.nan, math.inf, 10**400, torch.tensor([1.0, 2.0])])
def test_an_exponent_is_one_finite_number(value):
    with pytest.raises(PolyscoreError, match="an exponent must be a finite number"):
        ps.algebra.Composition(P, {"a": value})


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        'say "a"',
        "a\x1b[31m",
        "two\nlines",
        "zero\u200bwidth",
        "\u202eleft",
        "\ud800",
        "x" * 201,
        1,
        None,
        b"a",
    ],
)
def test_conditions_that_cannot_be_shown_are_refused(name):
    with pytest.raises(CompositionError, match="a condition must be a non-empty string without quotes") as caught:
        ps.Family({name: ps.Gaussian()})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "name", ["a", "x" * 200, "[/]", "$x^$", "T cell +/- 5%", "Größe", "薬剤", "🙂", "a\\b", "#1", "'q'"]
)
def test_other_conditions_are_taken_and_parse_back(name):
    q = ps.Family({name: ps.Gaussian()})[name] ** 2
    assert ps.parse(repr(q), q.family) == q


def test_a_family_is_a_mapping():
    assert list(P) == NAMES
    assert len(P) == 3
    assert "a" in P
    assert "c" not in P
    assert dict(P)["a"] == P["a"]
    assert P.get("c") is None


def test_an_empty_composition_is_refused_and_is_not_a_density():
    """p / p is the constant 1, which no sampler can start from."""
    one = P["a"] / P["a"]
    x = points(P["a"], 4)
    assert one.validity().proper is False and one.total == 0
    for ask in (one.score, one.residual, one.scores, one.log_density):
        with pytest.raises(CompositionError, match="a composition must have a factor; got exponents that all cancel"):
            ask(x, 0.5)


@pytest.mark.parametrize("other", [2, "a", None])
def test_only_compositions_multiply(other):
    with pytest.raises(TypeError):
        P["a"] * other
    with pytest.raises(TypeError):
        P["a"] / other


@pytest.mark.parametrize("power", ["2", None, float("nan"), float("inf"), True, 1j, 10**400, [2]])
def test_only_finite_numbers_are_powers(power):
    with pytest.raises(PolyscoreError, match="a power must be a finite number; got "):
        P["a"] ** power


def test_a_score_is_the_weighted_sum_and_the_gradient_of_the_log_density():
    q = compose(P, a=1.5, b=-0.25, base=0.5)
    x, t = points(q, 16).requires_grad_(), 0.3
    expected = 1.5 * P["a"].score(x, t) - 0.25 * P["b"].score(x, t) + 0.5 * P["base"].score(x, t)
    torch.testing.assert_close(q.score(x, t), expected)
    torch.testing.assert_close(q.score(x, t), torch.autograd.grad(q.log_density(x, t).sum(), x)[0])


def test_cancelling_factors_do_not_change_the_score():
    x = points(P["a"], 16)
    assert torch.equal((P["a"] * P["b"] / P["b"]).score(x, 0.2), P["a"].score(x, 0.2))


class Scored(ps.Distribution):
    """N(0, I) by its score alone, with something called components that is none of ours."""

    dim, components = 3, ["a", "b"]

    def score(self, x, alpha=1.0, sigma=0.0):
        return -x


class Dense(Scored, ps.Density):
    def log_prob(self, x, alpha=1.0, sigma=0.0):
        return -0.5 * x.square().sum(-1)

    def moments(self):
        return [0.0, 0.0, 0.0], 1.0


class Learned:
    event = (3,)

    def score(self, x, t):
        return -x


KNOWN = {  # condition: closed form, density, mixture, sized, Gaussian
    "gaussian": (ps.Gaussian(dim=3), (True, True, True, True, True)),
    "mixture": (ps.Mixture([[0, 0, 0], [1, 0, 0]]), (True, True, True, True, False)),
    "dense": (Dense(), (True, True, False, True, False)),
    "scored": (Scored(), (True, False, False, False, False)),
    "learned": (Learned(), (False, False, False, False, False)),
}


@pytest.mark.parametrize("other", KNOWN)
@pytest.mark.parametrize("one", KNOWN)
def test_what_is_known_of_a_composition_is_what_is_known_of_every_factor(one, other):
    p = ps.Family({name: member for name, (member, _) in KNOWN.items()})
    q = ps.Composition(p, {one: 1.0, other: 0.5})
    expected = tuple(a and b for a, b in zip(KNOWN[one][1], KNOWN[other][1], strict=True))
    assert (q.is_closed_form, q.has_density, q.mixtures is not None, q.is_sized, q.is_gaussian) == expected
    assert len(q.factors) == len(q.moments) == len(q.exponents)
    assert [pair is None for pair in q.moments] == [name in ("scored", "learned") for name in q.conditions]
    if not expected[2]:
        with pytest.raises(CompositionError, match=r"must (be of Gaussians|have a density|have a closed form)"):
            q.require_mixtures("a thing")


def test_mixtures_are_found_once_a_composition(monkeypatch):
    members = {name: ps.Gaussian(cov=[1.0, 2.0]) for name in ("a", "b")}
    p, looked = ps.Family(members), []
    monkeypatch.setattr(composition, "components_of", lambda factor: looked.append(factor) or components_of(factor))
    q = p["a"] * p["b"]
    ps.FeynmanKac(2, 4).sample(q, 3)
    q.validity()
    assert looked == [members["a"], members["b"]]
    other = q / p["b"]  # another composition, with factors of its own
    assert (len(q.mixtures), len(other.mixtures)) == (2, 1)
    assert other == p["a"] and copy.copy(other).mixtures == other.mixtures


@pytest.mark.parametrize(
    "what", [5, {"a": ps.Gaussian()}, ps.Family({"a": ps.Gaussian()})["a"]], ids=["5", "dict", "q"]
)
def test_only_a_family_is_composed(what):
    for compose_it in (ps.base_composition, lambda family: ps.parse("a", family)):
        with pytest.raises(ps.errors.PolyscoreError, match=r"must be a family; got (int|dict|Composition)\. Make one"):
            compose_it(what)
