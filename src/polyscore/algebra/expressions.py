"""The expression parser: `(a1 * a2)^0.5 / base` becomes exponents. A recursive descent over five tokens; no `eval`.

    product := power (('*' | '/') power)*
    power   := atom (('^' | '**') (number | '(' number ('/' number)? ')'))?
    atom    := name | '(' product ')'

Names may hold letters, digits, `_`, `+`, `.` and `-` after the first letter, or any text inside double quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, NoReturn

from polyscore.errors import ExpressionError, ReadOnlyError, cut, listed, nearest, require, shorten

LENGTH, DEPTH = 100_000, 100
SMALLEST = 1e-12  # an exponent below this has cancelled up to rounding
# Possessive throughout (++, *+, ?+): what was matched is not given back, so a token costs its length and no more.
_TOKENS = re.compile(
    r"""(?:(?P<power>\*\*|\^)|(?P<op>[*/()])|(?P<quoted>"[^"]*+")
        |(?P<number>[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+(?![\w.]))
        |(?P<name>[A-Za-z_][\w.+-]*+))""",
    re.VERBOSE,
)
_SUMS = "Write * for + and / for -: densities multiply where scores add."
_BLANKS = re.compile(r"\s*+")
_NAME = re.compile(r"[A-Za-z_][\w.+-]*+")


class Exponents(dict[str, float]):
    """Exponents by condition: a dict that nobody can write into, so that a composition stays what it is."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ReadOnlyError(
            'exponents must stay as they are; got a change. Build another composition: q * p["a"], '
            "or Composition(family, {**q.exponents, ...})."
        )

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def copy(self) -> dict[str, float]:
        """Return an ordinary dict of them."""
        return dict(self)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_exponents(text: str, conditions: Collection[str]) -> dict[str, float]:
    """Return the exponent of every condition named in `text`, merged but with zeros kept out."""
    return _Parser(text, conditions).parse()


class _Parser:
    def __init__(self, text: str, conditions: Collection[str]) -> None:
        require(isinstance(text, str), "an expression", 'be text, such as "a1 * a2 / base"', shorten(text),
                "Write it in quotes, or multiply compositions in Python.")  # fmt: skip
        if len(text) > LENGTH:
            raise self._too_long(text)
        self.text, self.conditions = text, conditions
        self.tokens = list(self._tokenize())
        self.at = self.depth = 0

    @staticmethod
    def _too_long(text: str) -> ExpressionError:
        rule, remedy = f"be at most {LENGTH} characters long", "Multiply compositions in Python instead."
        return ExpressionError(f"an expression must {rule}; got {len(text)}. {remedy}", text, 0)

    def _fail(self, message: str, position: int) -> ExpressionError:
        return ExpressionError(message, self.text, position)

    def _tokenize(self) -> Iterable[_Token]:
        position, end = self._skip(0), len(self.text.rstrip())
        while position < end:
            match = _TOKENS.match(self.text, position)
            if match is None or match.lastgroup is None:
                message = f"an expression must use names, numbers and * / ^ ( ); got {self.text[position]!r}."
                hint = _SUMS if self.text[position] in "+-−–" else 'Quote other names: "drug A".'
                raise self._fail(f"{message} {hint}", position)
            # a number stands only behind a power sign; elsewhere `2` may start nothing
            yield _Token(match.lastgroup, match[match.lastgroup], position)
            position = self._skip(match.end())
        yield _Token("end", "", end)

    def _skip(self, position: int) -> int:
        blanks = _BLANKS.match(self.text, position)
        return blanks.end() if blanks else position

    def parse(self) -> dict[str, float]:
        exponents = self._product()
        if self._next.kind != "end":
            raise self._fail(
                f"expected * or / before {shorten(self._next.text, 60)}. Write one there.", self._next.position
            )
        return exponents

    @property
    def _next(self) -> _Token:
        return self.tokens[self.at]

    def _take(self) -> _Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def _product(self) -> dict[str, float]:
        exponents = self._power()
        while self._next.kind == "op" and self._next.text in "*/":
            sign = 1.0 if self._take().text == "*" else -1.0
            for name, value in self._power().items():
                exponents[name] = exponents.get(name, 0.0) + sign * value
        return exponents

    def _power(self) -> dict[str, float]:
        exponents = self._atom()
        if self._next.kind != "power":
            return exponents
        power = self._exponent(self._take())
        if self._next.kind == "power":
            raise self._fail("a power of a power must be written with parentheses, (a^2)^3.", self._next.position)
        return {name: value * power for name, value in exponents.items()}

    def _exponent(self, sign: _Token) -> float:
        if self._next.text == "(":
            self._take()
            value = self._number(sign)
            if self._next.text == "/":
                slash = self._take()
                denominator = self._number(slash)
                if denominator == 0:
                    raise self._fail("a power must be finite; its denominator is 0. Write another.", slash.position + 1)
                value /= denominator
            if self._take().text != ")":
                raise self._fail("a parenthesis must be closed; expected ).", self.tokens[self.at - 1].position)
            return value
        value = self._number(sign)
        if self._next.text == "/" and self.tokens[self.at + 1].kind == "number":
            raise self._fail("a fraction in a power must stand in parentheses, a^(1/2).", self._next.position)
        return value

    def _number(self, before: _Token) -> float:
        token = self._take()
        found = shorten(token.text or "the end", 60)
        if token.kind != "number":
            raise self._fail(f"{before.text} must be followed by a number; got {found}. Write a^0.5.", token.position)
        value = float(token.text)
        if not math.isfinite(value) or (abs(value) < SMALLEST and _is_not_zero(token.text)):
            raise self._fail(
                f"a power must be 0 or between {SMALLEST:g} and 1e308; got {found}. Write another.", token.position
            )
        return value

    def _atom(self) -> dict[str, float]:
        token = self._take()
        if token.text == "(":
            self.depth += 1
            if self.depth > DEPTH:
                raise self._fail(
                    f"parentheses must nest at most {DEPTH} deep; got one more. Leave some out.", token.position
                )
            inner = self._product()
            self.depth -= 1
            if self._take().text != ")":
                raise self._fail("a parenthesis must be closed; expected ).", self.tokens[self.at - 1].position)
            return inner
        if token.kind not in ("name", "quoted"):
            hint = _in_quotes(token.text) if token.text in self.conditions else "Write one there."
            raise self._fail(
                f"expected a condition; got {shorten(token.text or 'the end', 60)}. {hint}", token.position
            )
        name = token.text.strip('"')
        if name not in self.conditions:
            raise self._fail(self._unknown(name, token), token.position)
        return {name: 1.0}

    def _unknown(self, name: str, token: _Token) -> str:
        """The sentence for a name that is no condition: one that wants quotes, a sum of some, or misspelt."""
        bare = [each for each in self.conditions if quoted(each) != each and self.text.startswith(each, token.position)]
        if bare:
            return f"expected a condition; got {shorten(name, 60)}. {_in_quotes(max(bare, key=len))}"
        parts = re.split(r"[+-]", name)
        if len(parts) > 1 and all(part in self.conditions for part in parts):
            return f"a condition must be one of {listed(self.conditions)}; got {shorten(name, 60)}. {_SUMS}"
        return unknown_condition(name, self.conditions)


def _in_quotes(name: str) -> str:
    return f'A condition of that name stands in double quotes: "{cut(name, 60)}".'


def _is_not_zero(number: str) -> bool:
    """Whether a number as it is written is another than 0, also where a float cannot hold it: 1e-400."""
    return any(digit in "123456789" for digit in re.split("[eE]", number)[0])


def quoted(name: str) -> str:
    """Return a name as an expression writes it: in quotes unless it is plain."""
    return name if _NAME.fullmatch(name) else f'"{name}"'


def unknown_condition(name: object, conditions: Collection[str]) -> str:
    """Return the sentence for a condition that is not in the family, with the nearest that is."""
    hint = nearest(name, conditions, cutoff=0.4) or " Choose one of these."
    return f"a condition must be one of {listed(conditions)}; got {shorten(name, 60)}.{hint}"
