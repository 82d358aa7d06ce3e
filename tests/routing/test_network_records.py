"""What a hop reads of a message at QoS 0: runs of payloads of one size are told apart from others and lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.routing.message_frames import encode_loose, read_loose
from sterna.vocabulary.errors import LinkProtocolError

payloads_of_any_size = st.lists(st.binary(max_size=40), min_size=1, max_size=20)
payloads_of_one_size = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=20)
)


@given(st.lists(st.tuples(st.binary(max_size=20), payloads_of_any_size | payloads_of_one_size), max_size=5))
def test_every_payload_comes_back_in_order(sent: list[tuple[bytes, list[bytes]]]) -> None:
    body = b"head" + b"".join(encode_loose(topic, payloads, b"", 0.0, b"") for topic, payloads in sent)
    records = read_loose(body, 4)
    assert [(record.topic, record.payloads(body)) for record in records] == sent
    assert [record.count for record in records] == [len(payloads) for _, payloads in sent]
    assert b"head" + b"".join(body[record.start : record.stop] for record in records) == body


@given(payloads_of_one_size)
def test_payloads_of_one_size_are_a_run_with_one_length(payloads: list[bytes]) -> None:
    body = encode_loose(b"topic", payloads, b"", 0.0, b"")
    (record,) = read_loose(body, 0)
    assert record.is_plain
    assert record.size == len(payloads[0])
    assert len(body) == 5 + 5 + 4 + sum(map(len, payloads))


@given(payloads_of_one_size)
def test_a_run_with_more_than_payloads_is_not_plain_and_keeps_it(payloads: list[bytes]) -> None:
    body = encode_loose(b"topic", payloads, b"properties", 12.5, b"shares")
    (record,) = read_loose(body, 0)
    assert not record.is_plain
    assert (record.properties, record.shares, record.expires_at) == (b"properties", b"shares", 12.5)
    assert record.payloads(body) == payloads


@given(payloads_of_any_size | payloads_of_one_size, st.data())
def test_a_record_cut_off_anywhere_is_refused(payloads: list[bytes], data: st.DataObject) -> None:
    body = encode_loose(b"topic", payloads, b"", 0.0, b"")
    cut = body[: data.draw(st.integers(1, len(body) - 1), label="bytes left")]
    with pytest.raises(LinkProtocolError, match="cut off"):
        read_loose(cut, 0)
