"""Which expressions a node takes on: what they may be made of, how many there may be, and how much they may overlap."""

from __future__ import annotations

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
        #: What this node can compute of a payload.
        self._functions = functions
        #: Topic filter -> how many expressions have it.
        self._filters: dict[bytes, int] = {}

    def parsed(self, text: bytes) -> Expression:
        """Of one that was taken on."""
        try:
            return parse(text, self._functions)
        except ExpressionError:
            # Before a restart, with a function that has been taken away since.
            return parse(text, self._functions.assuming(text))

    def refusal(self, text: bytes, known: int) -> str | None:
        """Why there can be no subscription to this one more, if so."""
        try:
            expression = parse(text, self._functions)
        except ExpressionError as error:
            return str(error)
        if known >= self._limits.expressions:
            return f"this node computes {self._limits.expressions} expressions, and no more"
        if self._overlapping(expression.topic_filter) >= self._limits.overlapping_expressions:
            return f"{self._limits.overlapping_expressions} other expressions take messages of the same topics"
        if RESULT_LEVELS.intersection(expression.topic_filter.split(b"/")):
            return "levels named $A and $ALL stand for wildcards in the topics of results; choose another filter"
        function = expression.function
        if function and self._functions.get(function) is None:
            return f"no function computes ${function} here; see $SYS/capabilities"
        return None

    def refuses_part(self, text: bytes, filters: list[bytes]) -> str | None:
        """Why no part of this can be computed for another node, if so; `filters` are those of the parts that are."""
        if len(filters) >= self._limits.expressions:
            return f"this node computes parts of {self._limits.expressions} expressions, and no more"
        levels = text.partition(b"/")[2].split(b"/")
        if sum(overlap(one.split(b"/"), levels) for one in filters) > self._limits.overlapping_expressions:
            return f"{self._limits.overlapping_expressions} other parts take messages of the same topics"
        return None

    def admit(self, expression: Expression) -> None:
        self._filters[expression.topic_filter] = self._filters.get(expression.topic_filter, 0) + 1

    def forget(self, expression: Expression) -> None:
        self._filters[expression.topic_filter] -= 1
        if not self._filters[expression.topic_filter]:
            del self._filters[expression.topic_filter]

    def _overlapping(self, topic_filter: bytes) -> int:
        """Expressions that may take the same message as one of this filter."""
        levels = topic_filter.split(b"/")
        return sum(overlap(one.split(b"/"), levels) * count for one, count in self._filters.items())
