"""The findings of a restart, whatever the crash or the disk did to the bytes."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_making import SETTINGS, Replay, commit, content, filled, message

from sterna.journal.frames import HEADER_BYTES, SEGMENT_HEADER_BYTES, parse_header
from sterna.journal.group_encoding import FRAME_ROWS_MAX
from sterna.journal.journal import Journal
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.journal.store import BEGINNING, Position

SMALL_SEGMENTS = JournalSettings(segment_bytes=4096)
GROUP_BYTES = filled(groups=1)[1].segments()[0].size - SEGMENT_HEADER_BYTES


def whole(store: MemoryStore, serial: int = 1) -> bytes:
    return store.read(serial, 0, 10**9)


def overwrite(store: MemoryStore, serial: int, data: bytes) -> None:
    segment = store._segments[serial]
    segment.chunks, segment.starts, segment.size = [data], [0], len(data)


def flip(store: MemoryStore, serial: int, byte: int) -> None:
    data = bytearray(whole(store, serial))
    data[byte] ^= 0x10
    overwrite(store, serial, bytes(data))


def frame_starts(frames: bytes) -> list[int]:
    starts, start = [], 0
    while header := parse_header(frames[start:]):
        starts.append(start)
        start += HEADER_BYTES + header.length
    return starts


def test_everything_committed_is_replayed_in_order_events_of_a_group_first() -> None:
    journal, store = filled(groups=2, per_group=2)
    replay = Replay(store)
    assert [type(frame).__name__ for frame in replay.frames] == ["RecoveredEvents", "RecoveredMessages"] * 2
    assert (replay.offsets, replay.events) == ([0, 1, 2, 3], [b"event before 2", b"event before 4"])
    assert [frame.epoch for frame in replay.frames] == [1] * 4
    recovery = replay.recovery
    assert (recovery.next_offset, recovery.first_offset, recovery.position) == (4, 0, journal.position)
    assert (recovery.cuts, recovery.damage, recovery.last_epoch) == ([], [], 1)


def test_a_recovered_journal_reads_the_old_and_goes_on_behind_it() -> None:
    _, store = filled(groups=20, settings=SMALL_SEGMENTS)
    journal = Journal(store, SMALL_SEGMENTS, epoch=2, recovered=Replay(store).recovery)
    assert journal.append(message(60)) == 60
    commit(journal, store)
    for offset in range(61):
        expected = message(offset)
        expected.offset = offset
        assert content(journal.read(offset)) == content(expected)
    assert Replay(store).recovery.last_epoch == 2


def test_an_empty_store_recovers_to_nothing() -> None:
    replay = Replay(MemoryStore(SETTINGS))
    assert (replay.frames, replay.recovery.next_offset, replay.recovery.position) == ([], 0, BEGINNING)


def test_a_position_replays_what_was_committed_after_it_and_nothing_before() -> None:
    store = MemoryStore(SMALL_SEGMENTS)
    journal = Journal(store, SMALL_SEGMENTS, epoch=1)
    positions = []
    for _ in range(20):
        journal.append(message(journal.next_offset))
        journal.note(b"%d" % journal.next_offset)
        commit(journal, store)
        positions.append(journal.position)
    assert positions[-1].serial > 2
    for position in positions:
        replay = Replay(store, Position.parse(str(position)))
        assert replay.recovery.position == journal.position
        assert replay.offsets == list(range(position.offset, 20))
        assert len(replay.events) == 20 - position.offset
        assert replay.recovery.first_offset == 0
        assert (replay.recovery.since_is_gone, replay.recovery.behind_checkpoint) == (False, False)


def test_events_a_checkpoint_knows_are_not_replayed_and_only_those() -> None:
    store = MemoryStore(SETTINGS)
    journal = Journal(store, SETTINGS, epoch=1)
    for event in (b"1", b"2"):
        journal.note(event)
    commit(journal, store)
    for event in (b"3", b"4", b"5"):
        journal.note(event)
    journal.append(message(0))
    group = journal.close_group()
    assert group is not None
    at = store.write(group)
    journal.committed(group, at)
    journal.note(b"6")
    commit(journal, store)
    for known in range(5):
        replay = Replay(store, Position.parse(str(at._replace(offset=1, events=known))))
        assert replay.events == [b"3", b"4", b"5", b"6"][min(known, 3) :]
        assert replay.offsets == [0]
        assert replay.recovery.position == journal.position


def test_a_group_that_was_lost_takes_no_event_of_a_later_one_with_it() -> None:
    """The checkpoint knows three events of a group that was never synced; the next start writes other ones."""
    journal, store = filled(groups=2)
    since = journal.position._replace(events=3)
    reopened = Journal(store, SETTINGS, epoch=2, recovered=Replay(store, since).recovery)
    assert reopened.position.events == 0
    store.continue_after(since.serial)
    reopened.note(b"of the next start")
    commit(reopened, store)
    assert Replay(store, since).events == [b"of the next start"]


def test_known_events_that_rotted_do_not_shift_the_others() -> None:
    store = MemoryStore(SETTINGS)
    journal = Journal(store, SETTINGS, epoch=1)
    for number in range(FRAME_ROWS_MAX + 2):  # two frames
        journal.note(b"%d" % number)
    group = journal.close_group()
    assert group is not None
    at = store.write(group)
    journal.committed(group, at)
    flip(store, 1, at.byte + HEADER_BYTES)
    journal.note(b"later")
    commit(journal, store)
    replay = Replay(store, at._replace(events=FRAME_ROWS_MAX + 1))
    assert replay.events == [b"%d" % (FRAME_ROWS_MAX + 1), b"later"]
    assert len(replay.damage) == 1


def test_segments_before_the_position_are_indexed_by_their_headers_alone() -> None:
    journal, store = filled(groups=40, settings=SMALL_SEGMENTS)
    flip(store, 1, SEGMENT_HEADER_BYTES + HEADER_BYTES)
    replay = Replay(store, journal.position)
    assert (replay.frames, replay.damage) == ([], [])
    reopened = Journal(store, SMALL_SEGMENTS, epoch=2, recovered=replay.recovery)
    assert all(reopened.read(offset) is not None for offset in range(journal.next_offset))


def test_the_last_segment_is_checked_wholly_even_before_the_position() -> None:
    journal, store = filled(groups=3)
    flip(store, 1, SEGMENT_HEADER_BYTES + HEADER_BYTES)
    replay = Replay(store, journal.position)
    assert replay.frames == []
    assert [piece.what for piece in replay.damage] == ["a frame of 1 session events"]


def test_an_old_segment_cut_short_is_reported_even_before_the_position() -> None:
    journal, store = filled(groups=30, settings=SMALL_SEGMENTS)
    second = store.segments()[1]
    overwrite(store, 1, whole(store)[:-1])
    replay = Replay(store, journal.position)
    assert [piece[2:] for piece in replay.damage] == [
        (second.first_offset - 3, second.first_offset, "the rest of the segment")
    ]


def big_group() -> tuple[bytes, MemoryStore]:
    """Two small groups and one of two event frames and two message frames; the bytes of the last."""
    journal, store = filled(groups=2)
    for number in range(FRAME_ROWS_MAX + 2):
        journal.append(message(number, payload=b""))
        journal.note(b"event %d" % number)
    return commit(journal, store).data, store


def test_a_group_torn_at_any_byte_is_not_there_at_all() -> None:
    _, store = filled(groups=3)
    data = whole(store)
    sound = len(data) - GROUP_BYTES
    for kept in range(GROUP_BYTES):
        overwrite(store, 1, data[: sound + kept])
        replay = Replay(store)
        assert (replay.offsets, replay.damage) == (list(range(6)), []), kept
        assert replay.events == [b"event before 3", b"event before 6"], kept
        assert store.segments()[0].size == sound
        assert [cut[1:] for cut in replay.recovery.cuts] == ([(sound, kept)] if kept else [])
        again = Replay(store)
        assert (again.offsets, again.events, again.recovery.cuts) == (replay.offsets, replay.events, []), kept


def test_a_group_of_many_frames_torn_at_or_inside_any_frame_is_not_there_at_all() -> None:
    group, store = big_group()
    data = whole(store)
    sound = len(data) - len(group)
    frames = frame_starts(group)
    assert len(frames) == 4
    for kept in sorted({place for start in frames for place in (start, start + 1, start + HEADER_BYTES + 9)} - {0}):
        overwrite(store, 1, data[: sound + kept])
        replay = Replay(store)
        assert (replay.offsets, len(replay.events), replay.damage) == (list(range(6)), 2, []), kept
        assert [cut[1:] for cut in replay.recovery.cuts] == [(sound, kept)]
        reopened = Journal(store, SETTINGS, epoch=2, recovered=replay.recovery)
        assert (reopened.next_offset, reopened.read(6)) == (6, None)


def test_a_last_group_with_a_hole_in_any_frame_was_never_whole() -> None:
    group, store = big_group()
    data = whole(store)
    sound = len(data) - len(group)
    for start in frame_starts(group):
        overwrite(store, 1, data)
        flip(store, 1, sound + start + HEADER_BYTES + 9)
        replay = Replay(store)
        assert (replay.offsets, len(replay.events), replay.damage) == (list(range(6)), 2, [])
        assert [cut[1:] for cut in replay.recovery.cuts] == [(sound, len(group))]


def test_rot_inside_a_group_that_was_whole_costs_its_frame_and_leaves_the_others() -> None:
    group, store = big_group()
    sound = len(whole(store)) - len(group)
    journal = Journal(store, SETTINGS, epoch=1, recovered=Replay(store).recovery)
    journal.append(message(journal.next_offset))
    commit(journal, store)
    first_messages = frame_starts(group)[2]
    flip(store, 1, sound + first_messages + HEADER_BYTES + 9)
    replay = Replay(store)
    end = 6 + FRAME_ROWS_MAX
    assert replay.offsets == [*range(6), *range(end, end + 3)]
    assert len(replay.events) == 2 + FRAME_ROWS_MAX + 2
    assert [piece[1:4] for piece in replay.damage] == [(sound + first_messages, 6, end)]
    assert replay.recovery.cuts == []


def test_an_old_segment_that_stops_between_two_frames_of_a_group_keeps_the_first_and_says_what_is_missing() -> None:
    _, store = filled(groups=30, settings=SMALL_SEGMENTS)
    data, second = whole(store), store.segments()[1]
    last_group = frame_starts(data[SEGMENT_HEADER_BYTES:])[-2:]
    overwrite(store, 1, data[: SEGMENT_HEADER_BYTES + last_group[1]])
    replay = Replay(store)
    assert len(replay.events) == 30
    assert [piece[1:4] for piece in replay.damage] == [
        (SEGMENT_HEADER_BYTES + last_group[1], second.first_offset - 3, second.first_offset)
    ]
    assert set(range(90)) - set(replay.offsets) == set(range(second.first_offset - 3, second.first_offset))


@pytest.mark.parametrize("kept", [0, 1, SEGMENT_HEADER_BYTES - 1, SEGMENT_HEADER_BYTES + 10])
def test_a_segment_torn_while_it_was_begun_is_cut(kept: int) -> None:
    _, store = filled(groups=20, settings=SMALL_SEGMENTS)
    last = store.segments()[-1]
    overwrite(store, last.serial, whole(store, last.serial)[:kept])
    replay = Replay(store)
    assert replay.offsets == list(range(last.first_offset))
    assert replay.recovery.next_offset == last.first_offset
    assert (replay.damage, len(replay.recovery.cuts)) == ([], 1)
    assert (last.serial in [file.serial for file in store.segments()]) == (kept > SEGMENT_HEADER_BYTES)


def test_zeroes_behind_the_last_group_are_a_torn_tail() -> None:
    _, store = filled(groups=2)
    data = whole(store)
    overwrite(store, 1, data + bytes(5000))
    replay = Replay(store)
    assert replay.offsets == list(range(6))
    assert [cut.bytes_cut for cut in replay.recovery.cuts] == [5000]


def test_a_write_whose_beginning_never_reached_the_disk_is_torn_though_its_end_did() -> None:
    journal, store = filled(groups=2)
    start = journal.position.byte - GROUP_BYTES
    flip(store, 1, start + HEADER_BYTES)
    replay = Replay(store)
    assert (replay.offsets, replay.events, replay.damage) == ([0, 1, 2], [b"event before 3"], [])
    assert [cut[1:] for cut in replay.recovery.cuts] == [(start, GROUP_BYTES)]


@pytest.mark.parametrize("groups", [3, 30])
def test_a_rotten_body_costs_its_own_frame_in_the_last_segment_and_in_earlier_ones(groups: int) -> None:
    journal, store = filled(groups=groups, settings=SMALL_SEGMENTS)
    place = journal._index.find(0)
    assert place is not None
    flip(store, 1, place.start + HEADER_BYTES + 100)
    replay = Replay(store)
    assert replay.offsets == list(range(3, 3 * groups))
    assert len(replay.events) == groups
    assert [piece[1:4] for piece in replay.damage] == [(place.start, 0, 3)]
    assert replay.recovery.cuts == []
    reopened = Journal(store, SMALL_SEGMENTS, epoch=2, recovered=replay.recovery)
    assert (reopened.read(1), reopened.statistics().lost_messages) == (None, 3)


def test_a_rotten_frame_header_costs_its_own_frame_and_says_which_offsets() -> None:
    _, store = filled(groups=30, settings=SMALL_SEGMENTS)
    events, messages = frame_starts(whole(store)[SEGMENT_HEADER_BYTES:])[:2]
    flip(store, 1, SEGMENT_HEADER_BYTES + messages)
    replay = Replay(store)
    assert (replay.offsets, len(replay.events)) == (list(range(3, 90)), 30)
    assert [piece[1:4] for piece in replay.damage] == [(SEGMENT_HEADER_BYTES + messages, 0, 3)]
    flip(store, 1, SEGMENT_HEADER_BYTES + events)
    replay = Replay(store)
    assert (replay.offsets, len(replay.events)) == (list(range(3, 90)), 29)
    assert [piece[2:4] for piece in replay.damage] == [(0, 3)]


@cache
def many_groups(settings: JournalSettings) -> tuple[MemoryStore, list[tuple[int, int, int, range]], Replay]:
    """A journal, some of whose payloads are frames of a journal, and its groups: serial, first byte, end, offsets.

    For everybody: whoever changes it takes a copy.
    """
    store = MemoryStore(settings, "node-1")
    journal = Journal(store, settings, epoch=1)
    groups = []
    for number in range(14):
        for _ in range(number % 4):
            payload = whole(store)[SEGMENT_HEADER_BYTES:] if number in (3, 7) else None
            journal.append(message(journal.next_offset, payload))
        if number % 4 == 0 or number % 3:
            journal.note(b"event of group %d" % number)
        group = journal.close_group()
        assert group is not None
        at = store.write(group)
        journal.committed(group, at)
        groups.append((at.serial, at.byte, at.byte + len(group.data), range(group.base_offset, group.end_offset)))
    return store, groups, Replay(store)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_changed_byte_anywhere_costs_only_the_group_it_lies_in_and_what_is_missing_is_reported(
    data: st.DataObject,
) -> None:
    store, groups, everything = many_groups(data.draw(st.sampled_from([SETTINGS, SMALL_SEGMENTS])))
    store = deepcopy(store)
    file = data.draw(st.sampled_from(store.segments()))
    # Half of them in a header: bodies are so much longer.
    starts = [SEGMENT_HEADER_BYTES + one for one in frame_starts(whole(store, file.serial)[SEGMENT_HEADER_BYTES:])]
    in_header = st.builds(int.__add__, st.sampled_from(starts), st.integers(0, HEADER_BYTES - 1))
    byte = data.draw(st.one_of(in_header, st.integers(0, file.size - 1)))
    rotten = bytearray(whole(store, file.serial))
    rotten[byte] ^= data.draw(st.one_of(st.sampled_from([1 << bit for bit in range(8)]), st.integers(1, 255)))
    overwrite(store, file.serial, bytes(rotten))
    replay = Replay(store)
    hit = [group for group in groups if group[0] == file.serial and group[1] <= byte < group[2]]
    missing = set(everything.offsets) - set(replay.offsets)
    reported = {offset for piece in replay.damage for offset in range(piece.first_offset, piece.stop_offset)}
    assert missing <= {offset for group in hit for offset in group[3]}
    assert len(everything.events) - len(replay.events) <= 1
    if hit == groups[-1:]:  # nothing tells it from a group that a crash tore
        assert (missing, reported) == (set(hit[0][3]), set())
        assert [cut.byte for cut in replay.recovery.cuts] == [hit[0][1]]
    else:
        assert (reported, replay.recovery.cuts) == (missing, [])
        assert replay.damage
    assert replay.offsets == sorted(replay.offsets)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 600))
def test_destroyed_bytes_cost_the_groups_they_lie_in(where: int, length: int) -> None:
    store, groups, everything = many_groups(SETTINGS)
    store = deepcopy(store)
    data = whole(store)
    start = SEGMENT_HEADER_BYTES + where % (groups[-2][2] - length - SEGMENT_HEADER_BYTES)
    overwrite(store, 1, data[:start] + bytes(length) + data[start + length :])
    replay = Replay(store)
    missing = set(everything.offsets) - set(replay.offsets)
    reported = {offset for piece in replay.damage for offset in range(piece.first_offset, piece.stop_offset)}
    hit = [group for group in groups if group[1] < start + length and start < group[2]]
    assert missing <= {offset for group in hit for offset in group[3]}
    assert (reported, replay.recovery.cuts) == (missing, [])


def test_a_rotten_segment_header_costs_nothing_but_is_told() -> None:
    _, store = filled(groups=2)
    flip(store, 1, 3)
    replay = Replay(store)
    assert replay.offsets == list(range(6))
    assert [(piece.byte, piece.what) for piece in replay.damage] == [(0, "the segment's header (its frames are whole)")]


def test_a_segment_that_vanished_is_reported() -> None:
    _, store = filled(groups=30, settings=SMALL_SEGMENTS)
    second, third = store.segments()[1:3]
    store.drop(second.serial)
    replay = Replay(store)
    assert [piece[2:4] for piece in replay.damage] == [(second.first_offset, third.first_offset)]
    assert set(range(90)) - set(replay.offsets) == set(range(second.first_offset, third.first_offset))


def test_a_position_whose_segment_was_trimmed_starts_at_the_oldest_and_says_so() -> None:
    _, store = filled(groups=30, settings=SMALL_SEGMENTS)
    second = store.segments()[1]
    store.drop(1)
    replay = Replay(store, Position(1, SEGMENT_HEADER_BYTES, 0))
    assert replay.recovery.since_is_gone
    assert replay.offsets[0] == second.first_offset
    assert [piece[2:4] for piece in replay.damage] == [(0, second.first_offset)]


def test_a_checkpoint_that_outlived_the_journal_keeps_offsets_and_positions_from_coming_twice() -> None:
    store = MemoryStore(SETTINGS)
    since = Position(4, 9000, 120)
    recovery = Replay(store, since).recovery
    assert recovery.behind_checkpoint
    assert recovery.since_is_gone
    journal = Journal(store, SETTINGS, epoch=5, recovered=recovery)
    assert journal.append(message(0)) == 120
    commit(journal, store)
    assert journal.position > since
    assert Replay(store, since).offsets == [120]


def test_a_tail_lost_from_under_a_checkpoint_does_not_hide_what_is_written_next() -> None:
    journal, store = filled(groups=3)
    since = journal.position
    overwrite(store, 1, whole(store)[:-GROUP_BYTES])
    recovery = Replay(store, since).recovery
    assert recovery.behind_checkpoint
    assert recovery.next_offset == 9
    journal = Journal(store, SETTINGS, epoch=2, recovered=recovery)
    journal.append(message(9))
    commit(journal, store)
    assert Replay(store, since).offsets == [9]


def test_offsets_a_checkpoint_may_have_seen_are_not_given_again_though_they_were_never_committed() -> None:
    journal, store = filled(groups=1)
    journal.append(message(3))
    refused = journal.close_group()
    assert refused is not None
    journal.append(message(4))
    journal.failed(refused)
    checkpoint = journal.position
    recovery = Replay(store, checkpoint).recovery
    assert (recovery.next_offset, recovery.behind_checkpoint, recovery.damage) == (5, False, [])
    reopened = Journal(store, SETTINGS, epoch=2, recovered=recovery)
    assert [reopened.read(3), reopened.read(4), reopened.append(message(5))] == [None, None, 5]
    commit(reopened, store)
    assert Replay(store, checkpoint).offsets == [5]


def test_a_journal_refuses_a_recovery_that_was_not_finished() -> None:
    _, store = filled(groups=2)
    replay = Replay(store)
    replay.recovery.complete = False
    with pytest.raises(AssertionError, match="to its end"):
        Journal(store, SETTINGS, epoch=2, recovered=replay.recovery)
