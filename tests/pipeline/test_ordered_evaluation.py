"""Values in order, from real nodes, without Spark: a backlog is worked off in steps, and nobody is left waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from live.nodes import wait_until
from sterna.pipeline.expressions import parts_source, result_delivery
from sterna.pipeline.expressions.matching import TICK
from sterna.pipeline.expressions.part_merge import ExpressionResult, PartMerge
from sterna.pipeline.expressions.parts_source import JobOptions, PartsReader
from sterna.pipeline.expressions.registry import RegistryFiles
from sterna.pipeline.expressions.result_delivery import OwedResults, ResultDelivery
from sterna.pipeline.feed.client import FeedClient
from sterna.pipeline.options import ReadOptions

from .feeding import FeedingNode

SPARKS = '[operators]\nengine = "spark"\n'
STEP = 30
PATIENCE_S = 120.0
StartFeeding = Callable[..., FeedingNode]


class Batches:
    """What Spark does: ask how far, plan, read, take; offsets are all that goes from one batch to the next."""

    def __init__(self, node: FeedingNode, directory: Path) -> None:
        self._options = ReadOptions.parse({"nodes": node.feed, "startingOffsets": "earliest"}, streaming=True)
        self._directory = str(directory)
        self._gathering = PartMerge()
        self.start_again()
        self.offset: dict[str, Any] = self._reader.initialOffset()
        self.read: list[int] = []
        self.results: list[ExpressionResult] = []

    def start_again(self) -> None:
        self._reader = PartsReader(self._options, JobOptions(self._directory, f"{self._directory}-owed"))

    def step(self) -> None:
        start, end = self.offset, self._reader.latestOffset(self.offset, ReadAllAvailable())
        if end == start:
            return
        rows: list[Any] = []
        for piece in self._reader.partitions(start, end):
            for batch in self._reader.read(piece):
                rows += zip(*(batch.column(name).to_pylist() for name in ("number", "end_us", "part")), strict=True)
        registry = RegistryFiles(self._directory).load(end["registry"])
        self.results += self._gathering.close(registry, end["time_us"], [row for row in rows if row[0] != TICK])
        self.read.append(sum(end["nodes"].values()) - sum(start["nodes"].get(name, 0) for name in end["nodes"]))
        self.offset = end

    def until(self, count: int, beyond: int = 0) -> list[bytes]:
        """There are so many results, the last one with a number beyond this one."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.results) < count or self.results[-1].number <= beyond:
            assert time.monotonic() < deadline, f"{len(self.results)} results"
            self.step()
        return [result.payload for result in self.results]


def test_a_backlog_is_worked_off_in_steps_and_the_last_message_does_not_wait(
    start_feeding: StartFeeding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_source, "HELD_ROWS_MAX", STEP)
    node = start_feeding("a", SPARKS)
    batches = Batches(node, tmp_path / "registry")
    node.listen("one", "$TMPCOUNT;0:10:00/t/+")
    batches.step()  # it is known, and nothing has come yet
    for _ in range(10):  # those of one packet of bytes came at the same time
        node.publish("t/a", range(10))
    assert batches.until(100) == [b"%d.0" % count for count in range(1, 101)]
    assert [rows for rows in batches.read if rows] == [STEP, STEP, STEP, 10], "full ones, as long as there is enough"
    batches.start_again()
    node.publish("t/b", range(3))
    assert batches.until(103)[100:] == [b"101.0", b"102.0", b"103.0"]
    numbers = [result.number for result in batches.results]
    assert numbers == sorted(set(numbers))


def test_an_expression_of_which_too_much_was_missed_begins_later(
    start_feeding: StartFeeding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a client with a subscription of long ago turns up at another node."""
    monkeypatch.setattr(parts_source, "HELD_ROWS_MAX", STEP)
    node = start_feeding("a", SPARKS)
    before = Batches(node, tmp_path / "before")
    node.listen("one", "$TMPCOUNT;0:10:00/t/+")
    for _ in range(10):
        node.publish("t/a", range(10))
    before.until(100)
    batches = Batches(node, tmp_path / "after")
    batches.offset = {**before.offset, "registry": 0}
    node.publish("t/a", [1])
    payloads = batches.until(2, beyond=before.results[-1].number)
    assert payloads == [b"%d.0" % count for count in range(1, len(payloads) + 1)]
    assert len(payloads) <= STEP + 1


@pytest.mark.slow
def test_a_node_that_is_slow_is_waited_for_and_one_that_is_away_is_not(
    start_feeding: StartFeeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_delivery, "OWED_MAX", 10)
    monkeypatch.setattr(result_delivery, "AT_ONCE", 20)
    node, lines = start_feeding("a", SPARKS), list[str]()
    node.listen("one", "$SUM/t/+")
    delivery, owed = (
        ResultDelivery(ReadOptions.parse({"nodes": node.feed}, streaming=True), lines.append),
        OwedResults(),
    )
    owed.add(ExpressionResult("a", b"$SUM/t/+", number, b"1.0") for number in range(1, 501))
    assert delivery.hand_in(owed) == []
    assert len(owed) == 0
    with FeedClient(node.feed, "test") as feed:
        assert feed.status().next == 500
    assert lines == []
    node.kill()
    owed.add(ExpressionResult("a", b"$SUM/t/+", number, b"1.0") for number in range(501, 602))
    owed.add([ExpressionResult("b", b"$SUM/t/+", 1, b"1.0")])
    assert delivery.hand_in(owed) == ["a", "b"]
    assert [one.number for one in owed.by_node["a"]] == list(range(592, 602))
    assert "91 results for it are lost" in lines[-1]
    node.restart()
    node.listen("one", "$SUM/t/+")

    def has_taken_them() -> bool:
        delivery.hand_in(owed)
        return owed.by_node.keys() == {"b"}

    wait_until(has_taken_them, "the node has taken the rest", PATIENCE_S)
    assert len(lines) == len(set(lines)), "each trouble is told once"
    delivery.close()
