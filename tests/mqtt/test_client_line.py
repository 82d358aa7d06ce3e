"""The small client, held against the real broker."""

from __future__ import annotations

import pytest

from broker.lone_node import LoneNode
from sterna.mqtt.client_line import (
    ClientLine,
    ConnectAccepted,
    ConnectRefused,
    Denied,
    Event,
    PublishReceived,
    Subscribed,
)
from sterna.vocabulary.errors import ProtocolError


class Joined:
    def __init__(self, node: LoneNode, name: str) -> None:
        self.line = ClientLine(name, keep_alive_s=10, packet_bytes=10_000, user=None, password=None)
        self.node = node
        self.client = node.dial(4)
        self._read = 0

    def send(self, data: bytes) -> list[Event]:
        self.client.send(data)
        self.node.settle()
        return self.read()

    def read(self, at_a_time: int = 10_000) -> list[Event]:
        new = bytes(self.client.wire.written[self._read :])
        self._read += len(new)
        return [event for at in range(0, len(new), at_a_time) for event in self.line.feed(new[at : at + at_a_time])]


def test_it_connects_subscribes_publishes_and_hears() -> None:
    node = LoneNode()
    one, two = Joined(node, "one"), Joined(node, "two")
    assert one.send(one.line.hello) == [ConnectAccepted()]
    assert two.send(two.line.hello) == [ConnectAccepted()]
    assert one.send(one.line.subscribe(b"a/+", b"b")) == [Subscribed()]
    assert one.send(one.line.subscribe(b"c", b"$adaptation/#")) == [Denied((b"$adaptation/#",))]
    two.send(two.line.publish(b"a/1", b"x" * 300) + two.line.publish(b"b", b""))
    assert one.read(at_a_time=7) == [PublishReceived(b"a/1", b"x" * 300), PublishReceived(b"b", b"")]
    assert two.send(two.line.ping()) == []


def test_a_refusal_says_why() -> None:
    line = ClientLine("c", keep_alive_s=10, packet_bytes=100, user="u", password=b"p")
    assert line.feed(b"\x20\x02\x00\x05") == [ConnectRefused("this user may not connect")]


@pytest.mark.parametrize("data", [b"\x30\x04\x00\x01ax", b"HTTP/1.1 400 " * 9, b"\x20\x02\x00\x00" * 2, b"\xd0\x00"])
def test_anything_else_is_no_mqtt(data: bytes) -> None:
    line = ClientLine("c", keep_alive_s=10, packet_bytes=100, user=None, password=None)
    with pytest.raises(ProtocolError):
        line.feed(data)
