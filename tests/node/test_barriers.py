"""A planned move when the old node has read further than the new one, as far, or less far: every QoS gets each message
once, in order, wherever it was read first (tables 5.2 to 5.8 of the paper, with a vector instead of one number)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from broker.lone_node import Client
from conformance.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from node.joined_nodes import Town
from sterna.migration.tables import DepartureState
from sterna.routing.link_frames import Page


def absorb(client: Client) -> list[bytes]:
    """Take and acknowledge everything that comes."""
    payloads: list[bytes] = []
    while packets := client.received():
        for packet in packets:
            if isinstance(packet, Publish):
                payloads.append(packet.payload)
                if packet.qos:
                    client.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                client.send(Pubcomp(packet.packet_id))
        client._node.settle()
    return payloads


def hold_back(town: Town, name: str) -> Callable[[], None]:
    """What this node asks for because it missed it does not come, until the answer is called."""
    streams = town[name].network.router.streams
    held: list[Page] = []
    original = streams.page_came
    streams.page_came = held.append  # type: ignore[method-assign, assignment]

    def release() -> None:
        streams.page_came = original  # type: ignore[method-assign]
        for page in held:
            original(page)
        town.settle()

    return release


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("reading", ["ahead", "synced", "behind"])
def test_every_message_comes_once_and_in_order(reading: str, qos: int, strategy: str) -> None:
    town = Town("ABC", strategy)
    town.connect(*(one + other for one, other in pairwise("ABC")))
    client = town["A"].resume("c")
    client.subscribe("t", qos)
    town["C"].join("listener").subscribe("t", 1)  # so that the new node reads the topic too
    publisher = town["B"].join("p")
    publisher.publish("t", b"1", 2)
    came = absorb(client)
    release: Callable[[], None] = lambda: None  # noqa: E731
    late = {"ahead": "C", "behind": "A"}.get(reading)
    if late:
        town.cut("B", late)
        release = hold_back(town, late)
        publisher.publish("t", b"2", 2)
        publisher.publish("t", b"3", 2)
        came += absorb(client)
        town.connect("AB" if late == "A" else "BC")
    else:
        publisher.publish("t", b"2", 2)
        publisher.publish("t", b"3", 2)
        came += absorb(client)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    if reading == "behind":
        departure = town["A"].network.moving.departures[b"c"]
        assert departure.state is DepartureState.CATCHING_UP, "it reads what the new node will not hear"
        release()
        came += absorb(client)
        town.pass_time(2)
    came += [packet.payload for packet in client.received() if isinstance(packet, Publish)]
    assert client.wire.closed
    client = town["C"].resume("c")
    assert client.connack.session_present
    if reading == "ahead":
        release()
    publisher.publish("t", b"4", 2)
    town.pass_time(1)
    came += absorb(client)
    assert came == [b"1", b"2", b"3", b"4"]
    assert town["C"].network.moving.counters.arrived == 1
