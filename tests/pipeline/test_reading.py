"""What a task does when its node goes away in the middle: it waits, looks around, and hands every row out once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sterna.pipeline.errors import DataLoss, NodesMissing
from sterna.pipeline.feed_errors import Refused
from sterna.pipeline.nodes import survey
from sterna.pipeline.offsets import Range
from sterna.pipeline.options import Access, ReadOptions
from sterna.pipeline.reading import read_range

from .feeding import FeedingNode

StartFeeding = Callable[..., FeedingNode]


def options(*nodes: FeedingNode, **more: str) -> ReadOptions:
    return ReadOptions.parse({"nodes": ",".join(node.feed for node in nodes), **more}, streaming=False)


def test_a_range_is_read_on_when_its_node_comes_back(start_feeding: StartFeeding) -> None:
    node = start_feeding()
    node.publish("t", range(50))
    node.kill()
    back = threading.Timer(0.5, node.restart)
    back.start()
    try:
        found = [
            row for batch in read_range(Range("own", 10, 50), node.feed, options(node)) for row in batch.to_pylist()
        ]
    finally:
        back.join()
    assert [int(row["payload"]) for row in found] == list(range(10, 50))


def test_a_node_whose_address_nobody_told_is_found_through_the_others(start_feeding: StartFeeding) -> None:
    far = start_feeding("far")
    near = start_feeding("near", peers=[f"far={far.feed}"])
    far.publish("t", range(3))
    batches = read_range(Range("far", 0, 3), None, options(near))
    assert sum(batch.num_rows for batch in batches) == 3


def test_patience_with_a_node_that_stays_away_ends_and_says_what_is_missing(tmp_path: Path) -> None:
    node = FeedingNode(tmp_path / "away", name="away")
    with pytest.raises(NodesMissing, match="messages 3 to 9 of node away cannot be read"):
        list(read_range(Range("away", 3, 10), node.feed, options(node, patienceSeconds="0.1")))


def test_a_node_that_has_less_than_was_promised_has_lost_data(start_feeding: StartFeeding) -> None:
    node = start_feeding()
    node.publish("t", range(5))
    with pytest.raises(DataLoss, match="node own has no messages 5 to 99"):
        list(read_range(Range("own", 0, 100), node.feed, options(node)))
    rest = read_range(Range("own", 0, 100), node.feed, options(node, failOnDataLoss="false"))
    assert sum(batch.num_rows for batch in rest) == 5


def test_a_survey_needs_those_it_was_told_of_and_does_without_those_it_heard_of(
    start_feeding: StartFeeding, tmp_path: Path
) -> None:
    away = FeedingNode(tmp_path / "away", name="away")
    here = start_feeding("here", peers=[f"away={away.feed}"])
    assert list(survey(Access(), [here.feed], all_of_them=True)) == ["here"]
    with pytest.raises(Exception, match=away.feed):
        survey(Access(), [here.feed, away.feed], all_of_them=True)


def test_a_wrong_token_is_refused_at_once(start_feeding: StartFeeding) -> None:
    node = start_feeding("guarded", token="t" * 32)
    assert list(survey(Access(token="t" * 32), [node.feed], all_of_them=True)) == ["guarded"]
    with pytest.raises(Refused, match="guarded"):
        survey(Access(token="x" * 32), [node.feed], all_of_them=True)
