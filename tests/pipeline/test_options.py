"""Options and rows: what cannot be used is refused in one line that names it, before anything is read or published."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sterna.pipeline.errors import BadRow
from sterna.pipeline.options import ReadOptions, WriteOptions
from sterna.pipeline.sink.rows import Outgoing, check_columns, outgoing
from sterna.vocabulary.errors import ConfigurationError

NODES = {"nodes": "127.0.0.1:7885"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "nodes: say which feed to read"),
        ({"topics": "a/#/b"}, 'topics: "a/#/b" is no topic filter'),
        ({"columns": "colour"}, "columns: the table has no column"),
        ({"startingOffsets": "soon"}, 'startingOffsets: "soon" is no place'),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0' is no whole number from 1 on"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is neither true nor false"),
        ({"patienceSeconds": "long"}, "patienceSeconds: 'long' is no number of seconds"),
        ({"subscribePattern": "("}, "subscribePattern: '(' is no regular expression"),
        ({"startingTimestamp": "noon"}, "startingTimestamp: 'noon' is no number of milliseconds"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger: '0' is no size"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: 'soon' is no time"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger: 9 is more than"),
        ({"tokenFile": "/nowhere"}, "tokenFile: /nowhere cannot be read"),
        ({"topic": "a"}, "topic: there is no such option; there are alignPatience, alignTime"),
    ],
)
def test_what_cannot_be_read_with_is_refused_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ReadOptions.parse({**NODES, **options} if options else {}, streaming=False)
    assert str(caught.value).startswith(said)


def test_options_are_found_whatever_the_case_of_their_letters(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    given = {"NODES": " a:1, b:2 ", "failondataloss": "FALSE", "tokenfile": str(tmp_path / "token"), "Topics": "a/+"}
    options = ReadOptions.parse(given, streaming=True)
    assert options.nodes == ("a:1", "b:2")
    assert not options.fail_on_data_loss
    assert options.access.token == "secret"
    assert options.topics == ("a/+",)


def test_streams_begin_at_the_end_and_batches_at_the_beginning() -> None:
    assert ReadOptions.parse(NODES, streaming=True).starting.word == "latest"
    assert ReadOptions.parse(NODES, streaming=False).starting.word == "earliest"


@pytest.mark.parametrize("broker", ["", "localhost", "localhost:mqtt"])
def test_a_write_needs_an_address(broker: str) -> None:
    with pytest.raises(ConfigurationError, match="broker"):
        WriteOptions.parse({"broker": broker} if broker else {})


def batch(**columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict({"topic": ["a"], "payload": [b"x"], **columns})


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"topic": ["a/+"]}, "wildcard"),
        ({"topic": [""]}, "empty"),
        ({"topic": [None]}, "topic is null"),
        ({"payload": [None]}, "payload is null"),
        ({"qos": [0]}, "qos is 0"),
        ({"qos": [3]}, "qos is 3"),
        ({"topic": ["$SYS/a"]}, "broker's own"),
        ({"expiry_time": ["tomorrow"]}, "expiry_time is no timestamp"),
        ({"expiry_time": [datetime(2100, 1, 1)]}, "expiry_time is no timestamp"),
    ],
)
def test_a_row_that_is_no_message_is_named(columns: dict[str, list[Any]], problem: str) -> None:
    with pytest.raises(BadRow, match=r"row 12 of the partition is no message: .*") as caught:
        outgoing(batch(**columns), 12)
    assert problem in str(caught.value)


def test_text_and_bytes_are_payloads_and_what_is_not_said_has_a_default() -> None:
    (one,) = outgoing(batch(payload=["grüße"]), 0)
    assert one == Outgoing(0, "a", "grüße".encode(), 1, False, (), None)


def test_columns_that_are_missing_or_of_no_use_are_named() -> None:
    with pytest.raises(ConfigurationError, match="no column payload"):
        check_columns(["topic"])
    with pytest.raises(ConfigurationError, match="no use for column x"):
        check_columns(["topic", "payload", "x"])


def test_what_a_catalog_says_of_a_table_is_overlooked() -> None:
    words = {"owner": "root", "provider": "sterna", "option.nodes": "a:1", "spark.sql.x": "1", "Comment": "c"}
    assert ReadOptions.parse(words, streaming=False).nodes == ("a:1",)


def test_a_filter_with_a_comma_is_named_in_an_array() -> None:
    def topics(text: str) -> tuple[str, ...]:
        return ReadOptions.parse({"nodes": "a:1", "topics": text}, streaming=False).topics

    assert topics('["odd/a,b", "plant/#"]') == ("odd/a,b", "plant/#")
    assert topics("[odd,plant/#") == ("[odd", "plant/#")
