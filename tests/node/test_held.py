"""What a session on its way would miss at QoS 0: kept while it arrives, once and in order, and not without bounds."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect, Publish, Subscribe
from node.faulty_nodes import FaultyTown
from sterna.broker.session.qos0_hold import HELD_BYTES_MAX, HELD_MAX, Qos0Hold
from sterna.broker.session.subscriptions import Grant
from sterna.mqtt.message import Message

STEP_S = 0.1


def come(town: FaultyTown, name: str) -> Client:
    """A client with a session; over slow links it takes a while until it is let in."""
    client = town[name].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    return client


@pytest.mark.parametrize("slow", ["AB", "BA"], ids=["behind", "ahead"])
def test_a_slow_link_costs_a_moving_client_nothing_at_qos_0(slow: str) -> None:
    """As in the paper's experiments: messages are under way between the nodes while the client is moved."""
    town = FaultyTown("AB")
    town.connect_slowly(slow[0], slow[1], 0.5)
    town.pass_time(3)
    client = come(town, "A")
    town.pass_time(2)
    client.send(Subscribe(1, [("t", 0)]))
    town.pass_time(2)
    publisher = town["A" if slow == "AB" else "B"].join("p")
    came: list[bytes] = []
    answers: list[Connack] = []
    for step in range(60):
        publisher.publish("t", b"%02d" % step, 1)
        town.pass_time(STEP_S)
        packets = client.received()
        answers += [packet for packet in packets if isinstance(packet, Connack)]
        came += [packet.payload for packet in packets if isinstance(packet, Publish)]
        if step == 15:
            town["A"].network.moving.plans.move(b"c", "B")
        if client.wire.closed:
            client = come(town, "B")
    town.pass_time(2)
    came += [packet.payload for packet in client.received() if isinstance(packet, Publish)]
    assert [answer.session_present for answer in answers] == [False, True]
    assert came == [b"%02d" % number for number in range(60)]


def message(size: int = 1, qos: int = 1) -> Message:
    return Message(b"t", b"x" * size, qos)


def test_it_is_bounded_by_number_and_by_size_and_takes_nothing_without_identity() -> None:
    grant = Grant(0)
    many, large = Qos0Hold(), Qos0Hold()
    assert sum(many.hold(message(), grant) for _ in range(HELD_MAX + 5)) == HELD_MAX
    assert large.hold(message(HELD_BYTES_MAX - 1), grant)
    assert not large.hold(message(), grant)
    assert not Qos0Hold().hold(message(qos=0), grant)
