"""Expressions with a data processing function go on where their client goes, with the numbers they wait for."""

from __future__ import annotations

import pytest

from broker.lone_node import Client
from conformance.packets import Connect, Publish
from node.faulty_nodes import FaultyTown
from node.test_expressions_move import answers, move
from sterna.broker.transfer import expression_transfer
from sterna.operators.functions import Functions


@pytest.fixture
def town(strategy: str) -> FaultyTown:
    functions = Functions()
    functions.register("LENGTH", None, "bytes", "how long a payload is")
    town = FaultyTown("ABC", strategy, functions=functions)
    town.connect("AB", "BC")
    return town


def compute(town: FaultyTown, name: str) -> int:
    """Have a node know all the numbers it waits for; how many there were."""
    count = 0
    while town[name].calls:
        town[name].answer(float(len(town[name].calls[0][1])))
        count += 1
    town.pass_time(0.1)
    return count


def subscribed(town: FaultyTown, expression: str = "$TMPSUM;0:10:00$LENGTH/camera/+") -> Client:
    client = town["A"].resume("c")
    client.subscribe(expression, 1)
    return client


@pytest.mark.parametrize("how", ["planned", "pulled"])
def test_numbers_that_are_under_way_are_waited_for_at_the_new_node(town: FaultyTown, how: str) -> None:
    client = subscribed(town)
    cameras = {name: town[name].join(f"camera-{name}") for name in "ABC"}
    cameras["B"].publish("camera/1", b"x", 1)
    assert compute(town, "A") == 1
    for name in "ABC":  # two are being computed, one waits
        cameras[name].publish("camera/1", b"x" * 10, 1)
    town.pass_time(1)
    found = answers(client)
    client = move(town, client, "C", how)
    cameras["B"].publish("camera/1", b"x" * 100, 1)
    town.pass_time(1)
    assert (compute(town, "C"), found + answers(client)) == (4, [b"1.0", b"11.0", b"21.0", b"31.0", b"131.0"])
    town["A"].calls.clear()


def test_those_that_came_along_are_computed_after_a_crash_and_none_twice(town: FaultyTown) -> None:
    client = subscribed(town)
    camera = town["B"].join("camera")
    for number in range(4):
        camera.publish("camera/1", b"x" * 10**number, 1)
    client = move(town, client, "C", "pulled")
    camera.publish("camera/1", b"x" * 10_000, 1)
    town["C"].answer(1.0)
    town.pass_time(1)
    assert answers(client) == [b"1.0"]
    town.settle()
    town.kill("C")
    town.start("C")
    town.connect("BC")
    client = town["C"].resume("c")
    assert compute(town, "C") == 4
    assert answers(client) == [b"11.0", b"111.0", b"1111.0", b"11111.0"]


def test_what_is_published_during_a_move_counts_once(town: FaultyTown) -> None:
    client = subscribed(town)
    camera = town["B"].join("camera")
    sent = 0
    for step in range(12):
        if step == 4:
            client.vanish()
            client = town["C"].dial()
            client.send(Connect("c", False, 0, None, None, None, {"session_expiry": 100}))
        camera.send(Publish("camera/1", b"x", 1, packet_id=step + 1))
        sent += 1
        for _ in range(step % 4):
            for node in town.nodes.values():
                node.work()
            for pipe in town.pipes:
                pipe.move()
    town.pass_time(2)
    compute(town, "C")
    assert answers(client) == [b"%.1f" % number for number in range(1, sent + 1)]


def test_more_than_there_is_room_for_is_counted(town: FaultyTown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expression_transfer, "STATES_BYTES_MAX", 1000)
    client = subscribed(town)
    camera = town["B"].join("camera")
    camera.publish("camera/1", b"x" * 100, 1)
    camera.publish("camera/1", b"x" * 900, 1)
    client = move(town, client, "C", "pulled")
    assert compute(town, "C") == 1
    assert answers(client) == [b"100.0"]
    assert town["A"].broker.statistics().expression_values == {"moved": 1}


def test_nonsense_in_place_of_messages_costs_no_more_than_them(
    town: FaultyTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expression_transfer, "_waiting_of", lambda *_: [(1, 2)])
    monkeypatch.setattr(expression_transfer, "_size", lambda _: 1)
    client = subscribed(town)
    camera = town["B"].join("camera")
    camera.publish("camera/1", b"x", 1)
    client = move(town, client, "C", "pulled")
    camera.publish("camera/1", b"xx", 1)
    compute(town, "C")
    assert answers(client) == [b"2.0"]
