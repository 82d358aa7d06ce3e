"""The source as those know it who come from Spark's Kafka source: each row of the table in docs/pipeline.md."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from live.nodes import wait_until
from sterna.measure.workloads.pipeline.publisher import FeedPublisher, PublisherLoad
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.lag import lag_metrics, offsets_behind_latest
from sterna.pipeline.offsets import without_cut
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.cursors import Cursors
from sterna.pipeline.source.named_readers import forget_reader, readers_of
from sterna.pipeline.source.nodes import ask
from sterna.pipeline.source.readers import StreamReader

from .feeding import FeedingNode, finished, numbers, payloads

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

SOON_S = 180.0
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def table(spark: SparkSession, node: FeedingNode, **options: str) -> DataFrame:
    return spark.read.format("sterna").option("nodes", node.feed).options(**options).load()


@contextmanager
def pushdown(spark: SparkSession, on: bool) -> Iterator[None]:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, str(on).lower())
    try:
        yield
    finally:
        spark.conf.set(PUSHDOWN, str(before))


def explained(found: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    found.explain(mode="formatted")
    return capsys.readouterr().out


MANY = 8192
#: The payloads that fit, and how many rows the nodes send at most: what they cannot tell, tasks do.  Frames of a few
#: messages are sent whole, if a word that is sought stands in them.
CONDITIONS = {
    "topic = '{t}/a'": (["a1", "a2"], 2),
    "topic like '{t}/%' and topic <> '{t}/a'": (["b1", "b2", "b3", "c3"], 6),
    "topic in ('{t}/a', '{t}/c', 'elsewhere')": (["a1", "a2", "c3"], 3),
    "topic like '{t}/%' and qos = 2 and ingress_time >= '{middle}'": (["b3", "c3"], 2),
    "topic like '{t}/%' and ingress_time < '{middle}' and content_type is null": (["a1", "a2", "b1", "b2"], 6),
    "topic like '%/b' and origin = 'shared' and offset >= {offset} and offset < {offset} + 2 and topic > '{t}'": (
        ["b3"],
        2,
    ),
    "topic like 'bench/%' and ingress_time < '{middle}'": ([], MANY // 2),
    "topic like 'bench/%' and ingress_time >= '{late}'": ([], 0),
    "topic like 'bench/%' and publisher = 'nobody'": ([], MANY // 2),
    "publisher = 'nobody'": ([], 0),
}


def test_conditions_of_a_query_reach_the_nodes_and_are_in_the_plan(
    spark: SparkSession, feeding: FeedingNode, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for level in ("a", "b"):
        feeding.publish(f"{topic}/{level}", [f"{level}1", f"{level}2"])
    with FeedClient(feeding.feed, "test") as feed:
        offset = feed.status().next
    before = time.time()
    wait_until(lambda: time.time() > before + 0.01, "it is later")
    places = {"t": topic, "middle": datetime.now(UTC).isoformat(), "offset": offset}
    for level in ("b", "c"):
        feeding.publish(f"{topic}/{level}", [f"{level}3"], qos=2)
    large = FeedPublisher(feeding.port, PublisherLoad(messages=MANY, burst=MANY // 2))
    large.run()
    large.close()
    before = time.time()
    wait_until(lambda: time.time() > before + 0.01, "it is later")
    places["late"] = datetime.now(UTC).isoformat()

    def sent() -> float:
        return feeding.metric("sterna_feed_rows_sent_total")

    with pushdown(spark, on=True):
        for condition, (expected, rows) in CONDITIONS.items():
            before = sent()
            found = table(spark, feeding).where(condition.format(**places))
            assert payloads(found) == expected, condition
            assert sent() - before <= rows, condition
        one = table(spark, feeding).where(f"topic = '{topic}/a'")
        plan = explained(one, capsys)
        assert re.search(rf"PushedFilters: \[.*{topic}/a.*\]", plan), plan
        assert "Filter (" not in plan, "Spark has nothing left to compare"
        either = table(spark, feeding).where(f"topic = '{topic}/a' or publisher = 'nobody'")
        assert payloads(either) == ["a1", "a2"], "a condition that Spark keeps"
    with pushdown(spark, on=False):
        before = sent()
        assert payloads(table(spark, feeding).where(f"topic = '{topic}/a'")) == ["a1", "a2"]
        assert sent() - before >= offset + 2 + MANY, "all there is"


def test_topics_are_chosen_by_a_regular_expression(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    for level in ("t1", "t22", "x"):
        feeding.publish(f"{topic}/{level}", [level])
    found = table(spark, feeding, subscribePattern=rf"{topic}/t\d+", columns="payload")
    assert payloads(found) == ["t1", "t22"]
    assert payloads(table(spark, feeding, subscribePattern=r".*/t\d", topics=f"{topic}/#")) == ["t1"]


def test_a_read_is_bounded_by_milliseconds(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    feeding.publish(topic, range(5))
    before = time.time()
    wait_until(lambda: time.time() > before + 0.005, "it is later")
    middle = int(time.time() * 1000)
    wait_until(lambda: time.time() * 1000 > middle + 5, "it is later")
    feeding.publish(topic, range(5, 10))
    here: dict[str, Any] = {"topics": topic}
    by_node = json.dumps({"shared": middle})
    assert numbers(table(spark, feeding, **here, startingTimestamp=str(middle))) == list(range(5, 10))
    assert numbers(table(spark, feeding, **here, endingTimestamp=str(middle))) == list(range(5))
    assert numbers(table(spark, feeding, **here, startingOffsetsByTimestamp=by_node)) == list(range(5, 10))
    assert numbers(table(spark, feeding, **here, endingOffsetsByTimestamp=by_node)) == list(range(5))
    first = table(spark, feeding, **here, startingTimestamp=str(middle), startingOffsets="earliest")
    assert numbers(first) == list(range(5, 10)), "of both, the instant counts"
    later = str(int(time.time() * 1000) + 3_600_000)
    assert numbers(table(spark, feeding, **here, startingTimestamp=later)) == [], "after the last message is latest"


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 seconds"}], ids=str)
def test_triggers_that_are_not_of_batches_are_refused(
    spark: SparkSession, feeding: FeedingNode, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    """By Spark: it has neither for sources in Python."""
    messages = spark.readStream.format("sterna").option("nodes", feeding.feed).load()
    writer = messages.writeStream.format("console").option("checkpointLocation", str(tmp_path)).outputMode("update")
    with pytest.raises(PySparkException, match=r"CONTINUOUS_PROCESSING|does not support|REAL_TIME_MODE"):
        writer.trigger(**trigger).start().awaitTermination()


def test_a_batch_has_as_many_partitions_as_asked_for(
    spark: SparkSession, start_feeding: Callable[..., FeedingNode]
) -> None:
    node = start_feeding()
    node.publish("t", range(100))
    node.publish("big", ["x" * 100_000] * 200)
    assert table(spark, node, tasks="2").rdd.getNumPartitions() == 1
    assert table(spark, node, minPartitions="3").rdd.getNumPartitions() == 3
    assert table(spark, node, maxRecordsPerPartition="100").rdd.getNumPartitions() == 3
    cut = table(spark, node, maxBytesPerPartition="4m")
    assert cut.rdd.getNumPartitions() >= 5
    assert cut.count() == 300


Stream = Callable[..., StreamReader]


@pytest.fixture
def stream() -> Iterator[Stream]:
    """Readers as a driver has them: `stream(node, minPartitions="3")`."""
    readers: list[StreamReader] = []

    def begin(node: FeedingNode, **options: str) -> StreamReader:
        readers.append(StreamReader(ReadOptions.parse({"nodes": node.feed, **options}, streaming=True)))
        return readers[-1]

    yield begin
    for reader in readers:
        reader.stop()


def test_a_batch_of_a_stream_is_bounded_by_bytes(start_feeding: Callable[..., FeedingNode], stream: Stream) -> None:
    node = start_feeding()
    node.publish("big", ["x" * 100_000] * 50)
    reader = stream(node, startingOffsets="earliest", maxBytesPerTrigger="1m")
    reader.prepareForTriggerAvailableNow()
    offset, steps = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        before, after = (sum(without_cut(one).values()) for one in (offset, end))
        steps.append(after - before)
        offset = end
    assert sum(steps) == 50
    assert len(steps) >= 3
    with FeedClient(node.feed, "test") as feed:
        one_frame = max(feed.reach(start, 1)[1] for start in range(0, 50, 5))
        assert all(
            feed.reach(sum(steps[:n]), 1 << 40, sum(steps[: n + 1]))[1] <= (1 << 20) + one_frame for n in range(3)
        )


def test_a_few_messages_wait_for_more_but_not_for_ever(
    start_feeding: Callable[..., FeedingNode], stream: Stream
) -> None:
    node = start_feeding()
    reader = stream(node, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    node.publish("t", range(9))
    wait_until(lambda: _heads(reader, start) == 9, "the driver has heard of nine")
    assert reader.latestOffset(start, limit) == start
    node.publish("t", [9])
    wait_until(lambda: reader.latestOffset(start, limit) != start, "ten are enough")
    soon = stream(node, startingOffsets="earliest", minOffsetsPerTrigger="100", maxTriggerDelay="10ms")
    start = soon.initialOffset()
    wait_until(lambda: soon.latestOffset(start, soon.getDefaultReadLimit()) != start, "it does not wait for ever")


def _heads(reader: StreamReader, start: dict[str, int]) -> int:
    reader.latestOffset(start, reader.getDefaultReadLimit())
    return sum((reader.reportLatestOffset() or {}).values())


def test_a_known_reader_that_begins_elsewhere_is_told(
    start_feeding: Callable[..., FeedingNode], caplog: pytest.LogCaptureFixture
) -> None:
    node = start_feeding()
    node.publish("t", range(10))
    access = ReadOptions.parse({"nodes": node.feed, "reader": "known"}, streaming=True).access
    seen, _ = ask(access, node.feed)
    with caplog.at_level(logging.WARNING):
        assert Cursors(access).begin(seen, 7) == 7
        assert not caplog.records
        assert Cursors(access).begin(seen, 0) == 7
    assert 'reader "known" is known to node own and goes on there at 7, not at 0' in caplog.text


def test_readers_are_listed_and_forgotten(start_feeding: Callable[..., FeedingNode]) -> None:
    far = start_feeding("far")
    near = start_feeding("near", peers=[f"far={far.feed}"])
    far.publish("t", range(10))
    for node in (far, near):
        with FeedClient(node.feed, "query") as feed:
            feed.register(0)
    with FeedClient(far.feed, "query") as feed:
        feed.commit(4)
    network = {"nodes": near.feed}
    found = readers_of(network)
    assert [(one.reader, one.node, one.committed, one.behind) for one in found.readers] == [
        ("query", "far", 4, 6),
        ("query", "near", 0, 0),
    ]
    assert [one.node for one in forget_reader(network, "query").readers] == ["far", "near"]
    assert readers_of(network).readers == []
    assert forget_reader(network, "query").readers == []


def test_progress_says_how_far_a_query_is_behind(
    spark: SparkSession, start_feeding: Callable[..., FeedingNode], tmp_path: Path
) -> None:
    node = start_feeding()
    node.publish("t", range(30))

    def begin() -> Any:
        options = {"nodes": node.feed, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
        rows = spark.readStream.format("sterna").options(**options).load().writeStream.format("noop")
        return rows.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    first, last = [one for one in finished(begin, SOON_S).recentProgress if one.numInputRows]
    assert offsets_behind_latest(first) == {"own": 10}
    assert lag_metrics(first)["maxOffsetsBehindLatest"] == 10
    assert lag_metrics(first)["secondsBehindLatest"] > 0
    assert offsets_behind_latest(last) == {"own": 0}


def test_a_batch_that_is_planned_again_with_other_options_is_cut_the_same(
    start_feeding: Callable[..., FeedingNode], stream: Stream
) -> None:
    node = start_feeding()
    node.publish("t", range(300))
    there = stream(node, startingOffsets="earliest", minPartitions="3")
    there.prepareForTriggerAvailableNow()
    start = there.initialOffset()
    end = there.latestOffset(start, there.getDefaultReadLimit())
    elsewhere = stream(node, tasks="16", minPartitions="7")
    assert [piece.parts for piece in there.partitions(start, end)] == [
        piece.parts for piece in elsewhere.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    ]
    assert len(there.partitions(start, end)) == 3
