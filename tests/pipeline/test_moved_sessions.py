"""A session that goes on at another node is one session for the audit: nothing it brought along is held against it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sterna.pipeline.audit.contract import audit
from sterna.pipeline.audit.moved_sessions import continued
from sterna.pipeline.audit.node_records import DELIVERIES
from sterna.pipeline.audit.subscription_intervals import INTERVALS

from .test_audit import MESSAGES

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def second(number: float) -> datetime:
    return NOON + timedelta(seconds=number)


def subscription(
    client: str, node: str, session: int, begin: float, end: float | None, after: int, reached: int | None, over: Any
) -> tuple[Any, ...]:
    """To everything, of messages that all come in at node "a".  Sessions are numbered as they go from node to node."""
    until = None if end is None else second(end)
    vectors = [None if number is None else {"a": (1, number)} for number in (after, reached)]
    since = second(begin)
    came, went = session if session > 1 else None, session + 1 if over == "moved" else None
    return (node, client, session, "t", 2, False, None, since, since, until, *vectors, over, came, went, None)


def new_session(client: str, node: str, number: int, begin: float, after: int) -> tuple[Any, ...]:
    """In place of one at a node that was away, which went on under this number when it was back."""
    since, vector = second(begin), {"a": (1, after)}
    return (node, client, 7, "t", 2, False, None, since, since, None, vector, None, None, number, None, vector)


def deliveries(client: str, node: str, session: int, *sequences: int) -> list[tuple[Any, ...]]:
    """Places are of the node: those of a node that came later may be smaller."""
    return [
        (node, 1, 1000 * (node == "a") + number, second(number + 0.5), client, session, None, "a", 1, number, 2, False,
         False, None, 1)
        for number in sequences
    ]  # fmt: skip


def later(node: str, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Received after all others there."""
    return [(*row[:2], row[2] + 10_000, *row[3:]) for row in rows if row[0] == node]


MOVED = [
    # There and back again; 8 and 9 were queued at the one node and delivered by the next.
    subscription("there and back", "a", 1, -5, 10.2, -1, 10, "moved"),
    subscription("there and back", "b", 2, 10.1, 20.2, 9, 20, "moved"),
    subscription("there and back", "a", 3, 20.1, None, 19, None, None),
    # The same, and the clock of the other node is slow.
    subscription("by two clocks", "a", 1, -5, 10.2, -1, 10, "moved"),
    subscription("by two clocks", "b", 2, -19.9, -9.8, 9, 20, "moved"),
    subscription("by two clocks", "a", 3, 20.1, None, 19, None, None),
    # One message was lost on the way, and one came twice.
    subscription("unlucky", "a", 1, -5, 10.2, -1, 10, "moved"),
    subscription("unlucky", "b", 2, 10.1, None, 9, None, None),
    # It moved, nobody says where to, and it came back as somebody new.
    subscription("vanished", "a", 1, -5, 10.2, -1, 10, "moved"),
    # It went away by itself and later began another session elsewhere.
    subscription("another", "a", 1, -5, 10.2, -1, 10, "ended"),
    subscription("another", "b", 1, 15.0, None, 14, None, None),
    # Its node was away, and it had a new session at another: 8 to 12 waited, and came after some of what that heard.
    subscription("replaced", "a", 1, -5, 22.0, -1, 14, "moved"),
    new_session("replaced", "b", 2, 12.5, 12),
    # Messages that came in before its old node was back were left to that node.
    subscription("left to the old", "a", 1, -5, 22.0, -1, 20, "moved"),
    new_session("left to the old", "b", 2, 12.5, 12),
    # But not out of order once it had handed over.
    subscription("in disorder", "a", 1, -5, 22.0, -1, 20, "moved"),
    new_session("in disorder", "b", 2, 12.5, 12),
    # One that waited has not come and one of the later ones has: the first still waits, and 15 is overtaken.
    subscription("waits", "a", 1, -5, 22.0, -1, 14, "moved"),
    new_session("waits", "b", 2, 12.5, 12),
    # One of those that waited was lost when they were handed over, and one came twice.
    subscription("ill replaced", "a", 1, -5, 22.0, -1, 14, "moved"),
    new_session("ill replaced", "b", 2, 12.5, 12),
    # Its old node has not come back.
    new_session("left alone", "b", 2, 12.5, 12),
]
HEARD = [
    *deliveries("there and back", "a", 1, *range(8)),
    *deliveries("there and back", "b", 2, *range(8, 18)),
    *deliveries("there and back", "a", 3, *range(18, 30)),
    *deliveries("by two clocks", "a", 1, *range(8)),
    *deliveries("by two clocks", "b", 2, *range(8, 18)),
    *deliveries("by two clocks", "a", 3, *range(18, 30)),
    *deliveries("unlucky", "a", 1, *range(10)),
    *deliveries("unlucky", "b", 2, 9, *range(11, 30)),
    *deliveries("vanished", "a", 1, *range(11)),
    *deliveries("another", "a", 1, *range(9)),
    *deliveries("another", "b", 1, *range(15, 30)),
    *deliveries("replaced", "a", 1, *range(8)),
    *deliveries("replaced", "b", 7, *range(13, 20)),
    *later("b", *deliveries("replaced", "b", 7, *range(8, 13))),
    *later("b", *deliveries("replaced", "b", 7, *range(20, 30))),
    *deliveries("left to the old", "a", 1, *range(8)),
    *deliveries("left to the old", "b", 7, *range(21, 25)),
    *later("b", *deliveries("left to the old", "b", 7, *range(8, 21))),
    *later("b", *deliveries("left to the old", "b", 7, *range(25, 30))),
    *deliveries("in disorder", "a", 1, *range(8)),
    *deliveries("in disorder", "b", 7, *range(8, 21), *range(22, 30)),
    *later("b", *deliveries("in disorder", "b", 7, 21)),
    *deliveries("waits", "a", 1, *range(12)),
    *deliveries("waits", "b", 7, 13, 14, *range(16, 30)),
    *deliveries("ill replaced", "a", 1, *range(8)),
    *later("b", *deliveries("ill replaced", "b", 7, 7, 8, *range(10, 30))),
    *deliveries("left alone", "b", 7, *range(13, 30)),
]


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    return continued(spark.createDataFrame(MOVED, INTERVALS), spark.createDataFrame(HEARD, DELIVERIES))


@pytest.fixture(scope="module")
def found(spark: SparkSession, tables: tuple[DataFrame, DataFrame]) -> dict[str, list[tuple[Any, ...]]]:
    messages = [("t", 2, "p", "a", 1, number, second(number)) for number in range(30)]
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for row in audit(spark.createDataFrame(messages, MESSAGES), *tables).orderBy("node").collect():
        counts = (row.expected, row.delivered, row.lost, row.dropped, row.duplicated, row.reordered)
        rows.setdefault(row.client, []).append((row.node, *counts))
    return rows


def test_what_was_queued_at_one_node_and_delivered_by_the_next_was_delivered(
    found: dict[str, list[tuple[Any, ...]]],
) -> None:
    assert found["there and back"] == [("a", 30, 30, 0, 0, 0, 0)]
    assert found["by two clocks"] == found["there and back"]


def test_what_is_lost_or_comes_twice_on_the_way_is_noticed(found: dict[str, list[tuple[Any, ...]]]) -> None:
    assert found["unlucky"] == [("a", 30, 29, 1, 0, 1, 0)]


def test_a_session_that_arrived_nowhere_has_ended(tables: tuple[DataFrame, DataFrame]) -> None:
    whole, _ = tables
    assert [row.over for row in whole.where("client = 'vanished'").collect()] == ["ended"]


def test_sessions_of_one_client_that_have_nothing_to_do_with_each_other_stay_apart(
    found: dict[str, list[tuple[Any, ...]]],
) -> None:
    assert found["another"] == [("a", 11, 9, 0, 2, 0, 0), ("b", 15, 15, 0, 0, 0, 0)]


def test_a_new_session_goes_on_with_what_it_took_the_place_of(found: dict[str, list[tuple[Any, ...]]]) -> None:
    assert found["replaced"] == [("a", 30, 30, 0, 0, 0, 0)]
    assert found["left to the old"] == found["replaced"]
    assert found["left alone"] == [("b", 17, 17, 0, 0, 0, 0)]


def test_what_it_hears_itself_comes_in_order(found: dict[str, list[tuple[Any, ...]]]) -> None:
    assert found["in disorder"] == [("a", 30, 30, 0, 0, 0, 1)]


def test_what_waits_for_a_node_that_was_away_is_not_overtaken_by_what_the_new_session_heard(
    found: dict[str, list[tuple[Any, ...]]],
) -> None:
    assert found["waits"] == [("a", 30, 28, 1, 0, 0, 0)]


def test_what_is_lost_or_comes_twice_when_it_is_handed_over_is_noticed(
    found: dict[str, list[tuple[Any, ...]]],
) -> None:
    assert found["ill replaced"] == [("a", 30, 29, 1, 0, 1, 0)]
