"""What the journal writes and reads by itself, held against Arrow's own library, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_making import content

from sterna.journal.columns import OWN_SCHEMA, SCHEMA, read_batch
from sterna.journal.record_batch import MessageRows, encode_messages, to_microseconds
from sterna.mqtt.message import Message
from sterna.vocabulary.errors import JournalCorrupt
from sterna.vocabulary.identity import Identity

instants = st.integers(0, 4_000_000_000_000_000).map(lambda us: us / 1e6)
identities = st.builds(Identity, st.text(max_size=8), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


@st.composite
def some_messages(draw: st.DrawFn) -> list[Message]:
    own = draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(1, 12))):
        made = Message(
            draw(st.binary(max_size=9)),
            draw(st.binary(max_size=40)),
            draw(st.integers(0, 2)),
            draw(st.booleans()),
            draw(st.sampled_from([b"", b"", b"\x01\x01"])),
            draw(st.one_of(st.just(0.0), instants)),
            draw(st.sampled_from([b"", b"client"])),
            draw(instants),
        )
        if not own:
            made.identity = draw(st.one_of(st.none(), identities))
            made.shares = draw(st.sampled_from([b"", b"", b"decided"]))
        found.append(made)
    return found


def by_arrow(messages: Sequence[Message]) -> tuple[Any, bool]:
    """The same record batch, made by Arrow."""
    rows: list[dict[str, Any]] = [
        {
            "topic": m.topic,
            "payload": m.payload,
            "qos": m.qos,
            "retain": m.retain,
            "publisher": m.publisher,
            "received_at": to_microseconds(m.received_at),
            "expires_at": to_microseconds(m.expires_at) if m.expires_at else None,
            "properties": m.properties,
            "origin": None if m.identity is None else m.identity.origin.encode(),
            "epoch": None if m.identity is None else m.identity.epoch,
            "sequence": None if m.identity is None else m.identity.sequence,
            "shares": m.shares or None,
        }
        for m in messages
    ]
    is_own = all(m.identity is None and not m.shares for m in messages)
    schema = OWN_SCHEMA if is_own else SCHEMA
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema), not is_own


@given(some_messages())
def test_arrow_reads_our_bytes_as_its_own(messages: list[Message]) -> None:
    body, from_elsewhere = encode_messages(messages)
    expected, expected_elsewhere = by_arrow(messages)
    assert from_elsewhere is expected_elsewhere
    found = read_batch(body, from_elsewhere=from_elsewhere)
    found.validate(full=True)
    assert found.equals(expected)
    assert len(body) == len(expected.serialize())


@given(some_messages())
def test_we_read_arrows_bytes_as_our_own(messages: list[Message]) -> None:
    batch, from_elsewhere = by_arrow(messages)
    for body in (bytes(batch.serialize()), encode_messages(messages)[0]):
        rows = MessageRows(body, 7, from_elsewhere=from_elsewhere)
        assert rows.end == 7 + len(messages)
        for offset, one in enumerate(messages, 7):
            one.offset = offset
            assert content(rows.message(offset)) == content(one)


def test_a_slice_of_a_batch_that_arrow_wrote_is_read() -> None:
    messages = [Message(b"t%d" % n, b"p" * n, 1, n % 3 == 0, expires_at=float(n % 2)) for n in range(100)]
    batch, _ = by_arrow(messages)
    rows = MessageRows(bytes(batch.slice(13, 50).serialize()), 0, from_elsewhere=False)
    for offset in range(50):
        expected = messages[13 + offset]
        expected.offset = offset
        assert content(rows.message(offset)) == content(expected)


@settings(max_examples=200)
@given(some_messages(), st.data())
def test_bytes_that_are_no_batch_are_refused_or_read_within_their_bounds(messages: list[Message], data: Any) -> None:
    body, from_elsewhere = encode_messages(messages)
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, 600))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.sampled_from([len(body), 20, 60, 400]))])
    try:
        rows = MessageRows(cut, 0, from_elsewhere=from_elsewhere)
    except JournalCorrupt:
        return
    assert rows.end <= len(cut)


def test_nothing_at_all_is_no_batch() -> None:
    with pytest.raises(JournalCorrupt, match="has no sense"):
        MessageRows(b"", 0, from_elsewhere=False)
