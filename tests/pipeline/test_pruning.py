"""Files of an archive that a question passes over hold nothing of what is asked, whatever they hold."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sterna.journal.filter_set import FilterSet
from sterna.journal.table import TABLE_SCHEMA
from sterna.pipeline.archive.data_source import ArchiveQuestion
from sterna.pipeline.archive.files import ArchiveFiles
from sterna.pipeline.archive.parquet_files import write_sorted
from sterna.pipeline.archive.pruning import FileChoice
from sterna.pipeline.archive.storage import Folder
from sterna.pipeline.jobs.query import query
from sterna.pipeline.topic_condition import matches, pattern_of

from .archives import with_places, written

pytestmark = pytest.mark.timeout(600)

#: Few levels, so that they meet; the last characters of all, and texts that are cut in the log.
LEVELS = st.sampled_from(
    ["", "a", "ab", "b", "$s", "ä", "\U0010ffff", "\ue000", "x" * 63, "x" * 70, "a\U0010ffff", "~"]
)
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.one_of(LEVELS, st.just("+")), max_size=3), st.booleans())
    .map(lambda made: "/".join([*made[0], *(["#"] if made[1] else [])]))
    .filter(bool)
)
BEGIN = datetime(2026, 1, 31, 21, tzinfo=UTC)
INSTANTS = st.integers(0, 6 * 60).map(lambda minutes: BEGIN + timedelta(minutes=minutes))
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-9))])
ASKED_INSTANTS = st.none() | st.tuples(INSTANTS, ZONES).map(lambda made: made[0].astimezone(made[1]))


class Message(NamedTuple):
    topic: str
    at: datetime


MESSAGES = st.lists(st.builds(Message, TOPICS, INSTANTS), min_size=1, max_size=12)


def table_of(messages: Sequence[Message]) -> pa.Table:
    rows = [
        {
            "topic": one.topic, "payload": b"", "qos": 1, "retain": False, "origin": "n", "epoch": 1,
            "sequence": number, "offset": number, "ingress_time": one.at,
        }
        for number, one in enumerate(messages)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, TABLE_SCHEMA)


class Memory(Folder):
    """Files are written there, and nobody reads them."""

    def __init__(self) -> None:
        super().__init__(Path())

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        yield io.BytesIO()


def in_order(messages: Sequence[Message]) -> list[Message]:
    """As tasks of the job sort them."""
    return sorted(messages, key=lambda one: (one.at.date(), one.topic.partition("/")[0], one.topic.encode()))


class Listed(NamedTuple):
    log: pa.Table
    """As the log tells of the files."""
    inside: dict[str, list[Message]]

    def paths(self, choose: Callable[[pa.Table], pa.Table]) -> set[str]:
        return set(choose(self.log)["path"].to_pylist())

    def with_any(self, is_meant: Callable[[Message], bool]) -> set[str]:
        return {path for path, inside in self.inside.items() if any(map(is_meant, inside))}


LOG = pa.schema(
    {
        "path": pa.string(), "partition.date": pa.date32(), "partition.first_level": pa.string(),
        "min.topic": pa.string(), "max.topic": pa.string(),
        "min.ingress_time": pa.timestamp("us", "UTC"), "max.ingress_time": pa.timestamp("us", "UTC"),
    }
)  # fmt: skip


def listed(messages: Sequence[Message], *, knows: bool = True) -> Listed:
    """The files that a task of the job makes of these; `knows`: the log has their least and greatest values."""
    entries, inside = [], {}
    for new in write_sorted(Memory(), map(with_places, table_of(in_order(messages)).to_batches())):
        assert new.facts is not None
        facts = new.facts[1:] if knows else (None, None, None, None)
        entries.append(dict(zip(LOG.names, (new.path, new.day, new.level or None, *facts), strict=True)))
        inside[new.path] = [one for one in messages if _place(one) == (new.day, new.level)]
    return Listed(pa.Table.from_pylist(entries, LOG), inside)


def _place(message: Message) -> tuple[date, str]:
    return message.at.date(), message.topic.partition("/")[0]


def kept(directory: Path, batches: Sequence[Sequence[Message]]) -> ArchiveFiles:
    """An archive of these batches, made as a job makes it."""
    files = ArchiveFiles(directory)
    files.log.create()
    for number, messages in enumerate(batches):
        files.take_in(number, written(files, table_of(in_order(messages)).to_batches()))
    return files


def is_asked(message: Message, filters: Sequence[str], since: datetime | None, until: datetime | None) -> bool:
    meant = not filters or message.topic.encode() in FilterSet([one.encode() for one in filters])
    return meant and (since is None or message.at >= since) and (until is None or message.at < until)


EARLY = (BEGIN + timedelta(hours=2)).astimezone(timezone(timedelta(hours=2)))
"""The day before, in UTC."""


@settings(max_examples=400, deadline=None)
@given(messages=MESSAGES, filters=st.lists(FILTERS, max_size=2), since=ASKED_INSTANTS, until=ASKED_INSTANTS)
@example([Message("a/\U0010ffffb", BEGIN)], ["a/+"], None, None)
@example([Message("a", BEGIN + timedelta(hours=2, minutes=1))], [], EARLY, None)
@example([Message("x" * 64 + "\U0010ffffb", BEGIN)], ["x" * 64 + "\U0010ffffb"], None, None)
def test_a_file_that_holds_a_match_is_never_passed_over(
    messages: list[Message], filters: list[str], since: datetime | None, until: datetime | None
) -> None:
    for knows in (True, False):
        files = listed(messages, knows=knows)
        meant = files.with_any(lambda one: is_asked(one, filters, since, until))
        assert meant <= files.paths(FileChoice(filters, since, until).of)
        assert meant <= files.paths(ArchiveQuestion("", filters, since, until).of)


CONDITIONS = st.one_of(
    st.tuples(st.just("topic"), st.just("starts"), TOPICS),
    st.tuples(st.just("topic"), st.just("in"), st.lists(TOPICS, min_size=1, max_size=3).map(tuple)),
    st.tuples(st.just("first_level"), st.just("in"), st.lists(LEVELS, min_size=1, max_size=2).map(tuple)),
    st.tuples(st.just("date"), st.just("in"), INSTANTS.map(lambda one: (one.date(),))),
    st.tuples(st.just("date"), st.sampled_from(["from", "to"]), INSTANTS.map(lambda one: one.date())),
    st.tuples(st.just("ingress_time"), st.sampled_from(["from", "to"]), INSTANTS),
)
VALUES: dict[str, Callable[[Message], Any]] = {
    "topic": lambda one: one.topic,
    "first_level": lambda one: one.topic.partition("/")[0],
    "date": lambda one: one.at.date(),
    "ingress_time": lambda one: one.at,
}
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "starts": lambda one, value: one.startswith(value),
    "in": lambda one, value: one in value,
    "from": lambda one, value: one >= value,
    "to": lambda one, value: one <= value,
}


@settings(max_examples=300, deadline=None)
@given(messages=MESSAGES, condition=CONDITIONS)
@example([Message("a/\U0010ffffb", BEGIN)], ("topic", "starts", "a/"))
def test_nor_is_one_of_which_a_condition_of_spark_holds(
    messages: list[Message], condition: tuple[str, str, Any]
) -> None:
    column, test, value = condition
    files = listed(messages)
    meant = files.with_any(lambda one: HOLDS[test](VALUES[column](one), value))
    assert meant <= files.paths(ArchiveQuestion("", filters=[condition]).of)


def test_most_files_are_passed_over_that_hold_nothing() -> None:
    files = listed([Message(f"{level}/{name}", BEGIN) for level in "abc" for name in "xyz"])
    for filters, left in ((["a/#"], 1), (["a/x"], 1), (["a/q/+"], 0), (["d/#"], 0), (["a/x", "c/+"], 2), (["+/x"], 3)):
        assert len(files.paths(FileChoice(filters).of)) == left, filters
    assert files.paths(FileChoice(since=BEGIN + timedelta(seconds=1)).of) == set()
    assert files.paths(FileChoice(until=BEGIN - timedelta(seconds=1)).of) == set()
    assert files.paths(FileChoice(before=BEGIN.date()).of) == set()
    assert len(files.paths(FileChoice(before=BEGIN.date() + timedelta(days=1)).of)) == 3


@settings(max_examples=500, deadline=None)
@given(topic=TOPICS, topic_filter=FILTERS)
def test_the_condition_of_a_filter_is_what_a_node_takes_for_it(topic: str, topic_filter: str) -> None:
    found = re.search(pattern_of(topic_filter), topic) is not None
    assert found == (topic.encode() in FilterSet([topic_filter.encode()]))


ODD = ("a", "a/b", "a/b\n", "a/\n", "$s/b", "/b", "a//b", "ä/b", "a.b", "a/\U0001f426")


def test_spark_takes_the_condition_as_a_node_does(spark: SparkSession) -> None:
    table = spark.createDataFrame([(one,) for one in ODD], "topic string")
    for topic_filter in ("#", "+/b", "a/#", "a/+", "a", "+", "+/+/b", "$s/#", "/#", "ä/+", "a.b"):
        found = {row.topic for row in table.where(matches([topic_filter])).collect()}
        assert found == {one for one in ODD if one.encode() in FilterSet([topic_filter.encode()])}, topic_filter


def test_a_question_lists_only_files_that_may_hold_an_answer(spark: SparkSession, tmp_path: Path) -> None:
    """The others are deleted: whoever opened one of them would fail."""
    late = BEGIN + timedelta(days=2)
    batches = [
        [Message("plant/a", BEGIN), Message("plant/b", BEGIN)],
        [Message("plant/a", late), Message("plant/a", late + timedelta(hours=1)), Message("office/a", late)],
    ]
    files = kept(tmp_path / "archive", batches)
    files.publish()
    state = files.state()
    (needed,) = files.state(FileChoice(["plant/#"], late, late + timedelta(minutes=1)).of).files
    files.storage.delete(one.path for one in state.files if one.path != needed.path)
    soon = late + timedelta(minutes=1)
    found = query(spark, "select topic, ingress_time from messages", None, files.place, ["plant/+"], late, soon)
    assert [(row.topic, row.ingress_time.astimezone(UTC)) for row in found.collect()] == [("plant/a", late)]
    assert [path.rpartition("/")[2] for path in found.inputFiles()] == [needed.path.rpartition("/")[2]]
