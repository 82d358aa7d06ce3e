"""An expression over the past gives what a node would have published: through Spark, in parts or in order."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sterna.operators.engine import Engine
from sterna.operators.functions import Functions
from sterna.operators.grammar import parse
from sterna.operators.settings import OperatorSettings
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.errors import PipelineError
from sterna.pipeline.expressions.batch_evaluation import Evaluation
from sterna.pipeline.jobs.archive import Archive
from sterna.pipeline.jobs.evaluate import evaluate
from sterna.pipeline.table import SCHEMA
from sterna.runtime.functions.settings import FunctionTable, OwnFunction

from .archives import written
from .feeding import FeedingNode
from .test_jobs import run_archive

pytestmark = pytest.mark.timeout(600)  # Spark starts slowly on a busy machine

SHORT = OperatorSettings(hourly_s=10, quarter_hourly_s=3, expiry_s=30)
SINCE_US = 1_700_000_001_000_000
FAR_US = SINCE_US + 10**9

EXPRESSIONS = [
    "$HOURLYAVG/t/+",
    "$GT;2$HOURLYSTDDEV$GTE;1/t/#",
    "$TMPMAX;0:00:30$QUARTERHOURLYMEDIAN/t/a",
    "$HOURLYCOUNT$CONTAINS;2/t/+",
    "$HOURLYMAX$DELTA/t/+",
    "$HOURLYSUM$AVG/t/+",
    "$AVG/t/+",
    "$TMPSUM;0:00:05/t/+",
    "$GT;4/t/+",
]

Message = tuple[int, str, int, str, bytes]
"""Microseconds, origin, offset, topic, payload."""


def made_up(seed: int, count: int) -> list[Message]:
    """Of two nodes; in the order in which they would be read, which is not that of their times."""
    dice = random.Random(seed)
    found, now_us = [], SINCE_US
    for offset in range(count):
        now_us += dice.choice((0, 1, 300_000, 2_000_000))
        payload = dice.choice((b"1", b"2.5", b"4", b"-3", b"0.1", b"warm", b"1e20"))
        found.append((now_us, dice.choice("ab"), offset, f"t/{dice.choice('abc')}", payload))
    return sorted(found, key=lambda message: message[1:3])


def half(payload: bytes) -> float:
    return float(payload) / 2


def answered(text: str, told: list[Message], until_us: int) -> list[tuple[int, str, bytes]]:
    """By a node's engine, to which they come in the order of their times."""
    functions = Functions()
    functions.register("HALF", half, "half of a number")
    expression = parse(text.encode(), functions)
    engine = Engine(expression, SHORT, SINCE_US, functions)
    found = []
    for time_us, _, _, topic, payload in sorted(told):
        if "/+" in text or "#" in text or text.endswith(topic):
            result = engine.message(topic.encode(), payload, time_us)
            if result is not None:
                found.append((engine.result_us, expression.topic_of_result(topic.encode()).decode(), result))
    result = engine.advance(until_us)
    return found + ([] if result is None else [(engine.result_us, expression.result_topic.decode(), result)])


def at(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1e6, UTC)


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Message]]:
    """An archive of made-up messages, in several files."""
    told = made_up(7, 400)
    files = ArchiveFiles(tmp_path_factory.mktemp("past") / "archive")
    rows = [
        {
            "topic": topic, "payload": payload, "qos": 1, "retain": False, "publisher": "p", "origin": origin,
            "epoch": 1, "sequence": offset, "offset": offset, "ingress_time": at(time_us), "properties": [],
        }
        for time_us, origin, offset, topic, payload in told
    ]  # fmt: skip
    files.log.create()
    some = [pa.Table.from_pylist(rows[start::3], SCHEMA).sort_by("topic").combine_chunks() for start in range(3)]
    made = [one for table in some for one in written(files, table.to_batches())]
    files.take_in(0, made, b'{"a": 400, "b": 400}')
    return Path(files.place), told


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_the_archive_answers_as_a_node_would_have(
    spark: SparkSession, kept: tuple[Path, list[Message]], text: str
) -> None:
    archive, told = kept
    question = Evaluation(text.encode(), SHORT, SINCE_US, FAR_US)
    found = evaluate(spark, question, None, archive).selectExpr("unix_micros(time) t", "topic", "payload").collect()
    expected = answered(text, told, FAR_US)
    assert len(expected) > 3
    assert [(row.t, row.topic, bytes(row.payload)) for row in found] == expected


@pytest.mark.parametrize("text", ["$GT;1$HALF/t/+", "$MAX$HOURLYSUM$HALF/t/+"])
def test_functions_are_called_in_tasks(
    spark: SparkSession, kept: tuple[Path, list[Message]], tmp_path: Path, text: str
) -> None:
    (tmp_path / "halving.py").write_text("def half(payload):\n    return float(payload) / 2\n")
    table = FunctionTable(own=(OwnFunction("HALF", "halving:half", "half of a number"),), directory=tmp_path, workers=2)
    question = Evaluation(text.encode(), SHORT, SINCE_US, FAR_US, table)
    found = evaluate(spark, question, None, kept[0]).selectExpr("unix_micros(time) t", "topic", "payload").collect()
    expected = answered(text, kept[1], FAR_US)
    assert len(expected) > 3
    assert [(row.t, row.topic, bytes(row.payload)) for row in found] == expected


def test_windows_count_that_have_ended_by_then(spark: SparkSession, kept: tuple[Path, list[Message]]) -> None:
    archive, told = kept
    until_us = SINCE_US + 35_000_000
    question = Evaluation(b"$HOURLYCOUNT/t/a", SHORT, SINCE_US, until_us)
    found = evaluate(spark, question, None, archive).collect()
    earlier = [message for message in told if message[0] < until_us]
    assert [bytes(row.payload) for row in found] == [row[2] for row in answered("$HOURLYCOUNT/t/a", earlier, until_us)]


def test_what_outgrows_its_bounds_is_an_error(spark: SparkSession, kept: tuple[Path, list[Message]]) -> None:
    question = Evaluation(b"$HOURLYAVG/t/+", OperatorSettings(hourly_s=10, topics=1), SINCE_US, FAR_US)
    with pytest.raises(Exception, match="has outgrown its bounds: more than 1 topics"):
        evaluate(spark, question, None, kept[0]).collect()


def test_there_must_be_something_to_evaluate(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nothing to ask"):
        evaluate(spark, Evaluation(b"$AVG/t", SHORT, 0, 1), None, tmp_path)


def test_archive_and_journal_are_one_stream(
    spark: SparkSession, start_feeding: Callable[..., FeedingNode], tmp_path: Path
) -> None:
    node, archive = start_feeding(), Archive(tmp_path / "archive")
    node.publish("plant/a", [1, 2])
    run_archive(spark, archive, node)
    node.publish("plant/b", [6])
    node.publish("office/b", [100])
    question = Evaluation(b"$AVG/plant/+", OperatorSettings(), 0, FAR_US * 2)
    for past in (archive.directory, None):
        found = evaluate(spark, question, {"nodes": node.feed}, past).collect()
        assert [(row.topic, bytes(row.payload)) for row in found] == [
            ("$AVG/plant/$A", answer) for answer in (b"1.0", b"2.0", b"4.0")
        ]
