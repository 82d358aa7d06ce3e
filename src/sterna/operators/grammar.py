"""Parses the text of a subscription into a checked expression, or into an error that points at the operator at fault.

    expression := ("$" operator)+ "/" topic-filter          split at the first "/"
    operator   := NAME (";" parameter)* [";" field]         the field on the innermost operator only
    field      := ("." segment)+                            names within objects, numbers within arrays
    number     := ["-"] digits ["." digits]
    span       := H ":" MM ":" SS                           0:00:01 to 23:59:59

Parameters hold no "/" and no "$", which end them, and no "+" and "#": for MQTT an expression is a topic filter, where
these stand alone or not at all [MQTT-4.7.1].  The text comes from any client: everything is bounded, and the only
outcome besides an expression is an ExpressionError.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from fractions import Fraction

from sterna.mqtt.topics import SHARE, is_topic_filter, split_share
from sterna.operators.errors import ExpressionError
from sterna.operators.exact_sum import NUMBER_MAX
from sterna.operators.expression import Expression, Family, Operator
from sterna.operators.functions import NO_FUNCTIONS, Functions
from sterna.operators.keywords import Keyword
from sterna.operators.types import check

#: Part of the language rather than settings: an expression that one node takes, every node takes.
EXPRESSION_BYTES_MAX = 1024
OPERATORS_MAX = 16
_FILTER_LEVELS_MAX = 128

_BEGINNING = re.compile(rb"\$([A-Z][A-Z0-9]*)(?=[;$/]|\Z)")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SPAN = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])")


def is_expression(topic_filter: bytes) -> bool:
    """Is this meant as an expression?  Then `parse` says which, or why not; else it is a plain topic filter."""
    if topic_filter.startswith(SHARE):
        shared = split_share(topic_filter)
        topic_filter = b"" if shared is None else shared[1]
    beginning = _BEGINNING.match(topic_filter)
    return beginning is not None and beginning[1] != b"SYS"


def parse(text: bytes, functions: Functions = NO_FUNCTIONS) -> Expression:
    if len(text) > EXPRESSION_BYTES_MAX:
        raise ExpressionError(
            EXPRESSION_BYTES_MAX, "expression", f"longer than {EXPRESSION_BYTES_MAX} bytes; shorten it"
        )
    _plain(text)
    block, slash, topic_filter = text.partition(b"/")
    if not slash:
        raise ExpressionError(len(text), "expression", "no topic filter; write / and a filter behind the operators")
    operators = _operators(block, functions.words())
    _check_filter(topic_filter, len(block) + 1)
    expression = Expression(text, operators, topic_filter)
    check(expression)
    return expression


def _plain(text: bytes) -> None:
    """Neither shared, nor broken text, nor something else altogether."""
    if text.startswith(SHARE):
        raise ExpressionError(0, "$share", "expressions cannot be shared: subscribe to the expression itself")
    if not text.startswith(b"$"):
        raise ExpressionError(0, "expression", "begins with $ and an operator, as in $AVG/room/+/temperature")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise ExpressionError(error.start, "expression", "is not UTF-8; write it in UTF-8") from None


def _check_filter(topic_filter: bytes, position: int) -> None:
    shown = topic_filter.decode()
    if is_expression(topic_filter):
        raise ExpressionError(position, shown, "operators stand before the first /, as in $MAX$HOURLYAVG/room/+")
    if not is_topic_filter(topic_filter, _FILTER_LEVELS_MAX, EXPRESSION_BYTES_MAX) or topic_filter.startswith(SHARE):
        raise ExpressionError(position, shown, "is no topic filter; + and # stand alone between /, # only at the end")


def _operators(block: bytes, words: dict[str, Keyword]) -> tuple[Operator, ...]:
    pieces = block.decode().split("$")[1:]
    operators = []
    position = 0
    for place, piece in enumerate(pieces):
        if place == OPERATORS_MAX:
            raise ExpressionError(position, f"${piece}", f"at most {OPERATORS_MAX} operators; leave some out")
        operators.append(_Written(piece, position, place == len(pieces) - 1, words).operator())
        position += 1 + len(piece.encode())
    return tuple(operators)


class _Written:
    """One operator as it stands there, about to be understood."""

    def __init__(self, piece: str, position: int, innermost: bool, words: dict[str, Keyword]) -> None:
        self.name, *self.parameters = piece.split(";")
        self.text = f"${piece}"
        self.position = position
        self.innermost = innermost
        self.words = words

    def fault(self, text: str) -> ExpressionError:
        return ExpressionError(self.position, self.text, text)

    def operator(self) -> Operator:
        if "+" in self.text or "#" in self.text:
            raise self.fault("+ and # are wildcards, even here; leave them out")
        word = self.words.get(self.name)
        if word is None:
            raise self.unknown()
        field = self.take_field(word)
        number, quantile, needle, span_us = 0.0, Fraction(1, 2), "", 0
        if word.family is Family.RULE:
            number = self.number(word)
        elif word.family is Family.CONTAINS:
            needle = self.needle(word)
        elif word.family is Family.SLIDING:
            span_us = self.span_us(word)
        elif word.aggregate == "QUANTILE":
            quantile = self.quantile(word)
        elif self.parameters:
            raise self.fault(f"takes no parameter but a field; write {word.example}")
        return Operator(
            word.family, word.name, self.text, self.position, word.aggregate, number, needle, quantile, span_us,
            word.period, field,
        )  # fmt: skip

    def unknown(self) -> ExpressionError:
        near = get_close_matches(self.name.upper(), self.words, 1, 0.5) if len(self.name) <= 64 else []
        return self.fault("unknown operator" + (f"; write ${near[0]}" if near else "; see $SYS/capabilities"))

    def take_field(self, word: Keyword) -> tuple[str, ...]:
        """The last parameter if it is a field.  The first one of CONTAINS is always its text."""
        least = 2 if word.family is Family.CONTAINS else 1
        if len(self.parameters) < least or not self.parameters[-1].startswith("."):
            return ()
        path = self.parameters.pop()
        if not self.innermost:
            raise self.fault(f"only the last operator takes a field; move ;{path} there")
        if word.family is Family.FUNCTION:
            raise self.fault(f"works on the whole payload; write {word.example}")
        segments = tuple(path.split(".")[1:])
        if not all(segments):
            raise self.fault("an empty name in the field; write it like ;.sensor.temperature or ;.values.0")
        return segments

    def only(self, word: Keyword, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        matched = pattern.fullmatch(self.parameters[0]) if len(self.parameters) == 1 else None
        if matched is None:
            raise self.fault(f"takes {what}; write it like {word.example}")
        return matched

    def number(self, word: Keyword) -> float:
        number = float(self.only(word, _NUMBER, "one number (digits, no exponent)")[0])
        if not abs(number) < NUMBER_MAX:
            raise self.fault("the number is out of range; numbers are smaller than 2^127 in magnitude")
        return number + 0.0

    def quantile(self, word: Keyword) -> Fraction:
        quantile = Fraction(self.only(word, _NUMBER, "one number from 0 to 1")[0])
        if not 0 <= quantile <= 1:
            raise self.fault(f"takes a number from 0 to 1; write it like {word.example}")
        return quantile

    def needle(self, word: Keyword) -> str:
        needle = ";".join(self.parameters)
        if not needle:
            raise self.fault(f"takes the text to look for; write it like {word.example}")
        return needle

    def span_us(self, word: Keyword) -> int:
        what = "a span H:MM:SS (hours, minutes, seconds) from 0:00:01 to 23:59:59"
        hours, minutes, seconds = map(int, self.only(word, _SPAN, what).groups())
        span_s = (hours * 60 + minutes) * 60 + seconds
        if not span_s:
            raise self.fault(f"takes {what}; write it like {word.example}")
        return span_s * 1_000_000
