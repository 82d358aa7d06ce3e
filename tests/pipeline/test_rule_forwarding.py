"""Messages that rules alone let pass on Spark: those a node would pass, in order, each once for each node."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.expression_making import PLAIN, RULES, STRUCTURED, TEXT_RULES
from sterna.mqtt.topics import levels_of, matches
from sterna.operators.engine import Engine
from sterna.operators.grammar import OPERATORS_MAX, parse
from sterna.operators.settings import OperatorSettings
from sterna.pipeline.expressions import rule_forwarding
from sterna.pipeline.expressions.lane_files import LaneFiles
from sterna.pipeline.expressions.matching import EXTRACTED, MISSED, Row
from sterna.pipeline.expressions.part_merge import ExpressionResult, PartBatch, PartMerge
from sterna.pipeline.expressions.registry import ReadingStart, Registry, RegistryFiles
from sterna.pipeline.expressions.result_delivery import OwedResults
from sterna.pipeline.expressions.rule_forwarding import FORWARDED, ForwardedMessage
from sterna.pipeline.expressions.value_extraction import ORDER_COLUMNS, ExtractedValues, ValueExtractor
from sterna.pipeline.feed.client import WantedExpressions
from sterna.pipeline.table import schema_of

Message = tuple[int, bytes, bytes]
"""Time, which is its offset, too; topic; payload."""

COLUMNS = (*ORDER_COLUMNS, *rule_forwarding.COLUMNS)


def rows_of(registry: Registry, messages: list[Message], kind: int = EXTRACTED, first: int = 0) -> list[Row]:
    """What a task makes of them, for entries from a number on."""
    times, topics, payloads = zip(*messages, strict=True) if messages else ((), (), ())
    columns = [
        pa.array([topic.decode() for topic in topics], pa.string()),
        pa.array(payloads, pa.binary()),
        pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array(times, pa.int64()),
        pa.array([1 + time_us % 2 for time_us in times], pa.int8()),
        pa.array([b"p%d" % time_us for time_us in times], pa.binary()),
        pa.array(times, pa.int64()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema_of(COLUMNS))
    entries = [entry for entry in registry.entries if entry.number >= first]
    return [(kind, 0, one) for one in ValueExtractor(entries).extract("a", batch)]


def told(registry: Registry, node: str, *wanted: tuple[str, int]) -> Registry:
    some = [(text.encode(), since_us) for text, since_us in wanted]
    return registry.told(node, 1, registry.edition + 1, WantedExpressions(OperatorSettings(), some), ReadingStart())


def seen(results: list[ExpressionResult], node: str = "a") -> list[tuple[bytes, int, bytes, bytes]]:
    return [(one.text, one.number, one.topic, one.payload) for one in results if one.node == node]


rules = st.lists(st.sampled_from(RULES), min_size=1, max_size=3) | st.lists(
    st.sampled_from(TEXT_RULES), min_size=1, max_size=OPERATORS_MAX
)

written = st.tuples(rules, st.sampled_from(["", ";.v"]), st.sampled_from(["t/+", "t/a", "#"]))


@settings(max_examples=80)
@given(
    st.lists(written, min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from([b"t/a", b"t/b", b"t"]), st.sampled_from([*PLAIN, *STRUCTURED])), max_size=20),
)
def test_what_passes_is_what_a_node_lets_pass(
    drawn: list[tuple[list[str], str, str]], sent: list[tuple[bytes, bytes]]
) -> None:
    texts = dict.fromkeys(f"{''.join(chosen)}{field}/{topics}" for chosen, field, topics in drawn)
    registry = told(Registry(), "a", *((text, 0) for text in texts))
    messages = [(time_us, *one) for time_us, one in enumerate(sent, 1)]
    results = PartMerge().close(registry, 1000, rows_of(registry, messages))
    expected = []
    for text in texts:
        expression = parse(text.encode())
        engine, levels = Engine(expression, OperatorSettings(), 0), levels_of(expression.topic_filter)
        for time_us, topic, payload in messages:
            if matches(levels, levels_of(topic)) and engine.message(topic, payload, time_us) is not None:
                expected.append((expression.topic_of_result(topic), time_us, payload))
    found = [(parse(one.text).topic_of_result(one.topic), one.number, one.payload) for one in results]
    assert sorted(found) == sorted(set(expected))  # by whichever of two with the same rules, once
    assert all((one.properties, one.qos) == (b"p%d" % one.number, 1 + one.number % 2) for one in results)


def test_the_same_rules_pass_a_message_once_to_each_node_in_one_order() -> None:
    registry = told(Registry(), "a", ("$GT;1/t/+", 0), ("$GT;1/t/#", 0), ("$GT;1/t/a", 0), ("$GT;2/t/a", 0))
    registry = told(registry, "b", ("$GT;1/t/a", 0))
    messages = [(5, b"t/a", b"2"), (5, b"t/a/x", b"3"), (5, b"t/b", b"1"), (6, b"t/b", b"4")]
    results = PartMerge().close(registry, 10, rows_of(registry, messages))
    assert seen(results) == [
        (b"$GT;1/t/+", 5, b"t/a", b"2"),
        (b"$GT;1/t/#", 6, b"t/a/x", b"3"),
        (b"$GT;1/t/+", 7, b"t/b", b"4"),
    ]
    assert seen(results, "b") == [(b"$GT;1/t/a", 5, b"t/a", b"2")]


def test_one_that_comes_later_gets_what_the_others_have_not_passed_on() -> None:
    before = told(Registry(), "a", ("$GT;1/t/a", 0))
    merge, past = PartMerge(), [(5, b"t/a", b"2"), (6, b"t/b", b"3")]
    assert len(merge.close(before, 10, rows_of(before, past))) == 1
    after = told(before, "a", ("$GT;1/t/a", 0), ("$GT;1/t/+", 6))
    rows = rows_of(after, [*past, (7, b"t/a", b"4")], MISSED, first=before.following)
    rows += rows_of(after, [(11, b"t/b", b"5"), (12, b"t/a", b"6")])
    assert seen(merge.close(after, 20, rows)) == [
        (b"$GT;1/t/+", 6, b"t/b", b"3"),
        (b"$GT;1/t/+", 11, b"t/b", b"5"),
        (b"$GT;1/t/a", 12, b"t/a", b"6"),
    ]
    alone = told(after, "a", ("$GT;1/t/+", 6))
    assert seen(merge.close(alone, 30, rows_of(alone, [(21, b"t/a", b"7")]))) == [(b"$GT;1/t/+", 21, b"t/a", b"7")]


def test_numbers_and_what_waits_outlive_the_driver(tmp_path: Path) -> None:
    registries = RegistryFiles(str(tmp_path / "registry"))
    registry = told(Registry(), "a", ("$GT;1/t", 0))
    registries.keep(registry)

    def started() -> tuple[LaneFiles, PartMerge, OwedResults]:
        files, merge, owed = LaneFiles(tmp_path / "state", registries.load), PartMerge(), OwedResults()
        files.load(merge, owed)
        return files, merge, owed

    files, merge, _ = started()
    rows = rows_of(registry, [(5, b"t", b"2"), (5, b"t", b"3"), (9, b"t", b"4")])
    made = files.take(merge, PartBatch(0, 1, 6, rows), lambda _: ["a"])
    files.close()
    files, merge, redone = started()
    assert redone.all() == made
    files.snapshot(merge, redone)
    files.close()
    files, merge, redone = started()
    assert redone.all() == made
    results = files.take(merge, PartBatch(1, 1, 10, rows_of(registry, [(6, b"t", b"9")])), lambda _: [])
    files.close()
    assert seen(made + results) == [
        (b"$GT;1/t", number, b"t", payload) for number, payload in ((5, b"2"), (6, b"3"), (7, b"9"), (9, b"4"))
    ]


def test_a_message_leaves_its_task_once_for_all_rules_and_not_if_it_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rule_forwarding, "FORWARDED_BYTES_MAX", 1000)
    registry = told(Registry(), "a", *((f"$CONTAINS;{letter}/#", 0) for letter in "abc"))
    rows = rows_of(registry, [(1, b"t", b"abc" * 200), (2, b"t", b"abc" * 2000), (3, b"t", b"xyz")])
    ((_, _, part),) = rows
    said = msgspec.msgpack.decode(part, type=ExtractedValues)
    assert said.reading == FORWARDED
    (message,) = said.values
    assert isinstance(message, ForwardedMessage)
    assert len(message.rules) == 3
    assert list(said.left_out.values()) == [1]
    lines: list[str] = []
    merge = PartMerge(lines.append)
    assert len(merge.close(registry, 10, rows)) == 3
    merge.close(registry, 11, rows)
    assert len(lines) == 1
    assert "left out" in lines[0]
