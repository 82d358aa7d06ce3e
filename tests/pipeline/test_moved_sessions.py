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
    return (node, client, session, "t", 2, False, None, since, since, until, *vectors, over, came, went)


def deliveries(client: str, node: str, session: int, *sequences: int) -> list[tuple[Any, ...]]:
    """Places are of the node: those of a node that came later may be smaller."""
    return [
        (node, 1, 1000 * (node == "a") + number, second(number + 0.5), client, session, None, "a", 1, number, 2, False,
         False, None, 1)
        for number in sequences
    ]  # fmt: skip


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
