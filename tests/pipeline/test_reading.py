"""What a task does when its node goes away in the middle: it waits, looks around, and hands every row out once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from live.networks import free_port
from live.nodes import wait_until
from sterna.pipeline.errors import DataLoss, NodesMissing
from sterna.pipeline.feed_client import FeedClient
from sterna.pipeline.feed_errors import Refused
from sterna.pipeline.gaps import Gap, lose, noted
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


def test_one_node_of_a_network_knows_the_feeds_of_all(start_feeding: StartFeeding) -> None:
    doors = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    chain = [
        start_feeding(f"n{place}", f'[network]\nname = "chain"\nbind = "{door}"\nneighbours = {doors[:place][-1:]}\n')
        for place, door in enumerate(doors)
    ]
    with FeedClient(chain[0].feed, "looker") as client:
        wait_until(lambda: len(client.status().peers) == 2, "the first node knows the feeds of the other two")
        assert client.status().peers == {node.name: node.feed for node in chain[1:]}
        chain[2].kill()
        wait_until(lambda: list(client.status().peers) == ["n1"], "the dead node is forgotten")


def test_patience_with_a_node_that_stays_away_ends_and_says_what_is_missing(tmp_path: Path) -> None:
    node = FeedingNode(tmp_path / "away", name="away")
    with pytest.raises(NodesMissing, match="messages 3 to 9 of node away cannot be read"):
        list(read_range(Range("away", 3, 10), node.feed, options(node, patienceSeconds="0.1")))


def test_a_node_that_has_less_than_was_promised_has_lost_data(start_feeding: StartFeeding) -> None:
    node = start_feeding()
    node.publish("t", range(5))
    with pytest.raises(DataLoss, match="node own has lost 95 of messages 5 to 99: its data directory"):
        list(read_range(Range("own", 0, 100), node.feed, options(node)))
    rest = read_range(Range("own", 0, 100), node.feed, options(node, failOnDataLoss="false"))
    assert sum(batch.num_rows for batch in rest) == 5


def test_a_range_of_a_journal_that_was_forgotten_is_lost_and_not_taken_from_another(
    start_feeding: StartFeeding, tmp_path: Path
) -> None:
    node = start_feeding("own", '[journal]\ndurability = "memory"\n')
    node.publish("t", range(5))
    (seen,) = survey(Access(), [node.feed], all_of_them=True).values()
    piece = Range(seen.journal, 0, 5)
    assert sum(batch.num_rows for batch in read_range(piece, node.feed, options(node))) == 5
    older = piece._replace(node=f"own@{seen.epoch - 1}")
    for address in (node.feed, None):
        with pytest.raises(DataLoss, match="has lost 5 of messages 0 to 4: it was started again"):
            list(read_range(older, address, options(node)))
    rest = read_range(older, node.feed, options(node, failOnDataLoss="false", gaps=str(tmp_path / "gaps")))
    assert list(rest) == []
    (gap,) = noted(tmp_path / "gaps")
    assert (gap.start, gap.stop, gap.messages) == (0, 5, 5)


def test_a_gap_found_again_is_counted_once(tmp_path: Path) -> None:
    forgiving = ReadOptions(("a:1",), Access(), fail_on_data_loss=False, gaps=str(tmp_path))
    for start, stop in ((5, 9), (20, 30), (0, 9), (0, 9), (9, 12)):
        lose(Gap("a", start, stop, stop - start, "x"), forgiving)
    assert sorted((gap.start, gap.stop) for gap in noted(tmp_path)) == [(0, 9), (9, 12), (20, 30)]


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
