"""The source: every message once, in batches that can be run again, while nodes come and go."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from live.nodes import wait_until
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.source.gaps import noted
from sterna.pipeline.spark_session import one_line
from sterna.pipeline.table import COLUMNS

from .feeding import FeedingNode, finished, numbers, payloads

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

SOON_S = 180.0
StartFeeding = Callable[..., FeedingNode]


def table(spark: SparkSession, *nodes: FeedingNode, **options: str) -> DataFrame:
    feeds = ",".join(node.feed for node in nodes)
    return spark.read.format("sterna").option("nodes", feeds).options(**options).load()


class Collected:
    """A streaming query that keeps what it reads as Parquet, restartable from its checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path, *nodes: FeedingNode, **options: str) -> None:
        self._spark = spark
        self._directory = directory
        self._options = {
            "nodes": ",".join(node.feed for node in nodes),
            "reader": f"test-{directory.parent.name}",
            "startingOffsets": "earliest",
            **options,
        }

    def start(self, **trigger: Any) -> StreamingQuery:
        stream = self._spark.readStream.format("sterna").options(**self._options).load()
        writer = stream.writeStream.format("parquet").option("path", str(self._directory / "rows"))
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def run(self) -> list[Any]:
        """Take what is there now; the progress of the batches."""
        query = finished(lambda: self.start(availableNow=True), SOON_S)
        return [batch for batch in query.recentProgress if batch.numInputRows]

    def numbers(self) -> list[int]:
        rows = self._directory / "rows"
        if not (rows / "_spark_metadata").exists():
            return []
        return numbers(self._spark.read.schema("payload binary").parquet(str(rows)))


def test_the_table_says_everything_about_a_message(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    feeding.publish(f"{topic}/a", ["x"], qos=2)
    found = table(spark, feeding, topics=f"{topic}/#")
    assert tuple(found.columns) == COLUMNS
    (row,) = found.collect()
    assert (row.topic, bytes(row.payload), row.qos, row.retain) == (f"{topic}/a", b"x", 2, False)
    assert (row.origin, row.sequence) == ("shared", row.offset)
    assert row.epoch >= 1
    assert row.publisher
    instant = row.ingress_time.astimezone(UTC)
    assert before < instant <= datetime.now(UTC)


def test_only_the_topics_and_columns_asked_for_are_read(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    for level in ("a", "b", "c"):
        feeding.publish(f"{topic}/{level}", [level])
    found = table(spark, feeding, topics=f"{topic}/a,{topic}/b", columns="payload,topic")
    assert found.columns == ["payload", "topic"]
    assert payloads(found) == ["a", "b"]


def test_a_batch_read_is_bounded_by_instants_and_by_offsets(
    spark: SparkSession, feeding: FeedingNode, topic: str
) -> None:
    feeding.publish(topic, range(10))
    middle = datetime.now(UTC)
    with FeedClient(feeding.feed, "test") as feed:
        offset = feed.status().next
    feeding.publish(topic, range(10, 20))
    assert numbers(table(spark, feeding, topics=topic, startingOffsets=middle.isoformat())) == list(range(10, 20))
    assert numbers(table(spark, feeding, topics=topic, endingOffsets=middle.isoformat())) == list(range(10))
    explicit = json.dumps({"shared": offset})
    assert numbers(table(spark, feeding, topics=topic, startingOffsets=explicit)) == list(range(10, 20))
    assert numbers(table(spark, feeding, topics=topic, startingOffsets="latest")) == []


def test_the_other_nodes_are_found_through_one(spark: SparkSession, start_feeding: StartFeeding) -> None:
    far = start_feeding("far")
    near = start_feeding("near", peers=[f"far={far.feed}"])
    far.publish("t", range(5))
    near.publish("t", range(5, 10))
    found = table(spark, near)
    assert numbers(found) == list(range(10))
    assert {row.origin for row in found.collect()} == {"far", "near"}
    assert numbers(found.where("origin = 'far'")) == list(range(5))


def test_what_is_available_is_taken_in_batches_and_then_it_ends(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node = start_feeding()
    node.publish("t", range(100))
    collected = Collected(spark, tmp_path / "query", node, maxOffsetsPerTrigger="40")
    assert [batch.numInputRows for batch in collected.run()] == [40, 40, 20]
    node.publish("t", range(100, 110))
    assert [batch.numInputRows for batch in collected.run()] == [10]
    assert collected.numbers() == list(range(110))
    with FeedClient(node.feed, "test-" + tmp_path.name) as feed:
        # Spark says that a batch is done when it begins another one.
        assert feed.register() == 100


def test_nodes_join_leave_and_come_back_while_a_query_runs(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    late = FeedingNode(tmp_path / "late", name="late")
    first = start_feeding("first", peers=[f"late={late.feed}"])
    first.publish("t", range(10))
    collected = Collected(spark, tmp_path / "query", first)
    query = collected.start()
    try:
        wait_until(lambda: collected.numbers() == list(range(10)), "the first node is read", SOON_S)
        with late:
            late.publish("t", range(10, 20))
            wait_until(lambda: collected.numbers() == list(range(20)), "the node that joined is read", SOON_S)
            late.kill()
            first.publish("t", range(20, 30))
            wait_until(lambda: collected.numbers() == list(range(30)), "the others are read without it", SOON_S)
            late.restart()
            late.publish("t", range(30, 40))
            wait_until(lambda: collected.numbers() == list(range(40)), "it is read again", SOON_S)
    finally:
        query.stop()


def test_a_query_begins_where_it_first_meant_to_even_if_it_fails_before_its_first_batch(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node = start_feeding()
    node.publish("t", range(5))
    collected = Collected(spark, tmp_path / "query", node, startingOffsets="latest")
    assert collected.run() == []
    node.publish("t", range(5, 10))
    # The first run has no batch to its name: this one asks for "latest" again, and the node knows better.
    assert sum(batch.numInputRows for batch in collected.run()) == 5
    assert collected.numbers() == list(range(5, 10))


def test_what_a_node_dropped_is_an_error_or_a_gap(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node = start_feeding("small", "[journal]\nsegment_bytes = 65536\nretention_bytes = 131072\n")
    node.publish("t", ["x" * 1000] * 600)
    wait_until(lambda: _first(node) > 0, "the node has dropped something", SOON_S)
    first = _first(node)
    with pytest.raises(PySparkException) as caught:
        table(spark, node, startingOffsets='{"small": 0}').collect()
    line = one_line(caught.value)
    assert line.startswith(f"node small has lost {first} of messages 0 to {first - 1}: its retention dropped them")
    assert "failOnDataLoss" in line
    rest = table(spark, node, startingOffsets='{"small": 0}', failOnDataLoss="false", gaps=str(tmp_path / "gaps"))
    assert rest.count() == 600 - first
    (gap,) = spark.read.json(str(tmp_path / "gaps")).collect()
    assert (gap.node, gap.start, gap.stop, gap.messages) == ("small", 0, first, first)
    assert gap.cause.startswith("its retention dropped them before they were read")


def test_a_journal_in_memory_that_its_node_forgot_is_noticed(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    """Even if the new journal is longer than the old one: its offsets are not taken for the old ones."""
    node = start_feeding("own", '[journal]\ndurability = "memory"\n')
    node.publish("t", range(5))
    collected = Collected(spark, tmp_path / "query", node)
    collected.run()
    node.kill()
    node.restart()
    node.publish("t", range(5, 25))
    with pytest.raises(PySparkException) as caught:
        collected.run()
    line = one_line(caught.value)
    assert re.match(r"node own has lost messages, from 5 on: it was started again, and its journal was", line)
    gaps = tmp_path / "gaps"
    Collected(spark, tmp_path / "query", node, failOnDataLoss="false", gaps=str(gaps)).run()
    node.publish("t", range(25, 30))
    collected.run()
    assert collected.numbers() == list(range(30))
    (gap,) = noted(gaps)
    assert (gap.node, gap.start, gap.messages) == ("own", 5, None)


def test_a_replaced_data_directory_is_noticed_even_if_the_new_journal_is_longer(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node = start_feeding()
    node.publish("t", range(5))
    collected = Collected(spark, tmp_path / "query", node)
    collected.run()
    node.kill()
    shutil.rmtree(tmp_path / "own" / "data")
    node.restart()
    node.publish("t", range(5, 25))
    with pytest.raises(PySparkException) as caught:
        collected.run()
    line = one_line(caught.value)
    assert line.startswith("node own has lost messages, from 5 on: its data directory was replaced")
    assert "failOnDataLoss" in line
    gaps = tmp_path / "gaps"
    Collected(spark, tmp_path / "query", node, failOnDataLoss="false", gaps=str(gaps)).run()
    node.publish("t", range(25, 30))
    collected.run()  # what was lost was told once
    assert collected.numbers() == list(range(30))
    (gap,) = noted(gaps)
    assert (gap.node, gap.start, gap.messages) == ("own", 5, None)


def test_a_checkpoint_of_an_earlier_release_goes_on_and_knows_its_journal_from_then_on(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node = start_feeding()
    node.publish("t", range(5))
    collected = Collected(spark, tmp_path / "query", node)
    collected.run()
    _forget_journals(tmp_path / "query" / "checkpoint")
    node.publish("t", range(5, 10))
    collected.run()
    assert collected.numbers() == list(range(10))
    node.kill()
    shutil.rmtree(tmp_path / "own" / "data")
    node.restart()
    node.publish("t", range(10, 40))
    with pytest.raises(PySparkException) as caught:
        collected.run()
    assert "its data directory was replaced" in one_line(caught.value)


def _forget_journals(checkpoint: Path) -> None:
    """As earlier releases wrote it: offsets under the names of nodes alone."""
    for file in (checkpoint / "offsets").glob("[0-9]*"):
        text = file.read_text()
        assert "own@j" in text
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text(re.sub(r"own@j[0-9a-f]+", "own", text))


def _first(node: FeedingNode) -> int:
    with FeedClient(node.feed, "test") as feed:
        return feed.status().first


def test_what_cannot_be_is_said_in_one_line(
    spark: SparkSession, start_feeding: StartFeeding, feeding: FeedingNode
) -> None:
    guarded = start_feeding("guarded", token="t" * 32)
    for options, said in (
        ({"nodes": "127.0.0.1:1"}, "127.0.0.1:1 does not answer"),
        ({"nodes": feeding.feed, "topic": "a"}, "topic: there is no such option"),
        ({"nodes": guarded.feed, "token": "w" * 32}, "the token is wrong"),
        ({"nodes": feeding.feed, "startingOffsets": '{"x": 1}'}, 'startingOffsets: node "x" is none of those'),
    ):
        with pytest.raises(PySparkException) as caught:
            spark.read.format("sterna").options(**options).load().collect()
        line = one_line(caught.value)
        assert said in line
        assert "\n" not in line


def test_what_a_node_dropped_is_read_from_its_sealed_segments(
    spark: SparkSession, start_feeding: StartFeeding, tmp_path: Path
) -> None:
    """Journal and files are one table, whether one begins at the first message, at an offset or at an instant."""
    shelf = str(tmp_path / "shelf")
    node = start_feeding("small", "[journal]\nsegment_bytes = 65536\nretention_bytes = 131072\n", parquet=shelf)
    node.publish("t/a", [f"{number:01000}" for number in range(300)])
    middle = datetime.now(UTC)
    node.publish("t/b", [f"{number:01000}" for number in range(300, 600)])
    wait_until(lambda: _first(node) > 300, "the node has dropped the first half", SOON_S)
    assert numbers(table(spark, node, parquet=shelf)) == list(range(600))
    assert numbers(table(spark, node, parquet=shelf, topics="t/a")) == list(range(300))
    assert numbers(table(spark, node, parquet=shelf, startingOffsets='{"small": 100}')) == list(range(100, 600))
    since = table(spark, node, parquet=shelf, startingOffsets=middle.isoformat())
    assert numbers(since) == list(range(300, 600))
    until = table(spark, node, parquet=shelf, endingOffsets='{"small": 50}')
    assert numbers(until) == list(range(50))


def test_a_table_of_a_catalog_is_read_with_the_options_it_was_made_with(
    spark: SparkSession, feeding: FeedingNode, topic: str
) -> None:
    feeding.publish(topic, range(5))
    options = f"nodes '{feeding.feed}', topics '{topic}'"
    spark.sql(f"create table {topic}_o using sterna options ({options})")
    spark.sql(f"create table {topic}_p using sterna tblproperties ('nodes' = '{feeding.feed}', 'topics' = '{topic}')")
    spark.catalog.createTable(f"{topic}_c", source="sterna", nodes=feeding.feed, topics=topic)
    spark.sql(f"create temporary view {topic}_v using sterna options ({options})")
    for kind, what in {"o": "table", "p": "table", "c": "table", "v": "view"}.items():
        name = f"{topic}_{kind}"
        try:
            assert numbers(spark.sql(f"select payload from {name}")) == list(range(5))
        finally:
            spark.sql(f"drop {what} {name}")
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"create table {topic}_s using sterna options ({options}, token 'a secret of sixteen bytes')")
    assert "name a file with tokenFile" in one_line(caught.value)


def test_a_schema_chooses_columns_and_must_be_that_of_the_table(
    spark: SparkSession, feeding: FeedingNode, topic: str
) -> None:
    feeding.publish(topic, ["x"])
    source = spark.read.format("sterna").option("nodes", feeding.feed).option("topics", topic)
    (row,) = source.schema("payload binary, topic string").load().collect()
    assert row.asDict() == {"payload": b"x", "topic": topic}
    for schema, said in (("topic int", "topic is string, not int"), ("colour string", "colour is none of the table's")):
        with pytest.raises(PySparkException) as caught:
            source.schema(schema).load().collect()
        assert f"schema: column {said}" in one_line(caught.value)
