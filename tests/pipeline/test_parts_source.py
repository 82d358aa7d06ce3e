"""What a batch of the operators' stream reads follows from its two offsets: ranges, and what new expressions missed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from sterna.operators.settings import OperatorSettings
from sterna.pipeline.expressions.batch_expressions import filters_of
from sterna.pipeline.expressions.parts_source import JobOptions, PartsReader
from sterna.pipeline.expressions.registry import ReadingStart, Registry, RegistryFiles
from sterna.pipeline.expressions.trigger_pacing import TriggerPacing
from sterna.pipeline.feed.client import WantedExpressions
from sterna.pipeline.offsets import node_of
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.nodes import Seen

from .feeding import FeedingNode

NOWHERE = ReadingStart()
SHORT = OperatorSettings(hourly_s=10, anchor="wall")


def registry(*texts: bytes, beginning: ReadingStart = NOWHERE) -> Registry:
    return Registry().told("a", 1, 1, WantedExpressions(SHORT, [(text, 0) for text in texts]), beginning)


def reader(directory: Path) -> PartsReader:
    options = ReadOptions.parse({"nodes": "127.0.0.1:1", "tasks": "1"}, streaming=True)
    return PartsReader(options, JobOptions(str(directory), str(directory / "owed")))


def offset(edition: int, time_us: int, **nodes: int) -> dict[str, object]:
    return {"nodes": nodes, "registry": edition, "time_us": time_us}


def test_a_new_expression_gets_what_was_read_before_it_was_known(tmp_path: Path) -> None:
    beginning = ReadingStart((("a", 40), ("b", 900)))
    RegistryFiles(str(tmp_path)).keep(registry(b"$HOURLYSUM/t", beginning=beginning))
    one = reader(tmp_path)
    one._stream._nodes = {name: Seen(name, "127.0.0.1:1", 1, 0, 1000) for name in "ab"}
    start, end = offset(0, 5, a=100, b=800), offset(1, 6, a=120, b=800)
    pieces = one.partitions(start, end)
    assert [piece.piece.parts for piece in pieces] == [(("a", 100, 120),), (("a", 40, 100),)]
    assert [piece.tick for piece in pieces] == [(6, 1), None]
    # Once it is known there is nothing to make up for; and time passes without messages, too.
    known = one.partitions(offset(1, 6, a=120, b=800), offset(1, 7, a=120, b=800))
    assert [(piece.piece.parts, piece.fresh_from, piece.tick) for piece in known] == [((), 0, (7, 1))]


def test_an_edition_is_read_once_however_many_batches_have_it(tmp_path: Path) -> None:
    RegistryFiles(str(tmp_path)).keep(registry(b"$HOURLYSUM/t"))
    one = reader(tmp_path)
    first, *_ = one.partitions(offset(0, 5, a=1), offset(1, 6, a=2))
    (tmp_path / "1").unlink()
    second, *_ = one.partitions(offset(1, 6, a=2), offset(1, 7, a=3))
    assert [piece.piece.parts for piece in (first, second)] == [(("a", 1, 2),), (("a", 2, 3),)]


def test_an_expression_waits_for_a_node_that_is_out_of_sight(
    start_feeding: Callable[..., FeedingNode], tmp_path: Path
) -> None:
    """What that node has for it was read before, for others: nobody else knows from where on it is to be read again."""
    spark = '[operators]\nengine = "spark"\n'
    near, far = start_feeding("near", spark), start_feeding("far", spark)
    near.listen("one", "$HOURLYCOUNT/t")
    for node in (near, far):
        node.publish("t", range(10))
    options = ReadOptions.parse({"nodes": f"{near.feed},{far.feed}", "tasks": "1"}, streaming=True)
    one = PartsReader(options, JobOptions(str(tmp_path / "registry"), str(tmp_path / "owed")))
    start = one.initialOffset()
    assert by_node(start) == {"near": 10, "far": 10}
    os.kill(far.pid, signal.SIGSTOP)
    try:
        end = latest(one, start, lambda: "near" in one._stream.in_sight())
        assert end["registry"] == 0
    finally:
        os.kill(far.pid, signal.SIGCONT)
    end = latest(one, end, lambda: one._known().edition > 0)
    (piece,) = one.partitions(start, end)
    assert [(node_of(part.node), part.start, part.stop) for part in piece.piece.parts] == [
        ("far", 0, 10),
        ("near", 0, 10),
    ]
    assert piece.is_missed


def test_it_is_not_late_yet_at_a_node_that_was_only_heard_of(
    start_feeding: Callable[..., FeedingNode], tmp_path: Path
) -> None:
    """Started at a bad moment, the job does not end windows before it has read what that node has of them."""
    spark = '[operators]\nengine = "spark"\n'
    with FeedingNode(tmp_path / "far", spark, name="far") as far:
        far.publish("t", range(10))
        far.kill()
        near = start_feeding("near", spark, peers=[f"far={far.feed}"])
        near.listen("one", "$HOURLYCOUNT/t")
        options = ReadOptions.parse({"nodes": near.feed, "tasks": "1"}, streaming=True)
        one = PartsReader(options, JobOptions(str(tmp_path / "registry"), str(tmp_path / "owed")))
        start = one.initialOffset()
        assert by_node(start) == {"near": 0}
        assert latest(one, start, one._stream.in_sight) == start
        far.restart()
        end = latest(one, start, lambda: one._times.keys() == {"near", "far"})
        assert by_node(end) == {"near": 0, "far": 10}
        assert end["registry"] > 0 < end["time_us"]


def by_node(offset: dict[str, Any]) -> dict[str, int]:
    return {node_of(journal): place for journal, place in offset["nodes"].items()}


def latest(one: PartsReader, start: dict[str, Any], holds: Callable[[], object]) -> dict[str, Any]:
    for _ in range(1000):
        start = one.latestOffset(start, ReadAllAvailable())
        if holds():
            return start
    pytest.fail("waited in vain")


def test_nothing_is_read_while_nobody_wants_anything(tmp_path: Path) -> None:
    (only,) = reader(tmp_path).partitions(offset(0, 5, a=1), offset(0, 6, a=10**9))
    assert (only.piece.parts, only.tick) == ((), (6, 0))


@pytest.mark.parametrize(
    ("before_us", "time_us", "ends"),
    [(1, 9_999_999, False), (1, 10_000_000, True), (10_000_000, 19_999_999, False), (10_000_000, 20_000_000, True)],
)
def test_a_batch_without_messages_is_due_when_a_window_ends(before_us: int, time_us: int, ends: bool) -> None:
    assert (TriggerPacing().next_end(registry(b"$HOURLYSUM/t"), before_us) <= time_us) is ends
    assert TriggerPacing().next_end(Registry(), before_us) > time_us


def test_it_is_as_late_as_at_the_node_where_it_is_earliest(tmp_path: Path) -> None:
    one = reader(tmp_path)
    here = {
        "a": Seen("a", "", 1, 0, 10, time_us=500),
        "b": Seen("b", "", 1, 0, 20, durable=False, time_us=400),
    }
    assert one._log_time({"a": 10, "b@1": 20}, here) == 400
    # What is not read yet does not count as over; a node that is out of sight is waited for.
    here["b"] = Seen("b", "", 1, 0, 30, durable=False, time_us=600)
    assert one._log_time({"a": 10, "b@1": 20}, here) == 400
    assert one._log_time({"a": 10, "b@1": 30}, here) == 500
    del here["b"]
    here["a"] = Seen("a", "", 1, 0, 10, time_us=900)
    assert one._log_time({"a": 10, "b@1": 30}, here) == 600
    assert one._log_time({"a": 10, "b@1": 30, "c": 0}, here) == 0


def test_nobody_is_waited_for_for_ever(tmp_path: Path) -> None:
    one = reader(tmp_path)
    one._sights["gone"] = -1e9
    assert one._log_time({"a": 10, "gone": 30}, {"a": Seen("a", "", 1, 0, 10, time_us=900)}) == 900


def test_a_filter_within_another_is_not_told_to_nodes() -> None:
    entries = registry(b"$HOURLYSUM/t/+", b"$HOURLYMAX/t/a", b"$HOURLYMAX/u/#", b"$HOURLYAVG/u/#").entries
    assert filters_of(entries) == ("t/+", "u/#")
