"""What a task does when its node goes away in the middle: it waits, looks around, and hands every row out once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from live.nodes import wait_until
from sterna.measure.harness.ports import free_port
from sterna.pipeline.errors import DataLoss, NodesMissing, PipelineError
from sterna.pipeline.feed.client import FeedClient, ParquetFile
from sterna.pipeline.feed.errors import Busy, FeedError, FeedRefused
from sterna.pipeline.offsets import Range, node_of
from sterna.pipeline.options import Access, ReadOptions
from sterna.pipeline.source.gaps import LATE, JournalGap, lose, note, noted
from sterna.pipeline.source.nodes import Seen, survey
from sterna.pipeline.source.range_reader import read_range
from sterna.pipeline.source.readers import BatchReader, StreamReader
from sterna.pipeline.source.sealed_segments import before_the_journal
from sterna.vocabulary.errors import ConfigurationError

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


def linked(start_feeding: StartFeeding) -> list[FeedingNode]:
    """Three in a row."""
    doors = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    return [
        start_feeding(f"n{place}", f'[network]\nname = "chain"\nbind = "{door}"\nneighbours = {doors[:place][-1:]}\n')
        for place, door in enumerate(doors)
    ]


def test_one_node_of_a_network_knows_the_feeds_of_all(start_feeding: StartFeeding) -> None:
    chain = linked(start_feeding)
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


@pytest.mark.parametrize("name", ["/etc/x.parquet", "../x.parquet", "a/x.parquet", "..", "", "x.json", "a\0.parquet"])
def test_a_node_cannot_name_files_outside_the_directory_of_its_segments(tmp_path: Path, name: str) -> None:
    options = ReadOptions(("a:1",), Access(), parquet=str(tmp_path))
    file = ParquetFile("a-1.parquet", 0, 5, 5, 10, 0, 10)
    seen = Seen("a", "a:1", 1, 5, 10)
    (found,) = before_the_journal(seen, [file], 10, options)
    assert found.path == str(tmp_path / "a-1.parquet")
    with pytest.raises(PipelineError, match=r"node a at a:1 calls a file .* which is none of its segments"):
        before_the_journal(seen, [msgspec.structs.replace(file, name=name)], 10, options)


def test_a_read_that_would_miss_a_node_says_so_or_is_told_not_to_mind(
    start_feeding: StartFeeding, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the nodes that are left were started again meanwhile."""
    chain = linked(start_feeding)
    with FeedClient(chain[0].feed, "looker") as client:
        wait_until(lambda: len(client.status().peers) == 2, "the first node knows the feeds of the other two")
    chain[0].publish("t", range(5))
    feeds = chain[0].directory / "data" / "feeds.json"
    wait_until(lambda: feeds.exists() and "n2" in feeds.read_text(), "the first node has written down whom it knows")
    chain[2].kill()
    asked = options(chain[0])
    for again in (False, True):
        if again:
            chain[0].kill()
            chain[0].restart()
        for read in (BatchReader(asked).partitions, StreamReader(asked).prepareForTriggerAvailableNow):
            with pytest.raises(NodesMissing, match=r"node n2 does not answer.*set ignoreMissingNodes to true"):
                read()
    with caplog.at_level(logging.WARNING):
        (piece,) = BatchReader(options(chain[0], ignoreMissingNodes="true")).partitions()
    assert [node_of(part.node) for part in piece.parts] == ["n0"]
    assert "node n2 does not answer" in caplog.text
    chain[2].restart()
    BatchReader(asked).partitions()


def test_a_node_that_has_too_many_readers_is_waited_for(start_feeding: StartFeeding) -> None:
    node = start_feeding(connections=1)
    node.publish("t", range(5))
    with FeedClient(node.feed, "other") as other:
        with occupied(other):
            (piece,) = BatchReader(options(node)).partitions()
        with occupied(other):
            found = [batch for part in piece.parts for batch in read_range(part, node.feed, options(node))]
        assert sum(batch.num_rows for batch in found) == 5
        with occupied(other), pytest.raises(Busy, match="too many readers are connected"):
            BatchReader(options(node, patienceSeconds="0")).partitions()


@contextmanager
def occupied(client: FeedClient) -> Iterator[None]:
    """The one reader that a node takes is busy for a while."""
    wait_until(lambda: _is_in(client), "the reader is let in")
    waiting = threading.Thread(target=client.status, kwargs={"beyond": 5, "wait_ms": 3000})
    waiting.start()
    yield
    waiting.join()


def _is_in(client: FeedClient) -> bool:
    try:
        return client.status().next == 5
    except Busy:
        return False


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_beyond_the_journal_are_refused_and_no_loss(start_feeding: StartFeeding, option: str) -> None:
    node = start_feeding()
    node.publish("t", range(5))
    said = rf'{option}: 6 is beyond the journal of node "own", which ends at 5.*write latest, or a number up to 5'
    for forgiving in ("true", "false"):
        with pytest.raises(ConfigurationError, match=said):
            BatchReader(options(node, failOnDataLoss=forgiving, **{option: '{"own": 6}'})).partitions()
    BatchReader(options(node, **{option: '{"own": 5}'})).partitions()
    if option == "startingOffsets":
        with pytest.raises(ConfigurationError, match=said):
            StreamReader(options(node, **{option: '{"own": 6}'})).initialOffset()


def test_nobody_is_patient_with_a_node_that_does_not_answer_when_a_read_begins() -> None:
    """Patience is for one that has as many readers as it takes."""
    words = {"nodes": "127.0.0.1:1", "patienceSeconds": "86400"}
    with pytest.raises(FeedError, match="does not answer"):
        BatchReader(ReadOptions.parse(words, streaming=False)).partitions()
    stream = StreamReader(ReadOptions.parse(words, streaming=True))
    with pytest.raises((FeedError, NodesMissing), match="answer"):
        stream.initialOffset()
    stream.stop()


def test_a_gap_found_again_is_counted_once(tmp_path: Path) -> None:
    forgiving = ReadOptions(("a:1",), Access(), fail_on_data_loss=False, gaps=str(tmp_path))
    for start, stop in ((5, 9), (20, 30), (0, 9), (0, 9), (9, 12)):
        lose(JournalGap("a", start, stop, stop - start, "x"), forgiving)
    assert sorted((gap.start, gap.stop) for gap in noted(tmp_path)) == [(0, 9), (9, 12), (20, 30)]


def test_noting_a_gap_reads_no_other_that_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def noticed(path: Path) -> bytes:
        read.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noticed)
    forgiving = ReadOptions(("a:1",), Access(), fail_on_data_loss=False, gaps=str(tmp_path))
    for start in range(0, 1000, 10):
        lose(JournalGap("a", start, start + 5, 5, "x"), forgiving)
        note(JournalGap("a", start, start + 5, 5, LATE), forgiving)
    assert read == []
    lose(JournalGap.of("a@j1", 0, 1000, 1000, "x"), forgiving)
    assert len(noted(tmp_path)) == 201, "those of another journal stay"
    lose(JournalGap("a", 0, 1000, 1000, "x"), forgiving)
    assert sum(not gap.is_late for gap in noted(tmp_path)) == 2, "late ones stay, and those inside go"


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
    with pytest.raises(FeedRefused, match="guarded"):
        survey(Access(token="x" * 32), [node.feed], all_of_them=True)
