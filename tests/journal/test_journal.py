"""A journal as its node uses it: append, commit, read back, trim."""

from __future__ import annotations

from typing import Any

import pytest
from journal_making import SETTINGS, Replay, commit, content, filled, message

from sterna.journal.audit_records import DeliveryRecord, SessionRecord
from sterna.journal.frames import HEADER_BYTES
from sterna.journal.group_encoding import FRAME_ROWS_MAX
from sterna.journal.journal import BASE_OFFSET_KEY, EPOCH_KEY, Journal
from sterna.journal.memory_store import MemoryStore
from sterna.journal.settings import JournalSettings
from sterna.journal.store import Position
from sterna.vocabulary.errors import JournalError

SMALL_SEGMENTS = JournalSettings(segment_bytes=4096, retention_bytes=20_000, retention_age_s=1000.0)
IN_MEMORY = JournalSettings(durability="memory")


def without_tail(journal: Journal) -> Journal:
    """The same journal with nothing cached, so that reads go to the store."""
    journal._tail.clear()
    journal._tail_base = journal.next_offset
    journal._settled.clear()
    return journal


def ranges(batches: list[Any]) -> list[tuple[int, int]]:
    firsts = [int(batch.schema.metadata[BASE_OFFSET_KEY]) for batch in batches]
    return [(first, first + batch.num_rows) for first, batch in zip(firsts, batches, strict=True)]


def test_offsets_are_dense_and_told_to_the_message() -> None:
    journal = Journal(MemoryStore(SETTINGS), SETTINGS, epoch=1, next_offset=40)
    first, second = message(0), message(1)
    assert (journal.append(first), journal.append(second)) == (40, 41)
    assert (first.offset, second.offset, journal.next_offset) == (40, 41, 42)


def test_a_message_can_be_read_before_during_and_after_its_commit() -> None:
    store = MemoryStore(SETTINGS)
    journal = Journal(store, SETTINGS, epoch=1, tail_messages=0)
    journal.append(message(0))
    seen = [content(journal.read(0))]
    group = journal.close_group()
    assert group is not None
    journal.append(message(1))
    seen.append(content(journal.read(0)))
    journal.committed(group, store.write(group))
    seen.append(content(journal.read(0)))
    expected = message(0)
    expected.offset = 0
    assert seen == [content(expected)] * 3
    assert journal.read(1) is not None


def test_nothing_pending_makes_no_group() -> None:
    journal = Journal(MemoryStore(SETTINGS), SETTINGS, epoch=1)
    assert (journal.pending, journal.close_group()) == (False, None)
    journal.note(b"event")
    assert journal.pending
    assert journal.close_group() is not None
    assert not journal.pending


def test_reads_behind_the_tail_come_from_the_store_across_segments() -> None:
    journal, store = filled(groups=40, settings=SMALL_SEGMENTS)
    assert len(store.segments()) > 5
    without_tail(journal)
    for offset in range(journal.next_offset):
        expected = message(offset)
        expected.offset = offset
        assert content(journal.read(offset)) == content(expected)
    assert journal.read(journal.next_offset) is None
    assert journal.read(-1) is None


def test_the_tail_keeps_to_its_bounds_and_never_lets_go_of_what_is_not_yet_written() -> None:
    store = MemoryStore(SETTINGS)
    journal = Journal(store, SETTINGS, epoch=1, tail_messages=10, tail_bytes=5000)
    for _ in range(10):
        for _ in range(4):
            journal.append(message(journal.next_offset))
        commit(journal, store)
        assert len(journal._tail) <= 10
    for _ in range(3):
        journal.append(message(0, payload=bytes(4000)))
        commit(journal, store)
        assert journal._settled_bytes <= 5000
    for _ in range(50):
        journal.append(message(journal.next_offset))
    group = journal.close_group()
    assert group is not None
    assert len(journal._tail) >= 50
    assert all(journal.read(offset) is not None for offset in range(journal.next_offset))


def test_a_failed_group_reads_as_nothing_and_its_offsets_are_not_reused() -> None:
    store = MemoryStore(SETTINGS)
    journal = Journal(store, SETTINGS, epoch=1)
    journal.append(message(0))
    commit(journal, store)
    journal.append(message(1))
    refused = journal.close_group()
    assert refused is not None
    journal.append(message(2))
    journal.failed(refused)
    commit(journal, store)
    found = [journal.read(offset) for offset in range(3)]
    assert [one and one.offset for one in found] == [0, None, 2]
    assert ranges(list(journal.read_range(0, 3))) == [(0, 1), (2, 3)]
    assert without_tail(journal).read(1) is None
    assert Replay(store).offsets == [0, 2]


def test_a_range_is_whole_frames_cut_to_what_was_asked() -> None:
    journal, _ = filled(groups=4, per_group=5, settings=SMALL_SEGMENTS)
    batches = list(journal.read_range(3, 17))
    assert ranges(batches) == [(3, 5), (5, 10), (10, 15), (15, 17)]
    assert [batch.schema.metadata[EPOCH_KEY] for batch in batches] == [b"1"] * 4
    payloads = [value for batch in batches for value in batch.column("payload").to_pylist()]
    assert payloads == [b"payload %d" % number for number in range(3, 17)]
    assert list(journal.read_range(20, 30)) == []


def test_a_range_survives_a_trim_in_its_middle() -> None:
    journal, _ = filled(groups=60, settings=SMALL_SEGMENTS)
    reader = journal.read_range(0, journal.next_offset)
    first = [next(reader)]
    trimmed_to = journal.enforce_retention(now=0.0)
    assert trimmed_to > 3
    rest = ranges(list(reader))
    assert ranges(first) == [(0, 3)]
    assert (rest[0][0], rest[-1][1]) == (trimmed_to, journal.next_offset)


def test_retention_by_size_drops_the_oldest_segments_and_says_what_is_left() -> None:
    journal, store = filled(groups=60, settings=SMALL_SEGMENTS)
    assert journal.statistics().bytes > 20_000
    first = journal.enforce_retention(now=0.0)
    statistics = journal.statistics()
    assert statistics.bytes <= 20_000
    assert statistics.bytes == sum(file.size for file in store.segments())
    assert first == journal.first_offset == store.segments()[0].first_offset > 0
    assert journal.read(first - 1) is None
    assert journal.read(first) is not None
    assert ranges(list(journal.read_range(0, 10**9)))[0][0] == first


def test_retention_by_age_counts_from_the_newest_message_of_a_segment_and_spares_the_active_one() -> None:
    journal, store = filled(groups=40, settings=JournalSettings(segment_bytes=4096, retention_age_s=1000.0))
    newest_of_first = journal._index.segments[1].first_offset - 1 + 1_700_000_000.5
    assert journal.enforce_retention(now=newest_of_first + 1000.0) == 0
    assert journal.enforce_retention(now=newest_of_first + 1000.1) == newest_of_first - 1_700_000_000.5 + 1
    journal.enforce_retention(now=2e9)
    assert len(store.segments()) == 1


@pytest.mark.parametrize("is_recovered", [False, True])
def test_records_keep_a_segment_without_messages_as_long_as_messages_would(is_recovered: bool) -> None:
    settings = JournalSettings(segment_bytes=4096, retention_age_s=1000.0)
    store = MemoryStore(settings)
    journal = Journal(store, settings, epoch=1)
    for number in range(40):
        journal.record_session(SessionRecord("opened", 1000.0 + number, b"client %d" % number))
        journal.record_delivery(DeliveryRecord(1000.0 + number, b"client", 1, None, "a", 1, number, 1))
        assert journal.let_records_be_written()
        commit(journal, store)
    if is_recovered:
        journal = Journal(store, settings, epoch=2, recovered=Replay(store).recovery)
    segments = len(store.segments())
    assert segments > 2
    journal.enforce_retention(now=2000.0)
    assert len(store.segments()) == segments
    journal.enforce_retention(now=2100.0)
    assert len(store.segments()) == 1


def test_retention_keeps_what_the_next_recovery_will_replay() -> None:
    journal, store = filled(groups=60, settings=SMALL_SEGMENTS)
    third = store.segments()[2]
    checkpoint = Position(third.serial, 256, third.first_offset)
    assert journal.enforce_retention(now=2e9, checkpoint=checkpoint) == third.first_offset
    replay = Replay(store, checkpoint)
    assert not replay.recovery.since_is_gone
    assert replay.offsets == list(range(third.first_offset, journal.next_offset))


def test_a_frame_that_rots_under_a_running_journal_is_lost_once_and_reported() -> None:
    journal, store = filled(groups=3)
    without_tail(journal)
    segment = store._segments[1]
    place = journal._index.find(3)
    assert place is not None
    rotten = bytearray(segment.chunks[2])
    rotten[-1] ^= 1
    segment.chunks[2] = bytes(rotten)
    assert [journal.read(offset) is None for offset in range(9)] == [False] * 3 + [True] * 3 + [False] * 3
    assert ranges(list(journal.read_range(0, 9))) == [(0, 3), (6, 9)]
    assert [(piece.byte, piece.first_offset, piece.stop_offset) for piece in journal.damage] == [(place.start, 3, 6)]
    assert journal.statistics().lost_messages == 3


def test_a_store_that_cannot_be_read_loses_the_message_not_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, store = filled(groups=1)
    without_tail(journal)

    def refuse(serial: int, start: int, length: int) -> bytes:
        raise JournalError("segment 1: Input/output error")

    monkeypatch.setattr(store, "read", refuse)
    assert journal.read(1) is None
    assert "Input/output error" in journal.damage[0].what


def test_in_memory_events_are_dropped_and_encoding_waits_for_a_full_frame() -> None:
    store = MemoryStore(IN_MEMORY)
    journal = Journal(store, IN_MEMORY, epoch=1, tail_messages=100)
    journal.note(b"event")
    for _ in range(FRAME_ROWS_MAX - 1):
        journal.append(message(journal.next_offset))
    assert not journal.pending
    assert ranges(list(journal.read_range(5, 8))) == [(5, 8)]
    assert ranges(list(journal.read_range(0, 10**9))) == [(0, FRAME_ROWS_MAX - 1)]
    journal.append(message(journal.next_offset))
    group = commit(journal, store)
    journal.append(message(journal.next_offset))
    assert (len(group.frames), group.frames[0][1]) == (1, 0)
    assert len(journal._tail) == 1
    assert all(journal.read(offset) is not None for offset in range(FRAME_ROWS_MAX + 1))
    assert ranges(list(journal.read_range(FRAME_ROWS_MAX - 1, 10**9))) == [
        (FRAME_ROWS_MAX - 1, FRAME_ROWS_MAX),
        (FRAME_ROWS_MAX, FRAME_ROWS_MAX + 1),
    ]


def test_old_frames_are_cached_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sterna.journal.journal._FRAME_CACHE_BYTES", 4000)
    journal, store = filled(groups=20)
    without_tail(journal)
    for offset in range(journal.next_offset):
        journal.read(offset)
        assert 0 < journal._frames._bytes <= 4000
    reads: list[int] = []
    read = store.read

    def noted_read(serial: int, start: int, length: int) -> bytes:
        reads.append(start)
        return read(serial, start, length)

    monkeypatch.setattr(store, "read", noted_read)
    for _ in range(5):
        assert journal.read(journal.next_offset - 1) is not None
    assert reads == []
    assert journal.read(0) is not None
    assert len(reads) == 2
    assert reads[1] == reads[0] + HEADER_BYTES


def test_positions_travel_as_text_and_compare_in_the_order_of_writing() -> None:
    journal, store = filled(groups=2)
    before = journal.position
    journal.append(message(6))
    commit(journal, store)
    assert before < journal.position
    assert Position.parse(str(journal.position)) == journal.position
    with pytest.raises(JournalError, match="not a position"):
        Position.parse("1:two")
