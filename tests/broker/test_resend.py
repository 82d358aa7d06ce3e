"""A client comes back with a full window and a socket that takes no bytes: nothing piles up, nothing is lost."""

from __future__ import annotations

import pytest

from broker.lone_node import Client, LoneNode, Wire
from conformance.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish
from sterna.broker.limits import Limits
from sterna.broker.session.connection import Connection
from sterna.broker.session.outbox import FLUSH_BYTES

PAYLOAD_BYTES = 64 * 1024
WINDOW = 32
WAITING = 8


class FullWire(Wire):
    """Like a socket and its buffer: past `room` bytes it says so, at once, and takes what is written all the same."""

    def __init__(self, connection: Connection, room: int) -> None:
        super().__init__()
        self._connection = connection
        self.room = room

    def write(self, data: bytes) -> None:
        super().write(data)
        self.unsent = max(0, len(self.written) - self.room)
        if self.unsent:
            self._connection.congested()

    def read(self, size: int) -> None:
        """The client reads so many bytes more, and there is room again."""
        self.room += size
        self.unsent = max(0, len(self.written) - self.room)
        if not self.unsent:
            self._connection.writable()


def payload(number: int) -> bytes:
    return b"%04d" % number + bytes(PAYLOAD_BYTES - 4)


def numbers(messages: list[Publish]) -> list[int]:
    return [int(message.payload[:4]) for message in messages]


@pytest.fixture
def node() -> LoneNode:
    """With a session that has its window full, and more waiting behind it."""
    node = LoneNode(Limits(inflight=WINDOW))
    reader = node.resume("reader")
    assert reader.subscribe("work", 1) == 1
    publisher = node.join("publisher")
    for number in range(WINDOW + WAITING):
        publisher.publish("work", payload(number), 1)
    assert numbers(reader.messages()) == list(range(WINDOW))
    reader.vanish()
    return node


def come_back(node: LoneNode, room: int) -> tuple[Client, FullWire]:
    client = node.dial()
    wire = FullWire(client.connection, room)
    client.wire = client.connection.transport = wire
    client.send(Connect("reader", False, properties={"session_expiry": 100}))
    node.settle()
    assert client.take(Connack).session_present
    return client, wire


def acknowledge(node: LoneNode, client: Client, messages: list[Publish]) -> None:
    client.send(*[Puback(message.packet_id) for message in messages])
    node.settle()


def test_no_more_is_resent_than_fills_the_socket(node: LoneNode) -> None:
    client, wire = come_back(node, room=0)
    assert len(wire.written) <= FLUSH_BYTES + 2 * PAYLOAD_BYTES
    assert 0 < len(client.messages()) < WINDOW / 2
    for _ in range(10):
        node.pass_time(1.0)
    assert len(wire.written) <= FLUSH_BYTES + 2 * PAYLOAD_BYTES, "and nothing is added while it does not read"


def test_as_it_reads_it_gets_everything_once_and_in_order(node: LoneNode) -> None:
    client, wire = come_back(node, room=0)
    got: list[Publish] = []
    most = 0
    for _ in range(1000):
        fresh = client.messages()
        got += fresh
        most = max(most, wire.unsent)
        if not wire.unsent and not fresh:
            break
        wire.read(PAYLOAD_BYTES)
        node.settle()
    assert numbers(got) == list(range(WINDOW))
    assert all(message.dup for message in got)
    assert most <= FLUSH_BYTES + 2 * PAYLOAD_BYTES
    wire.read(WINDOW * PAYLOAD_BYTES * 2)
    acknowledge(node, client, got)
    waited = client.messages()
    assert numbers(waited) == list(range(WINDOW, WINDOW + WAITING)), "what waited comes after"
    assert not any(message.dup for message in waited)


def test_what_is_acknowledged_before_it_was_sent_again_is_not_sent_again(node: LoneNode) -> None:
    """The client has it from the connection before, and may say so as soon as it is back."""
    in_flight = list(node.session("reader").inflight)
    client, wire = come_back(node, room=0)
    first = client.messages()
    last = in_flight[-1]
    client.send(Puback(last))
    wire.read(WINDOW * PAYLOAD_BYTES * 2)
    node.settle()
    sent = [message.packet_id for message in first + client.messages()]
    assert sent[: WINDOW - 1] == in_flight[:-1]
    assert last not in sent[: WINDOW - 1]


def test_a_new_message_does_not_overtake_what_is_still_to_be_resent(node: LoneNode) -> None:
    client, wire = come_back(node, room=0)
    publisher = node.join("publisher")
    publisher.publish("work", payload(WINDOW + WAITING), 1)
    wire.read(WINDOW * PAYLOAD_BYTES * 2)
    node.settle()
    resent = client.messages()
    assert numbers(resent) == list(range(WINDOW))
    acknowledge(node, client, resent)
    assert numbers(client.messages()) == list(range(WINDOW, WINDOW + WAITING + 1))


def test_a_client_that_goes_again_in_the_middle_has_lost_nothing(node: LoneNode) -> None:
    client, _ = come_back(node, room=0)
    assert len(client.messages()) < WINDOW
    client.vanish()
    again, _ = come_back(node, room=2**40)
    assert numbers(again.messages()) == list(range(WINDOW))
    assert again.say(Pingreq()) == [Pingresp()]
