"""Clients that send too fast are not read from for a while; nothing of theirs is lost, and others notice nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.lone_node import Client, LoneNode
from conformance.packets import Pingreq, Pingresp, Puback, Publish
from sterna.broker import inspection
from sterna.broker.limits import Limits
from sterna.broker.session.reading_rate import ReadingRate


def burst(client: Client, count: int, qos: int = 0, size: int = 10) -> None:
    packets = [Publish("t", b"%0*d" % (size, number), qos, packet_id=number + 1) for number in range(count)]
    client.send(*packets)


def received(client: Client) -> list[int]:
    return [int(payload) for payload in client.payloads()]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_sends_too_fast_waits_and_loses_nothing(qos: int, version: int) -> None:
    node = LoneNode(Limits(client_messages_per_s=10))
    subscriber, publisher = node.join("subscriber"), node.join("publisher", version)
    subscriber.subscribe("t", 0)
    burst(publisher, 35, qos)
    node.settle()
    assert len(received(subscriber)) == 10, "a second's worth at once"
    assert not publisher.wire.reading
    (row,) = inspection.client(node.broker, "", "publisher", 1).rows
    assert row["throttled"]
    got = 10
    for _ in range(3):
        for _ in range(100):
            node.pass_time(0.01)
        fresh = received(subscriber)
        assert fresh == list(range(got, got + len(fresh)))
        got += len(fresh)
        assert got <= 35
    assert got == 35
    assert publisher.wire.reading
    assert node.broker.counters.throttled > 0
    if qos == 1:
        assert [packet.packet_id for packet in publisher.received() if isinstance(packet, Puback)] == list(range(1, 36))


def test_bytes_are_counted_of_every_packet() -> None:
    node = LoneNode(Limits(client_bytes_per_s=1000))
    subscriber, publisher = node.join("subscriber"), node.join("publisher")
    subscriber.subscribe("t")
    burst(publisher, 10, size=490)
    node.settle()
    assert len(received(subscriber)) == 3, "as long as none are owed"
    assert not publisher.wire.reading
    for _ in range(420):
        node.pass_time(0.01)
    assert len(received(subscriber)) == 7
    assert publisher.wire.reading


def test_who_waits_is_not_taken_for_silent_and_others_are_served() -> None:
    node = LoneNode(Limits(client_messages_per_s=1))
    slow, other = node.join("slow", keep_alive=2), node.join("other")
    burst(slow, 20)
    slow.send(Pingreq())
    for _ in range(10):
        node.pass_time(1)
        assert not slow.wire.closed
    assert other.say(Pingreq()) == [Pingresp()]
    for _ in range(12):
        node.pass_time(1)
    assert Pingresp() in slow.received()


def test_who_leaves_while_it_waits_leaves_nothing_behind() -> None:
    node = LoneNode(Limits(client_messages_per_s=1))
    client = node.join("meter")
    burst(client, 5)
    client.vanish()
    node.pass_time(10)
    assert client.connection.kept_bytes == 0


@settings(max_examples=100)
@given(
    cuts=st.lists(st.integers(0, 600), max_size=10),
    messages_per_s=st.sampled_from([0.0, 1.0, 3.0]),
    bytes_per_s=st.sampled_from([0.0, 10.0, 100.0]),
)
def test_every_byte_is_allowed_once_at_packet_ends(cuts: list[int], messages_per_s: float, bytes_per_s: float) -> None:
    data = b"".join(Publish("t", bytes(number)).encode(4) for number in range(20)) + Pingreq().encode(4)
    rate, now, waiting, taken = ReadingRate(messages_per_s, bytes_per_s, 0.0), 0.0, b"", b""
    for piece in [data[:100], data[100:]]:
        waiting += piece
        for _ in range(2000):
            allowed = rate.allowed(waiting, now)
            taken, waiting = taken + waiting[:allowed], waiting[allowed:]
            if not waiting:
                break
            now += rate.wait_s()
    assert taken == data
