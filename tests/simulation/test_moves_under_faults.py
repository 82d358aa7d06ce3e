"""A client is moved while messages fly, and something goes wrong at each message of the protocol in turn.

Whatever it is and whenever: nothing acknowledged is lost, nothing comes twice at QoS 0 and 2, the order is kept, and in
the end one node has the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations

import pytest
from town import Town

from sterna.migration import messages
from sterna.node.moving import Moving
from sterna.simulation.network_checkers import one_owner

CLIENT = "node1s"
QUICK = ("MigSync", "MigSyncAck")
"""Where the session changes its owner; the others are for `make test`."""
PLANNED = ("MigTo", "MigToAck", "MigSync", "MigSyncAck", "MigAck")
AWAY_S = 1.5

#: With a third node the session goes on until everybody has heard where it is wanted; two have nobody else to ask.
SIZES = (2, 3)

Fault = Callable[[Town], None]


def kinds(*names: str) -> list[object]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def crash(name: str, *, power: bool) -> Fault:
    def fault(town: Town) -> None:
        town.machine(name).kill(power=power)
        town.scene.kernel.after(AWAY_S, town.machine(name).boot)

    return fault


def cut(town: Town) -> None:
    """The two nodes of the move no longer hear each other, nor does anybody hear them."""
    heal = town.scene.network.partition([[name] for name in town.names])
    town.scene.kernel.after(AWAY_S, heal)


def sever(town: Town) -> None:
    """Every connection between nodes breaks, and is made again."""
    for one, other in combinations(town.names, 2):
        town.scene.network.sever(one, other, silently=False)


FAULTS: dict[str, Fault] = {
    "the source is killed": crash("node1", power=False),
    "the source loses power": crash("node1", power=True),
    "the target is killed": crash("node2", power=False),
    "the target loses power": crash("node2", power=True),
    "nobody hears anybody": cut,
    "all links break": sever,
}


@contextmanager
def at_message(kind: str, town: Town, fault: Fault, *, before: bool) -> Iterator[list[str]]:
    """Something goes wrong when the first message of this kind arrives: before it is heard, or after."""
    heard: list[str] = []
    original = Moving.directed_came

    def directed_came(moving: Moving, source: str, body: bytes) -> None:
        name = type(messages.decode(body)).__name__
        first = name == kind and kind not in heard
        heard.append(name)
        if first and before:
            town.scene.kernel.after(0.0, fault, town)
            return  # it is lost on the way
        original(moving, source, body)
        if first:
            town.scene.kernel.after(0.0, fault, town)

    Moving.directed_came = directed_came  # type: ignore[method-assign]
    try:
        yield heard
    finally:
        Moving.directed_came = original  # type: ignore[method-assign]


def begun(size: int, seed: int) -> Town:
    town = Town(size, "subscription-flooding", seed=seed)
    town.begin()
    for machine in town.scene.machines:
        assert machine.running is not None
    town.publish(40, 4.0)
    town.scene.run(1.0)
    return town


def checked(town: Town, heard: list[str], kind: str) -> None:
    town.scene.run(12.0)
    assert kind in heard, "the protocol came so far"
    assert town.end() == []
    assert one_owner(town.scene.machines) == []
    had = {arrival.identity for arrival in town.scene.records.arrivals[CLIENT]}
    assert len(had) > 20 * len(town.names)


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", kinds(*PLANNED))
@pytest.mark.parametrize("size", SIZES)
def test_a_planned_move(size: int, kind: str, fault: str, before: bool) -> None:
    town = begun(size, len(kind) + len(fault))
    with at_message(kind, town, FAULTS[fault], before=before) as heard:
        running = town.machine("node1").running
        assert running is not None
        assert running.node.network is not None
        running.work(running.node.network.moving.plans.move, CLIENT.encode(), "node2")
        checked(town, heard, kind)


@pytest.mark.parametrize("before", [True, False], ids=["instead of it", "after it"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", kinds("Pull", *PLANNED))
@pytest.mark.parametrize("size", SIZES)
def test_a_client_that_turns_up_elsewhere(size: int, kind: str, fault: str, before: bool) -> None:
    town = begun(size, len(kind) + 2 * len(fault))
    client = town.subscribers["node1"]
    with at_message(kind, town, FAULTS[fault], before=before) as heard:
        client.address = town.machine("node2").address
        client.hang_up()
        checked(town, heard, kind)
