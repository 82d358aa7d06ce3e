"""Offsets: sorted, never lost with a node, and cut into tasks by a function of the two ends alone."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.pipeline.offsets import (
    OffsetSpec,
    Range,
    TaskCut,
    TaskSize,
    advance,
    capped,
    named_as_in,
    packed,
    ranges,
    without_cut,
)
from sterna.pipeline.options import ReadOptions
from sterna.vocabulary.errors import ConfigurationError

OFFSETS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**9), min_size=1)


def test_a_node_out_of_sight_stays_where_it_was() -> None:
    assert advance({"a": 5, "b": 7}, {"a": 9}, {}) == {"a": 9, "b": 7}


def test_a_node_met_for_the_first_time_enters_where_it_begins_and_is_read_from_the_next_batch_on() -> None:
    start = {"a": 5}
    end = advance(start, {"a": 5, "b": 100}, {"b": 40})
    assert end == {"a": 5, "b": 40}
    assert ranges(start, end) == []
    assert ranges(end, advance(end, {"a": 5, "b": 100}, {"b": 40})) == [Range("b", 40, 100)]


def test_the_same_offsets_are_the_same_text() -> None:
    one = advance({"b": 1, "a": 2}, {"c": 4}, {"c": 3})
    other = advance({"a": 2, "b": 1}, {"c": 4}, {"c": 3})
    assert json.dumps(one) == json.dumps(other) == '{"a": 2, "b": 1, "c": 3}'


def test_a_node_whose_beginning_lies_behind_its_end_has_nothing_to_read() -> None:
    assert ranges({"a": 9}, {"a": 3}) == []


@given(OFFSETS, st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**6)), st.integers(1, 10**6))
def test_a_cap_moves_everybody_forward_and_nobody_too_far(
    start: dict[str, int], steps: dict[str, int], most: int
) -> None:
    end = {node: offset + steps.get(node, 0) for node, offset in start.items()}
    reached = capped(start, end, most)
    moved = [reached[node] - start[node] for node in start]
    assert list(reached) == sorted(start)
    assert all(start[node] <= reached[node] <= end[node] for node in start)
    assert all(reached[node] > start[node] for node in start if end[node] > start[node])
    assert sum(moved) <= most + len(start)


@given(OFFSETS, st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**6)), st.integers(1, 16))
def test_tasks_hold_every_message_of_a_batch_once(start: dict[str, int], steps: dict[str, int], tasks: int) -> None:
    end = {node: offset + steps.get(node, 0) for node, offset in start.items()}
    dealt = packed(ranges(start, end), TaskCut(tasks))
    assert dealt == packed(ranges(dict(reversed(start.items())), end), TaskCut(tasks))
    assert len(dealt) <= tasks
    assert all(dealt)
    parts = sorted(part for parts in dealt for part in parts)
    for node in start:
        mine = [part for part in parts if part.node == node]
        edges = [start[node], *(part.stop for part in mine)]
        assert [part.start for part in mine] == edges[:-1]
        assert edges[-1] == end[node]


def test_a_long_range_is_cut_and_short_ones_share_a_task() -> None:
    assert [len(parts) for parts in packed([Range("a", 0, 1_000_000)], TaskCut(4))] == [1, 1, 1, 1]
    many = [Range(f"n{number}", 0, 10) for number in range(20)]
    assert [len(parts) for parts in packed(many, TaskCut(2))] == [10, 10]


def test_an_instant_is_one_wherever_it_was_written_down() -> None:
    assert OffsetSpec.parse("2026-01-31T12:00:00Z", "x") == OffsetSpec.parse("2026-01-31T13:00:00+01:00", "x")
    assert OffsetSpec.parse("2026-01-31T12:00:00", "x").time_us == 1_769_860_800_000_000


def test_explicit_offsets_hold_for_the_nodes_they_name() -> None:
    place = OffsetSpec.parse('{"b": "latest", "a": 12}', "x")
    assert place.for_node("a").offsets == (("a", 12),)
    assert place.for_node("b").word == "latest"
    assert place.for_node("c").word == ""


def test_the_numbers_that_kafka_has_for_words_are_understood() -> None:
    place = OffsetSpec.parse('{"a": -1, "b": -2}', "x")
    assert (place.for_node("a").word, place.for_node("b").word) == ("latest", "earliest")


@pytest.mark.parametrize("text", ["yesterday", "{", '{"a": -3}', '{"a": 1.5}', '{"a": "soon"}', '{"a": true}'])
def test_what_is_no_place_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="startingOffsets"):
        OffsetSpec.parse(text, "startingOffsets")


def test_offsets_under_the_bare_name_of_a_node_stand_for_the_journal_it_has_when_it_is_seen_again() -> None:
    assert named_as_in({"a": 5, "b": 7}, ["a@j1", "c@j2"]) == {"a@j1": 5, "b": 7}
    assert ranges({"a": 5, "b": 7}, {"a@j1": 9, "b": 8}) == [Range("a@j1", 5, 9), Range("b", 7, 8)]


def test_a_journal_that_is_known_by_its_own_name_is_not_taken_for_another_of_its_node() -> None:
    assert named_as_in({"a@j1": 5}, ["a@j2"]) == {"a@j1": 5}
    # A bare name that is still in use is left alone, and nobody takes over what an identity is known for.
    assert named_as_in({"a": 5, "a@17": 2}, ["a", "a@17"]) == {"a": 5, "a@17": 2}
    assert ranges({"a@j1": 5}, {"a@j1": 5, "a@j2": 40}) == []


@given(
    OFFSETS,
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10**6)),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**9)),
    st.tuples(st.integers(1, 16), st.integers(1, 16), st.integers(1000, 10**6) | st.none(), st.integers(10**6, 10**9)),
)
def test_a_batch_is_cut_as_its_end_says_wherever_it_is_planned_again(
    start: dict[str, int], steps: dict[str, int], sizes: dict[str, int], wanted: tuple[int, int, int | None, int]
) -> None:
    end = {node: offset + steps.get(node, 0) for node, offset in start.items()}
    size, pieces = TaskSize(*wanted), ranges(start, end)
    noted = size.cut(pieces, sizes).noted_in(end)
    assert without_cut(noted) == end
    found = TaskCut.found_in(json.loads(json.dumps(noted)))
    assert found is not None
    dealt = packed(pieces, found)
    assert dealt == packed(pieces, size.cut(pieces, sizes))
    parts = sorted(part for parts in dealt for part in parts)
    assert sum(part.rows for part in parts) == sum(piece.rows for piece in pieces)
    for part in parts:
        assert part.rows <= (size.rows_max or part.rows)
        in_bytes = part.rows * sizes.get(part.node, 0) // (end[part.node] - start[part.node])
        assert in_bytes <= size.bytes_max + sizes.get(part.node, 0) // (end[part.node] - start[part.node])
    assert len(dealt) >= min(size.tasks_min, sum(part.rows for part in parts))


def test_a_batch_read_is_cut_alike_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, cuts = [Range("a", 0, 1_000_000), Range("b", 5, 70)], []
    for cores in (1, 64):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        sizes = [ReadOptions.parse({"nodes": "h:1"}, streaming=streaming).task_size for streaming in (False, True)]
        cuts.append([packed(pieces, size.cut(pieces, {})) for size in sizes])
    (one, of_one_core), (other, of_many) = cuts
    assert one == other
    assert len(one) == 11
    assert len(of_one_core) != len(of_many), "a stream notes how it was cut"


def test_offsets_of_an_earlier_release_have_no_cut() -> None:
    assert TaskCut.found_in({"a": 3}) is None


def test_instants_are_milliseconds_for_all_nodes_or_by_node() -> None:
    assert OffsetSpec.at_millisecond("1700000000123", "startingTimestamp").time_us == 1_700_000_000_123_000
    by_node = OffsetSpec.at_milliseconds('{"a": 5}', "startingOffsetsByTimestamp")
    assert by_node.for_node("a@j1", "a").time_us == 5_000
    assert by_node.for_node("b@j1", "b") == OffsetSpec()
    for text in ("soon", "-1", "1.5"):
        with pytest.raises(ConfigurationError, match=r"startingTimestamp: .* is no number of milliseconds"):
            OffsetSpec.at_millisecond(text, "startingTimestamp")
    with pytest.raises(ConfigurationError, match="is no JSON object"):
        OffsetSpec.at_milliseconds("[1]", "startingOffsetsByTimestamp")
