"""Conversations through a gateway: every packet gets through as it is, and a change of nodes shows nowhere."""

from __future__ import annotations

import pytest
from tests.gateway.model_client import ModelClient
from tests.gateway.town import Town

versions = pytest.mark.parametrize("version", [4, 5])


def connected(town: Town, version: int = 5, name: str = "c", **wishes: bool) -> ModelClient:
    client = ModelClient(town, version, name)
    client.connect(**wishes)
    assert client.heard[0][0] == 0x20
    assert client.heard[0][1][1] == 0
    return client


@versions
def test_every_kind_of_packet_passes(version: int) -> None:
    town = Town()
    client = connected(town, version)
    client.subscribe(b"up")
    client.talk()
    for qos in (0, 1, 2):
        client.publish(b"m%d" % qos, qos)
    client.talk()
    assert town.network.accepted == [(b"up", b"m%d" % qos, qos) for qos in (0, 1, 2)]
    assert client.received == [(b"m%d" % qos, qos) for qos in (0, 1, 2)]
    client.unsubscribe(b"up")
    client.talk()
    assert not client.pending
    client.send(b"\xc0\x00")
    assert client.hear() == [(0xD0, b"")]


@versions
def test_a_lost_node_is_not_noticed(version: int) -> None:
    town = Town()
    client = connected(town, version)
    client.subscribe(b"#")
    client.talk()
    first = town.wire()
    client.publish(b"one", 1)
    client.publish(b"two", 2)
    first.cut()
    client.publish(b"three", 1)
    client.publish(b"four", 0)
    client.talk(2)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one", b"two", b"three", b"four"]
    assert sorted(payload for payload, _ in client.received) == [b"four", b"one", b"three", b"two"]
    assert client.repeated == 0
    assert not client.pending
    assert town.gateway.counters.losses == 1


@versions
def test_what_comes_in_one_piece_with_the_goodbye_arrives(version: int) -> None:
    town = Town()
    client = connected(town, version)
    nothing = b"\x00" if version == 5 else b""
    client.send(b"\x30" + bytes((5 + len(nothing),)) + b"\x00\x02up" + nothing + b"x" + b"\xe0\x00")
    client.talk(1)
    assert town.network.accepted == [(b"up", b"x", 0)]
