"""Decides which expressions a node takes on: their operators, their number, and how much they may overlap."""

from __future__ import annotations

from collections import Counter

from sterna.broker.limits import Limits
from sterna.mqtt.topics import overlap
from sterna.operators.errors import ExpressionError
from sterna.operators.expression import WILDCARD_NAMES, Expression
from sterna.operators.functions import Functions
from sterna.operators.grammar import parse

RESULT_LEVELS = frozenset(WILDCARD_NAMES.values())


class Admission:
    __slots__ = ("_filters", "_functions", "_limits")

    def __init__(self, limits: Limits, functions: Functions) -> None:
        self._limits = limits
        #: Functions that this node can compute of a payload.
        self._functions = functions
        #: Topic filter -> how many expressions of each holder have it.
        self._filters: dict[bytes, Counter[str]] = {}

    def parsed(self, text: bytes) -> Expression:
        """Of one that was taken on."""
        try:
            return parse(text, self._functions)
        except ExpressionError:
            # Before a restart, with a function that has been taken away since.
            return parse(text, self._functions.assuming(text))

    def refusal(self, text: bytes, known: int, holder: str) -> str | None:
        """Why there can be no subscription of `holder` to this one more, if so."""
        try:
            expression = parse(text, self._functions)
        except ExpressionError as error:
            return str(error)
        if known >= self._limits.expressions:
            return f"this node computes {self._limits.expressions} expressions, and no more"
        most = self._limits.overlapping_expressions
        used, own = self._overlapping(expression.topic_filter, holder)
        if used >= most:
            return f"{most} other expressions take messages of the same topics"
        if own >= most - used:
            # The dynamic threshold of shared buffers: who holds much is refused first, and there is always room left.
            return f"{own} of your expressions take messages of the same topics; there is room for {most - used} more"
        if RESULT_LEVELS.intersection(expression.topic_filter.split(b"/")):
            return "levels named $A and $ALL stand for wildcards in the topics of results; choose another filter"
        return self._functions.refusal(expression.function) if expression.function else None

    def refuses_part(self, text: bytes, filters: list[bytes]) -> str | None:
        """Why no part of this can be computed for another node, if so; `filters` are those of the parts that are."""
        if len(filters) >= self._limits.expressions:
            return f"this node computes parts of {self._limits.expressions} expressions, and no more"
        levels = text.partition(b"/")[2].split(b"/")
        if sum(overlap(one.split(b"/"), levels) for one in filters) > self._limits.overlapping_expressions:
            return f"{self._limits.overlapping_expressions} other parts take messages of the same topics"
        return None

    def admit(self, expression: Expression, holder: str) -> None:
        self._filters.setdefault(expression.topic_filter, Counter())[holder] += 1

    def forget(self, expression: Expression, holder: str) -> None:
        of_filter = self._filters[expression.topic_filter]
        of_filter[holder] -= 1
        if not of_filter[holder]:
            del of_filter[holder]
        if not of_filter:
            del self._filters[expression.topic_filter]

    def _overlapping(self, topic_filter: bytes, holder: str) -> tuple[int, int]:
        """Expressions that may take the same message as one of this filter: all of them, and those of this holder."""
        levels = topic_filter.split(b"/")
        found = [of_filter for one, of_filter in self._filters.items() if overlap(one.split(b"/"), levels)]
        return sum(of_filter.total() for of_filter in found), sum(of_filter[holder] for of_filter in found)
