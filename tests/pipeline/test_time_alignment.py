"""Time-aligned reading: no node gets far ahead of another, and one that is away is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from live.nodes import wait_until
from sterna.pipeline.offsets import Offsets, without_cut
from sterna.pipeline.options import ReadOptions
from sterna.pipeline.source.gaps import LATE, JournalGap, lose, noted
from sterna.pipeline.source.nodes import Seen
from sterna.pipeline.source.readers import StreamReader
from sterna.pipeline.source.time_alignment import TimeAlignment

from .feeding import FeedingNode

WITHIN_US = 10


class Journals:
    """Feeds of nodes whose messages came in at these times; an address is the name of its node."""

    def __init__(self, times: dict[str, list[int]]) -> None:
        self.times = times

    def at(self, address: str) -> Any:
        return _OneFeed(self.times[address])


class _OneFeed:
    def __init__(self, times: list[int]) -> None:
        self._times = times

    def read(self, start: int, stop: int, columns: list[str]) -> Iterator[Any]:
        import pyarrow as pa

        assert columns == ["ingress_time"]
        if self._times[start:stop]:
            yield pa.table({"ingress_time": pa.array(self._times[start:stop], pa.timestamp("us", "UTC"))})

    def offset_at(self, time_us: int) -> int:
        return next((place for place, at in enumerate(self._times) if at >= time_us), len(self._times))


def seen(name: str, head: int) -> Seen:
    return Seen(name, name, 1, 0, head, identity="j")


def alignment(times: dict[str, list[int]], patience_s: float = 60.0) -> TimeAlignment:
    return TimeAlignment(Journals(times), WITHIN_US, patience_s)  # type: ignore[arg-type]  # as far as it asks


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 200), max_size=30).map(sorted), min_size=1))
def test_a_backlog_is_read_to_its_end_and_nobody_gets_ahead(times: dict[str, list[int]]) -> None:
    heads = {f"{name}@j": len(mine) for name, mine in times.items()}
    here = {f"{name}@j": seen(name, len(mine)) for name, mine in times.items()}
    aligning = alignment(times)
    offsets: Offsets = dict.fromkeys(heads, 0)
    for _ in range(sum(heads.values()) + 1):
        unread = [times[node[0]][offset] for node, offset in offsets.items() if offset < heads[node]]
        if not unread:
            break
        end = aligning.aligned(offsets, heads, here, 1000, 0.0)
        assert end != offsets, "it stands still"
        read = [at for node in heads for at in times[node[0]][offsets[node] : end[node]]]
        assert max(read) <= min(unread) + WITHIN_US
        offsets = end
    assert offsets == heads


def test_a_node_that_is_away_holds_the_others_up_and_not_for_ever() -> None:
    times = {"a": [100, 200, 300], "b": [100]}
    aligning = alignment(times)
    both = {"a@j": seen("a", 1), "b@j": seen("b", 1)}
    assert aligning.aligned({"a@j": 0, "b@j": 0}, {"a@j": 1, "b@j": 1}, both, 110, 0.0) == {"a@j": 1, "b@j": 1}
    # All is read: b is as late as it is now.
    aligning.aligned({"a@j": 1, "b@j": 1}, {"a@j": 1, "b@j": 1}, both, 195, 1.0)
    alone = {"a@j": seen("a", 3)}
    behind = {"a@j": 1, "b@j": 1}
    assert aligning.aligned(behind, {"a@j": 3, "b@j": 1}, alone, 310, 2.0) == {"a@j": 2, "b@j": 1}
    assert aligning.aligned({"a@j": 2, "b@j": 1}, {"a@j": 3, "b@j": 1}, alone, 310, 60.0) == {"a@j": 2, "b@j": 1}
    assert aligning.aligned({"a@j": 2, "b@j": 1}, {"a@j": 3, "b@j": 1}, alone, 310, 61.0) == {"a@j": 3, "b@j": 1}


def test_what_a_node_brings_that_was_waited_for_in_vain_is_told_once() -> None:
    late: list[tuple[str, int, int]] = []
    times = {"a": [100, 300], "b": [100, 200, 299, 300, 310]}
    aligning = TimeAlignment(Journals(times), WITHIN_US, 60.0, lambda *one: late.append(one))  # type: ignore[arg-type]
    read = {"a@j": 1, "b@j": 1}
    both = {"a@j": seen("a", 2), "b@j": seen("b", 1)}
    aligning.aligned(read, {"a@j": 1, "b@j": 1}, both, 150, 0.0)
    alone = {"a@j": seen("a", 2)}
    aligning.aligned(read, {"a@j": 2, "b@j": 1}, alone, 310, 1.0)
    both["b@j"] = seen("b", 5)
    heads = {"a@j": 2, "b@j": 5}
    aligning.aligned(read, heads, both, 310, 59.0)
    assert late == [], "it was away, and the others waited"
    assert aligning.aligned(read, {"a@j": 2, "b@j": 1}, alone, 310, 120.0) == {"a@j": 2, "b@j": 1}
    for _ in range(2):
        aligning.aligned({"a@j": 2, "b@j": 1}, heads, both, 320, 121.0)
        assert late == [("b@j", 1, 3)], "two came in before 300, up to which all of a is read"


def test_late_messages_are_noted_beside_gaps(tmp_path: Path) -> None:
    words = {"nodes": "a:1", "alignTime": "1s", "gaps": str(tmp_path), "failOnDataLoss": "false"}
    options = ReadOptions.parse(words, streaming=True)
    reader = StreamReader(options)
    reader._note_late("a@j", 4, 9)
    lose(JournalGap.of("a@j", 0, 9, 9, "x"), options)
    lose(JournalGap.of("a@j", 4, 9, 5, "x"), options)
    assert sorted((gap.start, gap.messages, gap.cause == LATE) for gap in noted(tmp_path)) == [
        (0, 9, False),
        (4, 5, False),
        (4, 5, True),
    ]


def test_a_node_that_nobody_has_seen_since_the_start_holds_everything_up() -> None:
    aligning = alignment({"a": [100, 200]})
    behind, head = {"a@j": 0, "b@j": 5}, {"a@j": 2, "b@j": 5}
    assert aligning.aligned(behind, head, {"a@j": seen("a", 2)}, 300, 0.0) == behind
    assert aligning.aligned(behind, head, {"a@j": seen("a", 2)}, 300, 60.0) == {"a@j": 1, "b@j": 5}


def test_the_journal_that_a_node_had_before_is_not_waited_for() -> None:
    aligning = alignment({"a": [100]})
    here = {"a@j": seen("a", 1)}
    assert aligning.aligned({"a@old": 7, "a@j": 0}, {"a@old": 7, "a@j": 1}, here, 300, 0.0)["a@j"] == 1


@pytest.mark.timeout(600)
def test_a_query_waits_for_a_node_that_is_away(start_feeding: Callable[..., FeedingNode]) -> None:
    far = start_feeding("far")
    near = start_feeding("near", peers=[f"far={far.feed}"])
    near.publish("t", ["first"])
    options = {"nodes": near.feed, "startingOffsets": "earliest", "alignTime": "1ms", "alignPatience": "1h"}
    reader = StreamReader(ReadOptions.parse(options, streaming=True))
    offsets = reader.initialOffset()

    def read_on() -> int:
        nonlocal offsets
        offsets = reader.latestOffset(offsets, reader.getDefaultReadLimit())
        return sum(without_cut(offsets).values())

    with closing(reader._feeds):
        wait_until(lambda: read_on() == 1, "both are there")
        far.kill()
        wait_until(lambda: (read_on(), "far" not in reader.in_sight())[1], "one is out of sight")
        near.publish("t", ["second"])
        wait_until(lambda: (read_on(), sum((reader.reportLatestOffset() or {}).values()) == 2)[1], "it is heard of")
        assert read_on() == 1, "nothing is read past the one that is away"
        far.restart()
        wait_until(lambda: read_on() == 2, "both are there again")
