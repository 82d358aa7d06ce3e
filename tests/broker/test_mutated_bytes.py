"""Damaged packets fed straight into connections: they are answered or closed, and nothing else happens."""

from __future__ import annotations

from random import Random

import pytest

from broker.lone_node import LoneNode
from mutations import conversations
from sterna.broker.limits import Limits
from sterna.broker.session.connection import ConnectionState

SEED, MUTATIONS, EACH = 20_240_117, 12_000, 4


@pytest.mark.parametrize("durability", ["os", "memory"])
def test_damaged_packets_end_their_connection_and_nothing_else(durability: str) -> None:
    rng = Random(SEED)
    node = LoneNode(Limits(sessions=200, retained=50), durability="os" if durability == "os" else "memory")
    bystander, writer = node.join("bystander"), node.join("writer")
    bystander.subscribe("quiet", 1)
    states: dict[tuple[int, bool], int] = {}
    for number, (version, talk) in enumerate(conversations(rng, MUTATIONS, EACH)):
        client = node.dial(version, f"192.0.2.{number % 250}:1")
        data = b"".join(talk)
        # In pieces of any size, with and without the disk keeping up.
        while data and not client.wire.closed:
            size = rng.choice([1, 2, 7, 50, len(data)])
            client.send(data[:size])
            data = data[size:]
            if rng.random() < 0.3:
                node.settle()
        node.settle()
        # It reads the last answer by its own idea of the version.
        client.version = client.connection.version or version
        answers = client.received()
        state = int(client.connection.state), client.wire.closed
        assert client.wire.closed == (client.connection.state == ConnectionState.CLOSED), f"conversation {number}"
        states[state] = states.get(state, 0) + bool(answers)
        client.vanish()
        if number % 50 == 0:
            node.pass_time(1)
            writer.publish("quiet", b"%d" % number, 1)
            assert bystander.payloads() == [b"%d" % number]
            bystander.send(b"\x40\x02" + (number // 50 + 1).to_bytes(2, "big"))
    # The damage was neither all fatal nor all harmless.
    assert (
        min(states.get((int(ConnectionState.CONNECTED), False), 0), states.get((int(ConnectionState.CLOSED), True), 0))
        > 100
    )
    node.pass_time(1e6)
    assert sorted(node.broker.sessions) == [b"bystander", b"writer"]
    assert node.broker.routes.size == 1
    assert node.broker.lifecycle.clients_connected == 2
    assert node.broker.connections.unauthenticated.held == 0
