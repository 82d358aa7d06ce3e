"""An expression as a value: operators, outermost first, before a topic filter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

#: Names for wildcards in the topic of a result.
WILDCARD_NAMES = {b"+": b"$A", b"#": b"$ALL"}
_WILDCARDS = {name: wildcard for wildcard, name in WILDCARD_NAMES.items()}


def source_of(name: bytes) -> bytes:
    """The source of an expression, from its text or the topic of a result: the filter, as precisely as it tells."""
    levels = name.partition(b"/")[2].split(b"/")
    return b"/".join(_WILDCARDS.get(level, level) for level in levels)


class Family(Enum):
    """Families of operators; the value is their name in errors and plans."""

    RULE = "rule"
    CONTAINS = "text rule"
    CHANGE = "change per topic"
    SPATIAL = "aggregate over topics"
    SLIDING = "aggregate over a sliding span"
    PERIODIC = "aggregate over a period"
    FUNCTION = "data processing operator"


AGGREGATING = frozenset({Family.SPATIAL, Family.SLIDING, Family.PERIODIC})


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.  Which of the later fields mean anything depends on the family."""

    family: Family
    name: str
    """The name in full: an alias gives the name it stands for."""
    text: str
    """As written, with the `$`."""
    position: int
    """Byte of the `$` within the expression."""
    aggregate: str = ""
    """AVG, SUM, ...: what an aggregate of any family computes."""
    number: float = 0.0
    """The number that a rule compares with."""
    needle: str = ""
    """The text that CONTAINS looks for."""
    quantile: Fraction = Fraction(1, 2)
    """Of QUANTILE and MEDIAN: the share of values that lie at or below the answer."""
    span_us: int = 0
    """How far a sliding aggregate reaches back."""
    period: str = ""
    """DAILY, HOURLY or QUARTERHOURLY."""
    field: tuple[str, ...] = ()
    """The path into a structured payload; empty: the payload itself."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression."""

    text: bytes
    operators: tuple[Operator, ...]
    """Outermost first, as written.  Applied from the last to the first."""
    topic_filter: bytes

    @property
    def wildcard(self) -> bool:
        return b"+" in self.topic_filter or b"#" in self.topic_filter

    @property
    def forwards(self) -> bool:
        """Nothing but rules: the message itself goes on."""
        return all(operator.family in (Family.RULE, Family.CONTAINS) for operator in self.operators)

    @property
    def function(self) -> str:
        """The data processing function its messages go through; only the innermost operator can be one."""
        innermost = self.operators[-1]
        return innermost.name if innermost.family is Family.FUNCTION else ""

    @property
    def periodic(self) -> Operator | None:
        return next((operator for operator in self.operators if operator.family is Family.PERIODIC), None)

    @property
    def is_current_value(self) -> bool:
        """An aggregate over topics, as of now: each answer takes the place of the one before."""
        return self.periodic is None and any(operator.family is Family.SPATIAL for operator in self.operators)

    @property
    def result_topic(self) -> bytes:
        """Where results appear.  A name, so without wildcards; it still matches the subscriber's own filter, and no
        other expression has the same (in the original `#` became $A, too)."""
        block, _, topic_filter = self.text.partition(b"/")
        levels = (WILDCARD_NAMES.get(level, level) for level in topic_filter.split(b"/"))
        return block + b"/" + b"/".join(levels)

    def topic_of_result(self, topic: bytes) -> bytes:
        """Behind nothing but rules it is the message that goes on: then one sees which topic it had."""
        if self.forwards:
            return self.text.partition(b"/")[0] + b"/" + topic
        return self.result_topic
