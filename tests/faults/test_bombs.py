"""Small inputs that once took minutes, gigabytes or the whole stack: each is refused at once, in our words.

Where the defect was a hang the call runs in a process of its own, with a guard of a minute: far above what it takes,
far below what it took.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import polyscore as ps
from polyscore.errors import ExpressionError, PolyscoreError, nearest, require, shorten

FAMILY = ps.Family({"a1": ps.Gaussian(), "a2": ps.Gaussian(), "base": ps.Gaussian()})


def refused(*calls: str, megabytes: int = 6000) -> list[str]:
    """Run calls in one process with bounded memory; return the message of the error of ours that each must raise."""
    program = f"""
import json, resource
resource.setrlimit(resource.RLIMIT_AS, ({megabytes} << 20,) * 2)
import polyscore as ps
from polyscore.errors import PolyscoreError
def message(call):
    try:
        call()
    except PolyscoreError as error:
        return str(error)
print(json.dumps([message(call) for call in ({"".join(f"lambda: {call}, " for call in calls)})]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:]
    messages = json.loads(done.stdout)
    assert [call for call, message in zip(calls, messages, strict=True) if not message] == []
    return messages


# expressions
def test_long_tokens_cost_their_length() -> None:
    texts = ["'a1^' + '1' * 50_000 + 'x'", "'a1^' + '1' * 49_000 + '.' + '1' * 49_000 + 'x'", "' ' * 99_000 + '?'",
             "'a1^1e' + '1' * 99_000 + '.'", "'\"' + 'a' * 99_000", "'*' * 99_000", "'a1^' + '9' * 90_000",
             "'a' * 99_000"]  # fmt: skip
    found = refused(
        *(f"ps.parse({text}, ps.Family({{'a1': ps.Gaussian()}}))" for text in texts),
        "ps.Family({'a' * 200: ps.Gaussian()})['ab' * 2_000_000]",
    )
    assert all(len(message) < 1000 for message in found) and all("^" in message for message in found[:-1])


def test_an_expression_is_bounded_in_length_and_depth() -> None:
    with pytest.raises(ExpressionError, match="must be at most 100000 characters long; got 10000000"):
        ps.parse("a1*" * 3_333_333 + "a", FAMILY)
    for depth in (101, 330, 40_000):
        with pytest.raises(ExpressionError, match="parentheses must nest at most 100 deep"):
            ps.parse("(" * depth + "a1" + ")" * depth, FAMILY)
    assert ps.parse("(" * 100 + "a1" + ")" * 100, FAMILY) == FAMILY["a1"]
    assert ps.parse("(a1)" + "*(a1)" * 5000, FAMILY).exponents == {"a1": 5001}  # beside one another is not deep


@pytest.mark.parametrize("power", ["1e999", "-1e999", "1e-400", "1e-13", "(1/1e999)", "9" * 400])
def test_powers_that_a_float_cannot_hold_are_refused(power: str) -> None:
    with pytest.raises(ExpressionError, match="a power must be 0 or between 1e-12 and 1e308"):
        ps.parse(f"a1^{power}", FAMILY)
    with pytest.raises(PolyscoreError, match="must be a finite number"):
        ps.parse("(a1^1e200)^1e200", FAMILY)
    assert ps.parse("a1 * a2^0e5 * base^-0.0", FAMILY).exponents == {"a1": 1}


@pytest.mark.parametrize("text", ["a1^\u0661", "a1^\uff11", "a1^\u00b2", "a1\u200b", "\u202ea1", "\uff411", "a1^1_000"])
def test_letters_and_digits_that_only_look_alike_are_no_numbers_and_names(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        ps.parse(text, FAMILY)
    assert str(caught.value).replace("\n", "").isprintable()


def test_what_is_known_is_listed_up_to_a_bound() -> None:
    assert "Did you mean 'base'?" in nearest("bas", FAMILY)
    many = ps.Family({f"condition {k}": ps.Gaussian() for k in range(5000)})
    with pytest.raises(PolyscoreError, match=r"\(5000 in all\); got 'nobody'"):
        many["nobody"]


# values in messages
def test_the_text_of_a_bomb_is_bounded() -> None:
    bomb: object = "boom"
    for _ in range(60):
        bomb = {"key": [bomb] * 10}
    assert len(shorten(bomb)) <= 200
    for value in (bomb, "x" * 10**7, 10**5000, [10**5000], {"a": "\x1b[31m" * 100}, ("\ud800\u202e",)):
        with pytest.raises(PolyscoreError) as caught:
            require(False, "a value", "be small", value, "Shrink it.")
        message = str(caught.value)
        assert len(message) < 300 and message.isprintable() and message.endswith("Shrink it.")


def test_an_object_that_cannot_be_shown_does_not_hide_the_error() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    with pytest.raises(PolyscoreError, match="a value must be a number; got <Silent"):
        require(False, "a value", "be a number", Silent())
