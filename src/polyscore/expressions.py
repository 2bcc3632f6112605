"""The expression parser: `(a1 * a2)^0.5 / base` becomes exponents. A recursive descent over five tokens; no `eval`.

    product := power (('*' | '/') power)*
    power   := atom (('^' | '**') number)?
    atom    := name | '(' product ')'

Names may hold letters, digits, `_`, `+`, `.` and `-` after the first letter, or any text inside double quotes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import NamedTuple

from polyscore.errors import ExpressionError

_TOKENS = re.compile(
    r"""\s*(?:(?P<power>\*\*|\^)|(?P<op>[*/()])|(?P<quoted>"[^"]*")
        |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:\s*/\s*\d+\b)?(?![\w.]))|(?P<name>[A-Za-z_][\w.+-]*))""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_exponents(text: str, conditions: Collection[str]) -> dict[str, float]:
    """Return the exponent of every condition named in `text`, merged but with zeros kept out."""
    return _Parser(text, conditions).parse()


class _Parser:
    def __init__(self, text: str, conditions: Collection[str]) -> None:
        self.text, self.conditions = text, conditions
        self.tokens = self._tokenize()
        self.at = 0

    def _fail(self, message: str, position: int) -> ExpressionError:
        return ExpressionError(message, self.text, position)

    def _tokenize(self) -> list[_Token]:
        tokens, position, text = [], 0, self.text
        while position < len(text.rstrip()):
            match = _TOKENS.match(text, position)
            if match is None or match.lastgroup is None:
                position += len(text[position:]) - len(text[position:].lstrip())
                raise self._fail(
                    f"an expression must use names, numbers and * / ^ ( ); got {text[position]!r}.", position
                )
            kind = match.lastgroup
            # a number stands only behind a power sign; elsewhere `2` may start nothing
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()
        return [*tokens, _Token("end", "", len(text.rstrip()))]

    def parse(self) -> dict[str, float]:
        exponents = self._product()
        if self._next.kind != "end":
            raise self._fail(f"expected * or / before {self._next.text!r}.", self._next.position)
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
        closing = self._next.kind == "op" and self._next.text == "("
        if closing:
            self._take()
        token = self._take()
        if token.kind != "number":
            raise self._fail(
                f"{sign.text} must be followed by a number; got {token.text or 'the end'!r}.", token.position
            )
        if closing and self._take().text != ")":
            raise self._fail("a parenthesis must be closed; expected ).", self.tokens[self.at - 1].position)
        numerator, _, denominator = token.text.partition("/")
        if denominator and float(denominator) == 0:
            raise self._fail("a power must be finite; its denominator is 0.", token.position)
        return float(numerator) / float(denominator or 1)

    def _atom(self) -> dict[str, float]:
        token = self._take()
        if token.text == "(":
            inner = self._product()
            if self._take().text != ")":
                raise self._fail("a parenthesis must be closed; expected ).", self.tokens[self.at - 1].position)
            return inner
        if token.kind not in ("name", "quoted"):
            raise self._fail(f"expected a condition; got {token.text or 'the end'!r}.", token.position)
        name = token.text.strip('"')
        if name not in self.conditions:
            raise self._fail(unknown_condition(name, self.conditions), token.position)
        return {name: 1.0}


def unknown_condition(name: str, conditions: Collection[str]) -> str:
    """Return the sentence for a condition that is not in the family, with the nearest that is."""
    near = difflib.get_close_matches(name, list(conditions), n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"a condition must be one of {', '.join(map(repr, conditions))}; got {name!r}.{hint}"
