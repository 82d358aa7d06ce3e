"""Random expressions and streams for property tests: every operator of the language, times that jump both ways.

An event is drawn as one number and read off tables: many events per second, and what fails still shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from sterna.operators.errors import ExpressionError
from sterna.operators.expression import Expression
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings

#: Short enough that random streams cross their ends.
SHORT = OperatorSettings(expiry_s=30, daily_s=40, hourly_s=10, quarter_hourly_s=3)
SHORT_BY_THE_WALL = OperatorSettings(anchor="wall", expiry_s=30, daily_s=40, hourly_s=10, quarter_hourly_s=3)
#: A whole second, so that events fall on the ends of windows.
SINCE_US = 1_700_000_001_000_000

AGGREGATES = ["AVG", "SUM", "MIN", "MAX", "COUNT", "STDDEV", "MEDIAN"]
RULES = [f"${name};{number}" for name, number in product(["GT", "GTE", "LT", "LTE", "EQ", "NEQ"], ["0", "2.5", "3"])]
TEXT_RULES = ["$CONTAINS;1", "$CONTAINS;."]
CHANGES = ["$DELTA", "$RATE"]
SPATIAL = [f"${name}" for name in [*AGGREGATES, "LAST", "QUANTILE;0", "QUANTILE;0.25", "QUANTILE;1"]]
SLIDING = [f"$TMP{name};0:00:{seconds}" for name, seconds in product(AGGREGATES, ["01", "05", "20"])]
PERIODIC = [f"${period}{name}" for period, name in product(["DAILY", "HOURLY", "QUARTERHOURLY"], AGGREGATES)]

families = st.sampled_from([RULES, TEXT_RULES, CHANGES, SPATIAL, SPATIAL, SLIDING, PERIODIC])
operators = families.flatmap(st.sampled_from)


def expressions() -> st.SearchStrategy[Expression]:
    return st.tuples(operators, st.lists(operators, max_size=4)).flatmap(lambda drawn: _written([drawn[0], *drawn[1]]))


def windowed(inside: list[str]) -> st.SearchStrategy[Expression]:
    """With a period, and within it some of these operators."""
    parts = st.tuples(
        st.lists(st.sampled_from(inside), max_size=2), st.sampled_from(PERIODIC), st.lists(operators, max_size=3)
    )
    return parts.flatmap(lambda drawn: _written([*drawn[0], drawn[1], *drawn[2]])).filter(lambda one: one.periodic)


@st.composite
def _written(draw: st.DrawFn, chosen: list[str]) -> Expression:
    """One operator after the other is put in front, each kept if the result still is an expression."""
    topic_filter = draw(st.sampled_from(["t/+", "t/+", "t/a", "#"]))
    field = draw(st.sampled_from(["", "", "", ";.v", ";.l.1"]))
    text = f"{chosen[0]}{field}/{topic_filter}"
    for operator in chosen[1:]:
        try:
            parse(f"{operator}{text}".encode())
        except ExpressionError:
            continue
        text = operator + text
    return parse(text.encode())


@dataclass(frozen=True)
class Event:
    """A message, or (without a topic) nothing but the time that has passed."""

    passed_us: int
    topic: bytes
    payload: bytes


PASSED_US = [0, 0, 1, 500_000, 1_000_000, 1_000_000, 2_000_000, 3_000_000, 5_000_000, 10_000_000, 20_000_000,
             30_000_000, -2_000_000]  # fmt: skip
TOPICS = [b"t/c", b"t/a", b"t/d", b"t/b", b""]
ORDINARY = [str(number).encode() for number in (0, 1, 2, 2.5, 3, 4, 5, -1, 0.1, 0.7)]
STRANGE = [b"-0.0", b"1e30", b"-1e-30", b"1e-300", b"2.5e-13", b"-3e12", b" 7.25\n"]
NO_NUMBERS = [b"", b"warm", b"nan", b"inf", b"1_0", b"12 34", b"1e39", b"9" * 65, b"\xff\xfe1"]
PLAIN = [*ORDINARY * 4, *STRANGE, *NO_NUMBERS]
SHAPES = [
    b'{"v": %b}',
    b'{"v": %b}',
    b'{"v": %b, "l": [1, %b]}',
    b'{"l": [0, "%b"], "v": "%b"}',
    b'{"v": true, %b',
    b"[%b]",
]
STRUCTURED = [shape.replace(b"%b", number) for shape, number in product(SHAPES, [*ORDINARY, b"nan", b"1e39", b"null"])]


def streams(expression: Expression) -> st.SearchStrategy[list[Event]]:
    topics = TOPICS if expression.wildcard else [b"t/a", b"t/a", b""]
    payloads = STRUCTURED if expression.operators[-1].field else PLAIN
    combinations = len(PASSED_US) * len(topics) * len(payloads)

    def event(number: int) -> Event:
        number, passed = divmod(number, len(PASSED_US))
        payload, topic = divmod(number, len(topics))
        return Event(PASSED_US[passed], topics[topic], payloads[payload])

    return st.lists(st.integers(0, combinations - 1), min_size=5, max_size=24).map(lambda all_: [*map(event, all_)])
