"""The static type check: every operator gets a stream it can work with, or the expression is refused.

Read from right to left, each operator takes a stream of one type and gives one.  The two tables are the whole check,
with one rule beside them (at most one periodic operator), since a second one would pass by type.
"""

from __future__ import annotations

from enum import Enum

from sterna.operators.errors import ExpressionError
from sterna.operators.expression import Expression, Family, Operator


class StreamType(Enum):
    """The kinds of values between two operators; the value is how a plan calls it."""

    PAYLOADS = "messages"
    TEXTS = "messages whose text passed"
    NUMBERS = "a number per topic"
    NUMBER = "one number"
    SET = "at each window's end, a number per topic"
    SINGLE = "at each window's end, one number"


_P, _T, _N, _1 = StreamType.PAYLOADS, StreamType.TEXTS, StreamType.NUMBERS, StreamType.NUMBER
_S, _W = StreamType.SET, StreamType.SINGLE

#: Family -> what it takes -> what it then gives.
TABLE: dict[Family, dict[StreamType, StreamType]] = {
    Family.RULE: {_P: _N, _N: _N, _1: _1, _S: _S, _W: _W},
    Family.CONTAINS: {_P: _T, _T: _T},
    Family.CHANGE: {_P: _N, _N: _N},
    Family.SPATIAL: {_P: _1, _N: _1, _1: _1, _S: _W, _W: _W},
    Family.SLIDING: {_P: _1, _T: _1, _N: _1, _1: _1, _S: _W, _W: _W},
    Family.PERIODIC: {_P: _S, _T: _S, _N: _S, _1: _W},
    Family.FUNCTION: {_P: _N},
}

_INSTEAD: dict[Family, str] = {
    Family.RULE: "it works on numbers; put a TMP or periodic aggregate between it and CONTAINS",
    Family.CONTAINS: "it looks into the text of messages: only other CONTAINS may stand to its right; write it last",
    Family.CHANGE: "it works on each topic's own numbers: write it to the right of every aggregate, without CONTAINS",
    Family.SPATIAL: "it works on numbers; put a TMP or periodic aggregate between it and CONTAINS",
    Family.FUNCTION: "it works on the payload itself: write it last, next to the topic filter",
}


def check(expression: Expression) -> tuple[StreamType, ...]:
    """The type of what each operator gives, in the order they are written; or an ExpressionError."""
    _one_period(expression.operators)
    stream = StreamType.PAYLOADS
    found = []
    for operator in reversed(expression.operators):
        given = TABLE[operator.family].get(stream)
        if given is None:
            raise ExpressionError(operator.position, operator.text, _INSTEAD[operator.family])
        stream = given
        found.append(stream)
    return tuple(reversed(found))


def _one_period(operators: tuple[Operator, ...]) -> None:
    periodic = [operator for operator in operators if operator.family is Family.PERIODIC]
    if len(periodic) > 1:
        outer, inner = periodic[-2:]
        raise ExpressionError(
            outer.position,
            outer.text,
            f"at most one periodic operator, and {inner.text} stands to its right; leave one of the two out",
        )
