"""Packets in the log: what they are, whatever pieces they come in; no payload, no password, nothing long."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.packets import (
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrel,
    Sent,
    Subscribe,
    Unsubscribe,
    Will,
)
from sterna.mqtt.packet_text import HEAD_BYTES
from sterna.mqtt.packets import encode_connack, encode_suback
from sterna.runtime.listeners.packet_log import PacketLog


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append({"event": record.getMessage(), **vars(record)})

    def take(self, *names: str) -> list[tuple[Any, ...]]:
        records, self.records = self.records, []
        return [tuple(record.get(name) for name in names) for record in records]


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    log = logging.getLogger("sterna.packets")
    handler = Kept()
    log.addHandler(handler)
    log.setLevel("DEBUG")
    yield handler
    log.removeHandler(handler)
    log.setLevel("NOTSET")


PACKETS: list[Sent] = [
    Connect("meter", True, 30, Will("will/topic", b"last words"), "alice", b"secret"),
    Publish("plant/1", b"payload " * 1000, 1, True, packet_id=7),
    Publish("plant/2", b"x"),
    Subscribe(3, [("plant/#", 1), ("else", 2)]),
    Unsubscribe(4, ["else"]),
    Puback(9),
    Pubrel(10),
    Pingreq(),
    Disconnect(),
]


@pytest.mark.parametrize("version", [4, 5])
@given(cuts=st.lists(st.integers(0, 9000), max_size=20))
def test_every_packet_is_named_whatever_pieces_it_comes_in(kept: Kept, version: int, cuts: list[int]) -> None:
    data = b"".join(packet.encode(version) for packet in PACKETS)
    packet_log = PacketLog("192.0.2.1:5")
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, stop in itertools.pairwise(places):
        packet_log.received.feed(data[start:stop])
    found = kept.take("event", "packet", "topic", "qos", "filters", "packet_id", "client", "address")
    assert [one[1] for one in found] == [
        "CONNECT", "PUBLISH", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "PUBACK", "PUBREL", "PINGREQ", "DISCONNECT",
    ]  # fmt: skip
    assert {one[0] for one in found} == {"packet received"}
    assert {one[6:] for one in found} == {("meter", "192.0.2.1:5")}
    assert found[1][2:6] == ("plant/1", 1, None, 7)
    assert found[2][2:6] == ("plant/2", 0, None, None)
    assert found[3][4:6] == ("plant/# at QoS 1, else at QoS 2", 3)
    assert found[4][4:6] == ("else", 4)


def test_what_is_sent_is_named_too(kept: Kept) -> None:
    packet_log = PacketLog("192.0.2.1:5")
    packet_log.version = 5
    packet_log.sent.feed(encode_connack(5, True, 0x87) + encode_suback(3, b"\x01\x87", 5))
    assert kept.take("event", "packet", "code", "codes", "session_present") == [
        ("packet sent", "CONNACK", "0x87", None, True),
        ("packet sent", "SUBACK", None, "0x01, 0x87", None),
    ]


def test_nothing_secret_and_nothing_long_is_shown(kept: Kept) -> None:
    packet_log = PacketLog("192.0.2.1:5")
    for packet in (*PACKETS, Publish("t" * 60_000, b"payload", 1, packet_id=1), Subscribe(1, [("f" * 9_000, 1)] * 9)):
        packet_log.received.feed(packet.encode(5))
    assert len(packet_log.received._begun) <= HEAD_BYTES
    records, kept.records = kept.records, []
    assert len(records) == len(PACKETS) + 2
    text = str(records)
    assert not any(word in text for word in ("secret", "alice", "payload", "last words"))
    assert max(len(str(record.get(name, ""))) for record in records for name in ("topic", "filters")) < 1100


@given(data=st.binary(max_size=3000))
def test_nonsense_harms_nobody(kept: Kept, data: bytes) -> None:
    packet_log = PacketLog("192.0.2.1:5")
    packet_log.received.feed(data)
    packet_log.sent.feed(data)
    assert len(packet_log.received._begun) <= max(HEAD_BYTES, 5)
    kept.records.clear()


def test_who_was_not_listened_to_is_not_shown_again(kept: Kept) -> None:
    """Else a payload could be taken for packets, and be shown as their topics."""
    log, packet_log = logging.getLogger("sterna.packets"), PacketLog("192.0.2.1:5")
    inner = Publish("secret", b"").encode(5)
    packet = Publish("plant/1", b"x" * 100 + inner * 20, 1, packet_id=7).encode(5)
    log.setLevel("INFO")
    packet_log.received.feed(packet[: -len(inner * 20)])
    log.setLevel("DEBUG")
    packet_log.received.feed(packet[-len(inner * 20) :])
    assert kept.take("topic") == []
