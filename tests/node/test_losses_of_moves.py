"""QoS 0 messages that are lost because their client moves are counted once, as `moving`; those that arrive are not."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from broker.lone_node import Client
from node.faulty_nodes import FaultyTown
from node.joined_nodes import Town
from sterna.broker.session.outbox import packets_in
from sterna.broker.transfer.session_transfer import Staged
from sterna.migration import arrival
from sterna.migration.session_pages import write_down
from sterna.mqtt.packets import encode_disconnect
from sterna.mqtt.reasons import Reason


def dropped(town: Town) -> dict[str, int]:
    found: Counter[str] = Counter()
    for node in town.nodes.values():
        found.update(node.broker.counters.publish_dropped)
    return dict(found)


def travelling(town: Town, names: str, *, gateway: bool = True) -> tuple[Client, Client]:
    town.connect(*(one + other for one, other in pairwise(names)))
    client = town["A"].resume("c", gateway=gateway)
    client.subscribe("t", 0)
    publisher = town[names[-1]].join("p")
    publisher.publish("t", b"first")
    town.pass_time(1)
    assert client.payloads() == [b"first"]
    client.subscribe("owed", 1)
    publisher.publish("owed", b"and not acknowledged", 1)
    return client, publisher


def loose(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages() if message.topic == "t"]


@pytest.mark.parametrize("stalled", [0, 5, 20])
@pytest.mark.parametrize("names", ["AB", "ABC"])
def test_a_message_arrives_or_is_counted_once(
    strategy: str, names: str, stalled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message with every step of the move, while the disk of the node that the client goes to takes its time."""
    town = FaultyTown(names, strategy)
    client, publisher = travelling(town, names)
    steps = 0

    def write_slowly(*page: Any) -> list[Staged]:
        town["B"].disk_stalls = stalled > 0
        return write_down(*page)

    monkeypatch.setattr(arrival, "write_down", write_slowly)
    town["A"].network.moving.plans.move(b"c", "B")
    for number in range(40):
        publisher.publish("t", b"%d" % number)
        town.pass_time(0.01)
        steps += town["B"].disk_stalls
        if steps == stalled:
            town["B"].disk_stalls = False
    received = loose(client)
    client = town["B"].resume("c")
    assert client.connack.session_present
    received += loose(client)
    assert received == sorted(received, key=int)
    lost, counted = 40 - len(received), dropped(town)
    assert lost > 0 or not stalled or names == "ABC"  # it passes what comes from C on, and has held it
    assert set(counted) <= {"moving"}
    assert lost <= counted.get("moving", 0) <= stalled + 1  # the old node does not know when the new one has it


def test_what_waits_for_a_client_that_does_not_come_is_counted(strategy: str) -> None:
    town = Town("AB", strategy)
    _, publisher = travelling(town, "AB")
    town["A"].network.moving.plans.move(b"c", "B")
    town.pass_time(1)
    for number in range(5):
        publisher.publish("t", b"%d" % number)
    assert dropped(town) == {}
    town.pass_time(10)
    assert dropped(town) == {"offline": 5}


def test_what_waits_for_a_client_that_comes_with_another_version_is_counted(strategy: str) -> None:
    town = Town("AB", strategy)
    _, publisher = travelling(town, "AB")
    town["A"].network.moving.plans.move(b"c", "B")
    town.pass_time(1)
    publisher.publish("t", b"1")
    client = town["B"].resume("c", 4)
    assert loose(client) == []
    assert dropped(town) == {"offline": 1}


def test_packets_are_counted_whole() -> None:
    short, long = encode_disconnect(Reason.SERVER_MOVED), b"\x30\xac\x02" + b"x" * 300
    assert [packets_in(data) for data in (b"", short, long, long + short + long)] == [0, 1, 1, 3]
