"""What a node's feed says to a job that computes for it, and what it takes from one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from live.nodes import wait_until
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.feed.errors import FeedRefused
from sterna.runtime.feed.spark_results import LogClock

from .feeding import FeedingNode

SPARKS = '[operators]\nengine = "auto"\nspark_period_s = 1800\n'


def test_an_instant_is_over_when_everything_from_before_is_safe() -> None:
    clock = LogClock()
    assert clock.look(10, 0, 0) == 10
    assert clock.look(20, 5, 0) == 10  # five messages are being written
    assert clock.look(30, 9, 5) == 20
    assert clock.look(31, 9, 5) == 20
    assert clock.look(40, 9, 9) == 40
    assert clock.look(35, 9, 9) == 40  # the clock was set back


def test_a_node_tells_how_late_it_is_in_its_journal(start_feeding: Callable[..., FeedingNode]) -> None:
    node = start_feeding()
    before_us = int(time.time() * 1e6)
    node.publish("t", range(100))
    with FeedClient(node.feed, "test") as feed:
        status = feed.status()
        assert status.next == 100
        assert before_us <= status.time_us <= time.time() * 1e6
        times = [row for batch in feed.read(0, 100, columns=["ingress_time"]) for row in batch.column(0).to_pylist()]
        assert all(one.timestamp() * 1e6 <= status.time_us for one in times)


def test_expressions_that_are_sparks_are_told_and_others_are_not(start_feeding: Callable[..., FeedingNode]) -> None:
    node = start_feeding("own", SPARKS)
    before_us = int(time.time() * 1e6)
    for number, text in enumerate(("$HOURLYSUM/t/+", "$QUARTERHOURLYSUM/t/+", "$SUM/t/+")):
        node.listen(f"c{number}", text)
    with FeedClient(node.feed, "test") as feed:
        wanted = feed.expressions()
        ((expression, since_us),) = wanted.expressions
        assert expression == b"$HOURLYSUM/t/+"
        assert before_us <= since_us <= time.time() * 1e6
        assert (wanted.settings.engine, wanted.settings.spark_period_s) == ("auto", 1800)
        assert feed.status().edition == 1
        feed.hand_in([(b"$HOURLYSUM/t/+", 1, b"[" + b"1.0, " * 200_000 + b"1.0]"), (b"$SUM/t/+", 1, b"1.0")])
        feed.hand_in([(b"$HOURLYSUM/t/+", 1, b"[]")])
        wait_until(lambda: feed.status().next == 1, "the journal has one result")
        with pytest.raises(FeedRefused, match="not a request"):
            feed.hand_in([(b"$HOURLYSUM/t/+", -1, b"[]")])


def test_a_node_that_computes_everything_itself_takes_no_results(feeding: FeedingNode) -> None:
    with FeedClient(feeding.feed, "test") as feed:
        assert feed.expressions().expressions == []
        with pytest.raises(FeedRefused, match="no expression is computed outside this node"):
            feed.hand_in([(b"$HOURLYSUM/t/+", 1, b"[]")])


def test_a_message_that_passed_is_handed_in_whole_and_only_if_a_client_could_have_sent_it(
    start_feeding: Callable[..., FeedingNode],
) -> None:
    node = start_feeding("own", '[operators]\nengine = "spark"\n')
    node.listen("one", "$GT;1/t/+")
    with FeedClient(node.feed, "test") as feed:
        for topic, properties in ((b"t/+", b""), (b"$SYS/x", b""), (b"t/\xff", b""), (b"t/a", b"\x26\x00")):
            with pytest.raises(FeedRefused, match="could have published"):
                feed.hand_in([(b"$GT;1/t/+", 1, b"2", (topic, 1, properties, 0))])
        feed.hand_in([(b"$GT;1/t/+", 1, b"2", (b"t/a", 1, b"", 0)), (b"$GT;1/t/+", 2, b"3", (b"u/a", 1, b"", 0))])
        wait_until(lambda: feed.status().next == 1, "the journal has one")
        ((topic, payload),) = [
            row for batch in feed.read(0, 1, columns=["topic", "payload"]) for row in zip(*batch.columns, strict=True)
        ]
        assert (topic.as_py(), payload.as_py()) == ("$GT;1/t/a", b"2")


def test_a_node_tells_how_far_so_many_bytes_go(start_feeding: Callable[..., FeedingNode]) -> None:
    node = start_feeding()
    for _ in range(4):
        node.publish("t", ["x" * 10_000])
    with FeedClient(node.feed, "test") as feed:
        far = [feed.reach(0, size) for size in (1, 25_000, 1 << 30)]
        assert [offset for offset, _ in far] == [1, 2, 4]
        assert 40_000 < far[-1][1] < 50_000
        assert feed.reach(3, 1)[0] == feed.reach(4, 1)[0] == 4
