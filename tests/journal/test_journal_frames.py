"""The bytes of a frame: what goes in comes out, and nothing else is taken for a frame."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_making import content, message

from sterna.journal.columns import OWN_SCHEMA
from sterna.journal.frames import (
    HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    STARTS_GROUP,
    body_is_intact,
    event_frame,
    message_frame,
    parse_header,
    parse_segment_header,
    read_events,
    segment_header,
)
from sterna.journal.group_encoding import FRAME_BYTES_MAX, FRAME_ROWS_MAX, encode_group
from sterna.journal.record_batch import MessageRows
from sterna.mqtt.message import Message
from sterna.vocabulary import versions
from sterna.vocabulary.errors import JournalError
from sterna.vocabulary.identity import Identity
from sterna.vocabulary.versions import Versions

# Whole microseconds: that is what the journal keeps.
instants = st.integers(0, 4_000_000_000_000_000).map(lambda us: us / 1e6)
messages = st.builds(
    Message,
    topic=st.binary(max_size=20),
    payload=st.binary(max_size=60),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.binary(max_size=10),
    expires_at=st.one_of(st.just(0.0), instants),
    publisher=st.binary(max_size=10),
    received_at=instants,
)


@given(st.lists(messages, min_size=1, max_size=20), st.integers(0, 2**60), st.integers(0, 2**32 - 1))
def test_messages_come_back_as_they_went_in(some: list[Message], base: int, epoch: int) -> None:
    head, body = message_frame(some, base, epoch, STARTS_GROUP)
    header = parse_header(head)
    assert header is not None
    assert (header.epoch, header.items, header.base, header.end_offset) == (epoch, len(some), base, base + len(some))
    rows = MessageRows(body, base, from_elsewhere=False)
    for number, one in enumerate(some):
        one.offset = base + number
        assert content(rows.message(one.offset)) == content(one)


def test_where_a_message_entered_and_who_is_to_have_it_come_back() -> None:
    own, foreign = message(0), message(1)
    foreign.identity = Identity("there", 3, 70)
    own.shares = b"decided"
    head, body = message_frame([own, foreign], 5, 1, 0)
    header = parse_header(head)
    assert header is not None
    assert header.from_elsewhere
    rows = MessageRows(body, 5, from_elsewhere=True)
    assert [(rows.message(at).identity, rows.message(at).shares) for at in (5, 6)] == [
        (None, b"decided"),
        (Identity("there", 3, 70), b""),
    ]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20))
def test_events_come_back_as_they_went_in(events: list[bytes]) -> None:
    head, body = event_frame(events, 7, 1, 0)
    header = parse_header(head)
    assert header is not None
    assert header.end_offset == 7
    assert body_is_intact(header, body)
    assert read_events(header, body) == events


def test_a_body_is_plain_arrow_to_anyone_who_knows_the_schema() -> None:
    _, body = message_frame([message(0), message(1)], 0, 1, 0)
    batch = pa.ipc.read_record_batch(body, OWN_SCHEMA)
    batch.validate(full=True)
    assert batch.column("payload").to_pylist() == [b"payload 0", b"payload 1"]
    assert batch.column("qos").to_pylist() == [1, 2]
    assert batch.column("retain").to_pylist() == [True, False]
    assert batch.column("expires_at").null_count == 1
    assert batch.column("received_at")[1].as_py().timestamp() == 1_700_000_001.5


def test_a_header_with_one_flipped_bit_is_no_header() -> None:
    head = bytearray(message_frame([message(0)], 5, 1, 0)[0])
    for bit in range(8 * HEADER_BYTES):
        head[bit // 8] ^= 1 << bit % 8
        assert parse_header(bytes(head)) is None
        head[bit // 8] ^= 1 << bit % 8
    assert parse_header(bytes(head)) is not None


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_arbitrary_bytes_are_no_header(data: bytes) -> None:
    assert parse_header(data) is None


def test_a_segment_header_names_its_node_and_does_not_survive_a_flip() -> None:
    header = segment_header("nöde-1", 3)
    assert len(header) == SEGMENT_HEADER_BYTES
    assert parse_segment_header(header, "a file") == "nöde-1"
    for byte in range(SEGMENT_HEADER_BYTES):
        assert parse_segment_header(header[:byte] + bytes([header[byte] ^ 4]) + header[byte + 1 :], "a file") is None


def test_a_format_of_the_future_is_refused_and_that_of_the_release_before_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, next_ones = versions.JOURNAL.newest, Versions(versions.JOURNAL.newest, versions.JOURNAL.newest + 1)
    header = segment_header("node-1", 1)
    monkeypatch.setattr("sterna.vocabulary.versions.JOURNAL", next_ones)
    assert parse_segment_header(header, "seg.sterna") == "node-1"
    newer = segment_header("node-1", 2)
    monkeypatch.undo()
    with pytest.raises(
        JournalError, match=rf"seg\.sterna is of version {ours + 1}, this release understands {ours}; a"
    ):
        parse_segment_header(newer, "seg.sterna")


@pytest.mark.parametrize(
    ("payload_bytes", "count", "frames"),
    [(0, FRAME_ROWS_MAX, 1), (0, FRAME_ROWS_MAX + 1, 2), (FRAME_BYTES_MAX // 2, 5, 5), (2 * FRAME_BYTES_MAX, 2, 2)],
)
def test_a_big_group_is_split_into_frames_that_are_cheap_to_read(payload_bytes: int, count: int, frames: int) -> None:
    payload = bytes(payload_bytes)
    some = [Message(b"t", payload) for _ in range(count)]
    group = encode_group(some, [b"event"], base=10, epoch=1, weight=count * (payload_bytes + 256))
    assert len(group.frames) == frames
    found: list[int] = []
    for base, start in group.frames:
        header = parse_header(group.data[start:])
        assert header is not None
        assert (header.base, header.starts_group) == (base, False)
        found += range(header.base, header.end_offset)
    assert found == list(range(10, 10 + count))
