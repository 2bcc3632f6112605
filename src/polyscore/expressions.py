"""The expression parser: `(a1 * a2)^0.5 / base` becomes exponents. A recursive descent over five tokens; no `eval`.

    product := power (('*' | '/') power)*
    power   := atom (('^' | '**') (number | '(' number ('/' number)? ')'))?
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
        |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))|(?P<name>[A-Za-z_][\w.+-]*))""",
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
                message = f"an expression must use names, numbers and * / ^ ( ); got {text[position]!r}."
                raise self._fail(f'{message} Quote other names: "drug A".', position)
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
        if self._next.text == "(":
            self._take()
            value = self._number(sign)
            if self._next.text == "/":
                slash = self._take()
                denominator = self._number(slash)
                if denominator == 0:
                    raise self._fail("a power must be finite; its denominator is 0.", slash.position + 1)
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
        if token.kind != "number":
            found = repr(token.text or "the end")
            raise self._fail(f"{before.text} must be followed by a number; got {found}.", token.position)
        return float(token.text)

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


def quoted(name: str) -> str:
    """Return a name as an expression writes it: in quotes unless it is plain."""
    return name if re.fullmatch(r"[A-Za-z_][\w.+-]*", name) else f'"{name}"'


def unknown_condition(name: str, conditions: Collection[str]) -> str:
    """Return the sentence for a condition that is not in the family, with the nearest that is."""
    near = difflib.get_close_matches(name, list(conditions), n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"a condition must be one of {', '.join(map(repr, conditions))}; got {name!r}.{hint}"
