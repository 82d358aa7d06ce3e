"""The parts of a session that only show later are carried by a move too, and only so many clients move at once."""

from __future__ import annotations

import pytest

from conformance.packets import Connack, Connect, Puback, Will
from node.joined_nodes import JoinedNode, Town
from node.test_clients_move import row
from sterna.migration.moves_put_off import FIRST_PAUSE
from sterna.migration.settings import MigrationSettings
from sterna.vocabulary.errors import MigrationError

AT_ONCE = 2


def watched(monkeypatch: pytest.MonkeyPatch, node: JoinedNode, what: str) -> list[int]:
    """How many departures or arrivals the node has, at each of its turns."""
    seen: list[int] = []
    work = JoinedNode.work

    def work_and_look(one: JoinedNode) -> None:
        work(one)
        if one is node:
            seen.append(len(getattr(one.network.moving, what)))

    monkeypatch.setattr(JoinedNode, "work", work_and_look)
    return seen


def ordered(town: Town, source: str, target: str, *clients: str) -> None:
    for client in clients:
        town[source].network.moving.plans.move(client.encode(), target)


@pytest.mark.parametrize("names", ["AC", "ABC"], ids=["two nodes", "three nodes"])
def test_packet_identifiers_go_on_where_they_were(names: str) -> None:
    """A client, or a gateway in front of it, may still have an acknowledgement of an old one under way."""
    town = row("subscription-flooding", names)
    client = town["A"].resume("c", gateway=True)
    client.subscribe("t", 1)
    publisher = town["A"].join("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1)
    messages = client.messages()
    assert [message.packet_id for message in messages] == [1, 2, 3]
    for message in messages:
        client.send(Puback(message.packet_id))
    town.settle()
    ordered(town, "A", "C", "c")
    town.pass_time(1)
    client = town["C"].resume("c")
    publisher.publish("t", b"3", 1)
    assert [(message.packet_id, message.payload) for message in client.messages()] == [(4, b"3")]


@pytest.mark.parametrize("names", ["AC", "ABC"], ids=["two nodes", "three nodes"])
@pytest.mark.parametrize("is_there", [True, False], ids=["connected", "away"])
def test_a_session_that_nobody_fetches_ends_at_the_new_node_when_it_would_have(names: str, is_there: bool) -> None:
    town = row("subscription-flooding", names)
    client = town["A"].resume("c", session_expiry=50, gateway=True)
    client.subscribe("t", 1)
    if not is_there:
        client.vanish()
    ordered(town, "A", "C", "c")
    town.pass_time(45)
    assert b"c" not in town["A"].broker.sessions
    assert b"c" in town["C"].broker.sessions
    town.pass_time(15)
    assert b"c" not in town["C"].broker.sessions
    assert not town["A"].resume("c", gateway=True).connack.session_present


@pytest.mark.parametrize("names", ["AC", "ABC"], ids=["two nodes", "three nodes"])
@pytest.mark.parametrize("delay_s", [0, 10])
def test_the_will_of_a_client_that_never_arrives_is_said_once_by_the_new_node(names: str, delay_s: int) -> None:
    town = row("subscription-flooding", names)
    heirs = town["A"].join("heirs")
    heirs.subscribe("gone", 1)
    will = Will("gone", b"for good", 1, properties={"will_delay": delay_s})
    town["A"].resume("c", will=will, gateway=True)
    ordered(town, "A", "C", "c")
    town.pass_time(1)
    assert b"c" not in town["A"].broker.sessions
    town.pass_time(60)
    assert heirs.payloads() == [b"for good"]


def test_so_many_leave_a_node_at_once_and_the_next_when_they_have_left() -> None:
    town = row("subscription-flooding", migration=MigrationSettings(at_once=AT_ONCE))
    for number in range(AT_ONCE + 1):
        town["A"].resume(f"c{number}", gateway=True)
    ordered(town, "A", "C", "c0", "c1")
    with pytest.raises(MigrationError, match="2 clients are on their way already"):
        ordered(town, "A", "C", "c2")
    assert len(town["A"].network.moving.departures) == AT_ONCE
    town.pass_time(1)
    ordered(town, "A", "C", "c2")
    town.pass_time(1)
    assert sorted(town["C"].broker.sessions) == [b"c0", b"c1", b"c2"]


def test_so_many_arrive_at_a_node_at_once_and_the_others_are_served_where_they_are_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    town = row("subscription-flooding", migration=MigrationSettings(at_once=AT_ONCE))
    for name in "AB":
        for number in range(AT_ONCE):
            town[name].resume(f"{name}{number}", gateway=True).subscribe("t", 1)
    seen = watched(monkeypatch, town["C"], "arrivals")
    for name in "AB":
        ordered(town, name, "C", f"{name}0", f"{name}1")
    town.pass_time(town.migration.retry_s * FIRST_PAUSE / 2)
    assert max(seen) == AT_ONCE
    stayed = [session for name in "AB" for session in town[name].broker.sessions.values()]
    assert stayed, "one more came than may be on their way"
    assert len(town["C"].broker.sessions) + len(stayed) == 2 * AT_ONCE
    assert all(session.connection is not None and not session.is_moving for session in stayed)
    town.pass_time(2)
    assert max(seen) == AT_ONCE
    assert len(town["C"].broker.sessions) == 2 * AT_ONCE, "they follow when there is room"


def test_an_evacuation_moves_so_many_at_once_and_all_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding", migration=MigrationSettings(at_once=AT_ONCE))
    for number in range(3 * AT_ONCE):
        town["A"].resume(f"c{number}", gateway=True)
    seen = watched(monkeypatch, town["A"], "departures")
    town["A"].network.moving.plans.evacuate(1000.0)
    town.pass_time(5)
    assert max(seen) == AT_ONCE
    assert not town["A"].broker.sessions


def test_clients_that_turn_up_elsewhere_are_handed_over_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding", migration=MigrationSettings(at_once=AT_ONCE))
    for number in range(2 * AT_ONCE):
        town["A"].resume(f"c{number}", gateway=True).vanish()
    seen = watched(monkeypatch, town["A"], "departures")
    clients = [town["C"].dial() for _ in range(2 * AT_ONCE)]
    for number, client in enumerate(clients):
        client.send(Connect(f"c{number}", False, properties={"session_expiry": 100}))
    town.pass_time(15)
    assert max(seen) == AT_ONCE
    assert not town["A"].broker.sessions
    assert all(client.take(Connack).session_present for client in clients)
