"""Whatever a client or a node sends, it ends its own conversation at worst, and soon."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.gateway.settings import GatewayLimits
from sterna.mqtt.packets import packet
from sterna.mqtt.wire import variable
from sterna.simulation.client_packets import encode_connect, encode_publish

from .model_client import ModelClient
from .town import Town

CONNECT = encode_connect("c", 5, persistent=False, keep_alive_s=60, receive_maximum=100, will=None)


def served(town: Town) -> None:
    """Somebody else is, all the same."""
    other = ModelClient(town, name="other")
    other.connect()
    other.publish(b"fine", 1, b"other")
    other.talk(1)
    assert not other.pending
    assert (b"other", b"fine", 1) in town.network.accepted


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x30\x05\x00\x02upx",
        b"\x10\x02\x00\x00",
        b"\x10\x0c\x00\x06MQIsdp\x03\x02\x00\x3c",
        b"\x10\xff\xff\xff\xff\x01",
        b"\x10\xff\xff\xff\x7f",
        b"\x00\x05\x92\x04\xa2a:",
        CONNECT + CONNECT,
        CONNECT + b"\x32\x05\x00\x02up\x00",
        CONNECT + b"\x32\x01\x00",
        CONNECT + b"\x40\x01\x00",
        CONNECT + b"\x32\x07\x00\x02up\x00\x00x",
        CONNECT + b"\x20\x02\x00\x00",
        CONNECT + b"\x00\x02\x91\x05",
        CONNECT + packet(0x30, b"x" * 2_000_000),
        CONNECT + b"\xe0\x07\x00\x05\x11\x00\x00\x00\x09",
    ],
)
def test_a_client_that_speaks_badly_is_sent_away_and_no_other(data: bytes) -> None:
    town = Town()
    client = ModelClient(town)
    client.send(data)
    town.pass_time(12)
    assert client.end.closing
    assert not client.client.ledger.entries or not town.gateway.clients
    served(town)
    assert len(town.gateway.clients) == 1


def test_a_connect_larger_than_its_limit_is_refused_before_it_has_come() -> None:
    town = Town()
    client = ModelClient(town)
    client.send(b"\x10" + variable(100_000))
    assert client.end.closing
    assert "limits.connect_bytes" in town.reports[-1][1]["reason"]
    served(town)


def test_unfinished_connects_of_many_strangers_are_bounded_together() -> None:
    town = Town(limits=GatewayLimits(unauthenticated_bytes=100_000))
    strangers = [ModelClient(town, name=f"stranger-{number}") for number in range(20)]
    for stranger in strangers:
        stranger.send(b"\x10" + variable(50_000) + bytes(10_000))
    assert sum(stranger.end.closing for stranger in strangers) == 11
    assert town.gateway.unauthenticated_bytes <= 100_000
    town.pass_time(12)
    assert town.gateway.unauthenticated_bytes == 0
    served(town)


def test_who_never_says_connect_is_let_go_in_time() -> None:
    town = Town()
    client = ModelClient(town)
    client.send(CONNECT[:5])
    town.pass_time(9)
    assert not client.end.closing
    town.pass_time(2)
    assert client.end.closing


@pytest.mark.parametrize("version", [4, 5])
def test_without_any_node_the_client_is_closed_without_a_connack(version: int) -> None:
    """That passes, and some libraries never try again after a CONNACK that refuses them."""
    town = Town()
    town.down = {"a:1", "b:1"}
    client = ModelClient(town, version)
    client.connect()
    town.pass_time(12)
    assert bytes(client.end.sent) == b""
    assert client.end.closing


def test_a_refusal_of_the_node_is_passed_on_as_it_is() -> None:
    town = Town()
    town.network.refusal = b"\x20\x03\x00\x86\x00"
    client = ModelClient(town)
    client.connect()
    assert client.heard == [(0x20, b"\x00\x86\x00")]
    assert town.dialled == ["a:1"]


def test_a_node_that_is_busy_is_not_the_last_word() -> None:
    town = Town()
    town.network.refusal = b"\x20\x03\x00\x89\x00"
    client = ModelClient(town)
    client.connect()
    client.talk(1)
    assert town.dialled == ["a:1", "b:1"]
    assert client.heard == []
    assert client.end.closing


@pytest.mark.parametrize(
    "data", [b"\x10\x00", b"\xf1\xff\xff\xff\xff", b"\x00\x01\x00", b"\x20\x02\x00\x00", b"\x00\x05\x92\x04\xa2x:"]
)
def test_a_node_that_speaks_nonsense_ends_that_client_only(data: bytes) -> None:
    town = Town()
    client = ModelClient(town)
    client.connect()
    town.wire().node.end.write(data)
    town.pass_time(1)
    assert client.end.closing
    assert town.gateway.counters.nonsense == 1
    served(town)


def test_a_packet_no_node_can_bear_does_not_circle_for_ever() -> None:
    town = Town()
    client = ModelClient(town, 4)
    client.connect()
    town.network.unbearable = b"poison"
    client.publish(b"poison", 1)
    town.pass_time(5)
    assert client.end.closing
    served(town)


def test_what_waits_for_a_node_is_bounded() -> None:
    town = Town(limits=GatewayLimits(buffer_bytes=10_000, unacknowledged=10))
    client = ModelClient(town, 4)
    client.connect()
    town.down = {"a:1", "b:1"}
    town.wire().cut()
    for _ in range(100):
        client.publish(b"x" * 1000, 0)
    assert town.gateway.counters.dropped == 96
    assert not client.end.paused, "it may ping"
    for _ in range(6):
        client.publish(b"y", 1)
    assert client.end.paused
    town.down.clear()
    client.talk(5)
    assert not client.end.paused
    assert not client.pending
    assert len(town.network.accepted) == 10


def test_a_node_with_a_smaller_window_is_not_overrun() -> None:
    town = Town()
    client = ModelClient(town)
    client.connect()
    town.wire().cut()
    for number in range(50):
        client.publish(b"%d" % number, 1 + number % 2)
    town.network.receive_maximum = 3
    client.talk(3)
    assert not client.pending
    assert [payload for _, payload, _ in town.network.accepted] == [b"%d" % number for number in range(50)]


def test_a_client_that_does_not_read_stops_its_node_and_nobody_else() -> None:
    town = Town()
    client = ModelClient(town)
    client.connect()
    client.client.congested()
    assert town.wire().up.paused
    client.client.writable()
    assert not town.wire().up.paused
    town.wire().upstream.congested()
    assert client.end.paused
    town.wire().upstream.writable()
    assert not client.end.paused


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([4, 5]), st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
def test_no_bytes_break_the_gateway(version: int, tail: bytes, place: int, value: int) -> None:
    town = Town()
    client = ModelClient(town)
    data = encode_connect("c", version, persistent=True, keep_alive_s=1, receive_maximum=9, will=None)
    data += encode_publish(b"up", b"m", 2, 7, version, retain=False, dup=False) + tail
    mutated = bytearray(data)
    mutated[place % len(data)] = value
    client.send(bytes(mutated))
    town.pass_time(20)
    served(town)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_of_a_node_break_the_gateway(tail: bytes) -> None:
    town = Town()
    client = ModelClient(town)
    client.connect()
    town.wire().node.end.write(tail)
    town.pass_time(1)
    for wire in town.wires:
        wire.cut()
    town.pass_time(1)
    served(town)


def test_who_pings_and_does_not_read_fills_no_memory() -> None:
    town = Town()
    client = ModelClient(town)
    client.connect()
    client.client.congested()
    for _ in range(1000):
        client.send(b"\xc0\x00")
    assert not client.end.sent
    client.client.writable()
    assert client.hear() == [(0xD0, b"")]
