"""The sink: rows become messages, each once, whatever is run again; what is no message is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sterna.pipeline.sink.stable_order import in_stable_order
from sterna.pipeline.spark_session import one_line

from .feeding import FeedingNode, finished, numbers

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine


def rows(spark: SparkSession, topic: str, count: int, qos: int = 1) -> DataFrame:
    """Two partitions of messages whose payloads are numbers."""
    return spark.range(0, count, 1, 2).select(
        f.lit(topic).alias("topic"), f.col("id").cast("string").alias("payload"), f.lit(qos).alias("qos")
    )


def published(spark: SparkSession, node: FeedingNode, topic: str) -> DataFrame:
    return spark.read.format("sterna").option("nodes", node.feed).option("topics", f"{topic}/#").load()


@pytest.mark.parametrize("qos", [1, 2])
def test_every_row_is_published_once(spark: SparkSession, feeding: FeedingNode, topic: str, qos: int) -> None:
    rows(spark, topic, 500, qos).write.format("sterna").mode("append").option("broker", feeding.broker).save()
    table = published(spark, feeding, topic)
    assert numbers(table) == list(range(500))
    assert {row.qos for row in table.select("qos").distinct().collect()} == {qos}


def test_a_named_write_run_again_adds_nothing(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    for _ in range(2):
        write = rows(spark, topic, 100).write.format("sterna").mode("append").option("broker", feeding.broker)
        write.option("publisher", topic).save()
    assert numbers(published(spark, feeding, topic)) == list(range(100))


def test_a_named_write_adds_nothing_however_its_rows_are_dealt_out(
    spark: SparkSession, feeding: FeedingNode, topic: str
) -> None:
    for partitions in (1, 3):
        some = rows(spark, topic, 100).withColumn("properties", f.create_map(f.lit("id"), f.col("payload")))
        dealt = in_stable_order(some.repartition(partitions, f.rand()))
        write = dealt.write.format("sterna").mode("append").option("broker", feeding.broker)
        write.option("publisher", topic).save()
    assert numbers(published(spark, feeding, topic)) == list(range(100))


def test_a_task_that_is_tried_again_publishes_the_rest(
    spark: SparkSession, feeding: FeedingNode, topic: str, tmp_path: Path
) -> None:
    mark = tmp_path / "tried"

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, 50)
            if batch.num_rows > 50 and not mark.exists():
                mark.touch()
                raise RuntimeError("the first attempt ends here")
            yield batch.slice(50)

    source = rows(spark, topic, 200)
    broken = source.coalesce(1).mapInArrow(fail_once, source.schema)
    broken.write.format("sterna").mode("append").option("broker", feeding.broker).save()
    assert mark.exists(), "nothing was tried twice"
    assert numbers(published(spark, feeding, topic)) == list(range(200))


def test_a_batch_of_a_stream_that_is_run_again_publishes_nothing_twice(
    spark: SparkSession, start_feeding: Callable[..., FeedingNode], tmp_path: Path
) -> None:
    """Killed behind the last row and before Spark noted the end of the batch: the batch is run again, whole, by a
    driver that would cut it into other tasks."""
    node = start_feeding()
    node.publish("in/a", range(40), qos=2)
    for tasks in ("2", "5"):
        stream = spark.readStream.format("sterna").options(nodes=node.feed, topics="in/#", reader="echo")
        stream = stream.options(tasks=tasks, minPartitions=tasks)
        rows = stream.option("startingOffsets", "earliest").load().selectExpr("'out/a' as topic", "payload", "qos")
        writer = rows.writeStream.format("sterna").option("broker", node.broker)
        writer = writer.option("checkpointLocation", str(tmp_path / "echo")).trigger(availableNow=True)
        query = finished(writer.start, 120)
        assert max(batch.numInputRows for batch in query.recentProgress) == 40
        for note in (tmp_path / "echo/commits").iterdir():
            note.unlink()
    assert numbers(published(spark, node, "out")) == list(range(40))


def test_properties_and_retain_travel_with_the_message(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    one = spark.sql(
        f"select '{topic}/x' topic, cast('21' as binary) payload, true retain, map('unit', 'C') properties, "
        "'text/plain' content_type, expiry_time from values (timestamp'2100-01-01'), (now() - interval 1 minute) "
        "as times(expiry_time)"
    )
    one.write.format("sterna").mode("append").option("broker", feeding.broker).save()
    (row,) = published(spark, feeding, topic).collect()
    assert (row.topic, bytes(row.payload), row.qos, row.retain) == (f"{topic}/x", b"21", 1, True)
    assert row.properties["unit"] == "C"
    assert row.content_type == "text/plain"
    # The second one nobody may have any more; the first one expires when it was said, by the node's clock.
    assert abs(row.expiry_time.timestamp() - datetime(2100, 1, 1, tzinfo=UTC).timestamp()) < 60


def test_user_properties_that_repeat_are_published_as_they_were_read(
    spark: SparkSession, feeding: FeedingNode, topic: str
) -> None:
    pairs = "array(named_struct('key', 'k', 'value', 'v'), named_struct('key', 'k', 'value', 'v2'))"
    one = spark.sql(f"select '{topic}/x' topic, 'x' payload, map('k', 'v2') properties, {pairs} user_properties")
    one.write.format("sterna").mode("append").option("broker", feeding.broker).save()
    (row,) = published(spark, feeding, topic).collect()
    assert [tuple(pair) for pair in row.user_properties if pair.key == "k"] == [("k", "v"), ("k", "v2")]


def test_what_is_published_cannot_be_overwritten(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    with pytest.raises(PySparkException) as caught:
        rows(spark, topic, 5).write.format("sterna").mode("overwrite").option("broker", feeding.broker).save()
    assert one_line(caught.value).startswith("mode: what is published cannot be overwritten")
    assert numbers(published(spark, feeding, topic)) == []


def test_a_row_that_is_no_message_is_named(spark: SparkSession, feeding: FeedingNode, topic: str) -> None:
    bad = spark.range(0, 10, 1, 1).selectExpr(f"if(id = 7, 'a/+', '{topic}') as topic", "cast(id as string) as payload")
    with pytest.raises(PySparkException) as caught:
        bad.write.format("sterna").mode("append").option("broker", feeding.broker).save()
    line = one_line(caught.value)
    assert line.startswith('row 7 of the partition is no message: "a/+" is no topic')
    assert "0 rows before it were published" in line


def test_a_table_that_is_none_of_messages_is_refused_before_anything_runs(
    spark: SparkSession, feeding: FeedingNode
) -> None:
    for table, problem in (("'a' topic", "no column payload"), ("'a' topic, '' payload, 1 x", "no use for column x")):
        with pytest.raises(PySparkException) as caught:
            spark.sql(f"select {table}").write.format("sterna").mode("append").option("broker", feeding.broker).save()
        assert problem in one_line(caught.value)


def test_a_node_that_does_not_answer_is_named(spark: SparkSession) -> None:
    write = rows(spark, "t", 1).write.format("sterna").mode("append")
    with pytest.raises(PySparkException) as caught:
        write.option("broker", "127.0.0.1:1").option("patienceSeconds", "0.1").save()
    assert "127.0.0.1:1 cannot be reached" in one_line(caught.value)
