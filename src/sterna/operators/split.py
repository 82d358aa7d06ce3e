"""Splits an expression: an inner half for the places that have the messages, an outer half for the merged parts.

The inner half reaches up to the innermost aggregate and is an expression of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from sterna.operators.expression import Expression, Family, Operator
from sterna.operators.grammar import parse

#: Parts of them can be merged.  A sliding aggregate answers at every value, so its parts would say no less than the
#: values themselves.
_MERGED = (Family.SPATIAL, Family.PERIODIC)
#: Inside the aggregate: what looks at one message alone.  A difference to the previous value would have to know which
#: place had that one.
_INSIDE = (Family.RULE, Family.CONTAINS)
#: Outside: what depends on the newest answer only.  Parts over topics come less often than messages do, so an
#: operator that counts the answers would count others.
_OUTSIDE = (Family.RULE, Family.SPATIAL)


class Halves(NamedTuple):
    outside: tuple[Operator, ...]
    inside: Expression


def halves(expression: Expression) -> Halves | None:
    """None if the messages themselves have to come to one place."""
    operators = expression.operators
    place = len(operators) - 1
    while place >= 0 and operators[place].family in _INSIDE:
        place -= 1
    if place < 0 or operators[place].family not in _MERGED:
        return None
    outside, inside = operators[:place], operators[place:]
    if any(operator.family not in _OUTSIDE for operator in outside):
        return None
    block = "".join(operator.text for operator in inside)
    return Halves(outside, parse(block.encode() + b"/" + expression.topic_filter))
