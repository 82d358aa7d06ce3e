"""A node that moves as many sessions as it may lets those wait that clients ask for elsewhere, and forgets none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect
from node.joined_nodes import Town
from sterna.migration import waiting_pulls
from sterna.migration.settings import MigrationSettings
from sterna.migration.waiting_pulls import WaitingPulls

CLIENTS = 300
PATIENT = MigrationSettings(at_once=1, retry_s=20.0, patience_s=60.0)
"""A node that asks again does so after this test is over."""


def come(town: Town, name: str, client_id: str) -> Client:
    client = town[name].dial()
    client.send(Connect(client_id, False, properties={"session_expiry": 1000}))
    town.settle()
    return client


def is_let_in(client: Client) -> bool:
    return any(isinstance(packet, Connack) for packet in client.received())


def waiting(town: Town, name: str = "A") -> WaitingPulls:
    return town[name].network.moving._dispatch.waiting_pulls


def full(names: str = "ABC", migration: MigrationSettings = PATIENT) -> Town:
    """A is linked to everybody, and the one session that may be on its way is: nobody knows whether B has it."""
    town = Town(names, migration=migration)
    town.connect(*("A" + other for other in names[1:]))
    town["A"].resume("first").vanish()
    town["A"].network.moving.plans.move(b"first", "B")
    town["A"].work()
    town.cut("A", "B")
    assert list(town["A"].network.moving.departures) == [b"first"]
    return town


def make_room(town: Town) -> None:
    town.connect("AB")
    assert b"first" in town["B"].broker.sessions
    assert not town["A"].network.moving.departures


def test_many_that_turn_up_elsewhere_at_once_are_served_before_anybody_asks_again() -> None:
    settings = MigrationSettings(retry_s=20.0, patience_s=60.0)
    town = Town("ABC", migration=settings)
    town.connect("AB", "BC")
    for number in range(CLIENTS):
        town["A"].resume(f"c{number}").subscribe(f"t/{number}", 1)
    begun = town.now
    clients = [town["C"].dial() for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        client.send(Connect(f"c{number}", False, properties={"session_expiry": 1000}))
    town.pass_time(1.0)
    assert town.now - begun < settings.retry_s
    assert sum(map(is_let_in, clients)) == CLIENTS
    moving = town["A"].network.moving
    assert moving.counters.departed == town["C"].network.moving.counters.arrived == CLIENTS
    assert not waiting(town)
    assert not moving.departures


def test_a_session_goes_as_soon_as_there_is_room() -> None:
    town = full()
    town["A"].resume("c").vanish()
    client = come(town, "C", "c")
    assert len(waiting(town)) == 1
    assert not is_let_in(client)
    make_room(town)
    assert is_let_in(client)
    assert not waiting(town)


def test_a_client_that_is_back_meanwhile_stays() -> None:
    town = full()
    town["A"].resume("c").vanish()
    elsewhere = come(town, "C", "c")
    client = come(town, "A", "c")
    assert is_let_in(client)
    assert elsewhere.wire.closed, "it is told, and does not wait in vain"
    assert not waiting(town)
    make_room(town)
    assert not client.wire.closed
    assert b"c" in town["A"].broker.sessions


def test_a_client_that_has_gone_on_is_served_where_it_is_now() -> None:
    town = full("ABCD")
    town["A"].resume("c").vanish()
    elsewhere, client = come(town, "C", "c"), come(town, "D", "c")
    assert elsewhere.wire.closed
    assert len(waiting(town)) == 1
    make_room(town)
    assert is_let_in(client)
    assert b"c" in town["D"].broker.sessions


def test_a_session_that_has_ended_meanwhile_is_not_waited_for() -> None:
    town = full()
    town["A"].resume("c").vanish()
    client = come(town, "C", "c")
    town["A"].broker.lifecycle.end_session(town["A"].broker.sessions[b"c"])
    make_room(town)
    assert not client.take(Connack).session_present
    assert not waiting(town)


@contextmanager
def _unasked(town: Town) -> Iterator[None]:
    """Sessions that are asked for wait, and none of them leaves."""
    here = town["A"].network.moving
    departed = here.counters.departed + 1
    yield
    make_room(town)
    assert here.counters.departed == departed, "the first one alone"
    assert not waiting(town)
    assert b"c" in town["A"].broker.sessions


def test_a_session_does_not_go_to_a_node_that_has_given_up() -> None:
    town = full(migration=MigrationSettings(at_once=1, retry_s=2.0, patience_s=4.0))
    town["A"].resume("c").vanish()
    with _unasked(town):
        client = come(town, "C", "c")
        client.vanish()
        town.pass_time(10)
        assert len(waiting(town)) == 1


def test_a_session_does_not_go_to_a_node_that_is_away() -> None:
    town = full()
    town["A"].resume("c").vanish()
    with _unasked(town):
        come(town, "C", "c")
        town.cut("A", "C")


def test_a_session_does_not_go_to_another_start_of_the_node_that_asked() -> None:
    town = full()
    town["A"].resume("c").vanish()
    with _unasked(town):
        come(town, "C", "c")
        town.crash("C")
        town.connect("AC")


def test_what_is_asked_for_again_is_in_line_once_and_not_longer_than_it_is_waited_for() -> None:
    town = full()
    town["A"].resume("c").vanish()
    come(town, "C", "c")
    (before,) = waiting(town)._waiting.values()
    town["C"].network.moving.arrivals[b"c"].path_found()
    town.pass_time(1)
    assert list(waiting(town)._waiting.values()) == [before]


def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_pulls, "PULLS_MAX", 2)
    town = full()
    for number in range(4):
        town["A"].resume(f"c{number}").vanish()
    for number in range(4):
        come(town, "C", f"c{number}")
    assert len(waiting(town)) == 2
    make_room(town)
    town.pass_time(PATIENT.retry_s)
    assert sorted(town["C"].broker.sessions) == [b"c0", b"c1", b"c2", b"c3"], "the others ask again"
