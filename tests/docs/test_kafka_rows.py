"""Each row of the page's table for those who know Spark's Kafka source is shown by a test that is named here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_CONVENTIONS = "test_source_conventions.py::"
_RANGES = "test_range_reader.py::"
_SOURCE = "test_source.py::"

SHOWN_BY = {
    "`kafka.bootstrap.servers`": f"{_SOURCE}test_the_other_nodes_are_found_through_one",
    "`subscribe`": f"{_SOURCE}test_only_the_topics_and_columns_asked_for_are_read",
    "`subscribePattern`": f"{_CONVENTIONS}test_topics_are_chosen_by_a_regular_expression",
    "`assign`": f"{_SOURCE}test_the_other_nodes_are_found_through_one",
    "`startingOffsets`, `endingOffsets`": f"{_SOURCE}test_a_batch_read_is_bounded_by_instants_and_by_offsets",
    "`startingTimestamp`, `endingTimestamp`": f"{_CONVENTIONS}test_a_read_is_bounded_by_milliseconds",
    "`startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`": f"{_CONVENTIONS}test_a_read_is_bounded_by_milliseconds",
    "`startingOffsetsByTimestampStrategy`": f"{_CONVENTIONS}test_a_read_is_bounded_by_milliseconds",
    "`failOnDataLoss`": f"{_SOURCE}test_what_a_node_dropped_is_an_error_or_a_gap",
    "`maxOffsetsPerTrigger`": f"{_SOURCE}test_what_is_available_is_taken_in_batches_and_then_it_ends",
    "`minOffsetsPerTrigger`, `maxTriggerDelay`": f"{_CONVENTIONS}test_a_few_messages_wait_for_more_but_not_for_ever",
    "`minPartitions`, `maxRecordsPerPartition`": f"{_CONVENTIONS}test_a_batch_has_as_many_partitions_as_asked_for",
    "`kafkaConsumer.pollTimeoutMs`": f"{_RANGES}test_patience_with_a_node_that_stays_away_ends_and_says_what_is"
    "_missing",
    "`fetchOffset.numRetries`, `fetchOffset.retryIntervalMs`": f"{_RANGES}test_a_node_that_has_too_many_readers"
    "_is_waited_for",
    "`includeHeaders`": "test_sink.py::test_user_properties_that_repeat_are_published_as_they_were_read",
    "`groupIdPrefix`, `kafka.group.id`": f"{_CONVENTIONS}test_readers_are_listed_and_forgotten",
    "`kafka.security.*`": "test_guarded.py::test_a_stream_goes_from_a_guarded_feed_to_a_guarded_listener",
    "metrics `*OffsetsBehindLatest`": f"{_CONVENTIONS}test_progress_says_how_far_a_query_is_behind",
    "column `key`": f"{_SOURCE}test_the_table_says_everything_about_a_message",
    "column `timestampType`": f"{_SOURCE}test_the_table_says_everything_about_a_message",
    "columns `value`, `topic`, `partition`, `offset`, `timestamp`": f"{_SOURCE}test_the_table_says_everything_about_a_"
    "message",
    "real-time and continuous triggers": f"{_CONVENTIONS}test_triggers_that_are_not_of_batches_are_refused",
}


def rows() -> list[str]:
    page = (ROOT / "docs/pipeline.md").read_text()
    table = page.partition("### For those who know Spark's Kafka source")[2].partition("\n#")[0]
    found = re.findall(r"^\| (.+?) \| .+ \|.*\|$", table, re.MULTILINE)
    return [row for row in found if row != "Kafka" and not row.startswith("---")]


def test_each_row_is_shown_by_a_test_and_no_test_is_left_of_a_row_that_is_gone() -> None:
    assert rows() == list(SHOWN_BY)


@pytest.mark.parametrize("named", sorted(set(SHOWN_BY.values())))
def test_a_named_test_exists(named: str) -> None:
    file, _, test = named.partition("::")
    assert f"def {test}(" in (ROOT / "tests/pipeline" / file).read_text()
