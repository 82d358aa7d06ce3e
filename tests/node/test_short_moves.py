"""Waits that a planned move does without: nobody is asked where the answer tells enough, a client is sent at once to a
node that took one like it just now, and has its CONNACK before its session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect, Publish, Will
from node.joined_nodes import Town
from node.test_barriers import absorb, hold_back
from node.test_clients_move import row
from sterna.migration import messages
from sterna.migration.departure import Departure
from sterna.migration.messages import MigSync, MigTo, MigToAck
from sterna.migration.move_manager import MoveManager
from sterna.migration.planned_moves import TAKEN_LATELY_S
from sterna.migration.tables import DepartureState
from sterna.node.node_move_host import NodeMoveHost
from sterna.vocabulary.errors import MigrationError
from sterna.vocabulary.identity import VersionVector


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nodes that have asked all others how far their messages have come."""
    nodes: list[str] = []
    original = NodeMoveHost.when_answered

    def when_answered(host: NodeMoveHost, action: Callable[[VersionVector], None]) -> None:
        nodes.append(host.node)
        original(host, action)

    monkeypatch.setattr(NodeMoveHost, "when_answered", when_answered)
    return nodes


def held(monkeypatch: pytest.MonkeyPatch, kind: type, client: bytes = b"") -> Callable[[], None]:
    """Messages of this kind, about this client, wait on their way until the answer is called."""
    original = MoveManager.directed_came
    waiting: list[tuple[MoveManager, str, bytes]] = []
    is_held = True

    def directed_came(moving: MoveManager, source: str, body: bytes) -> None:
        message = messages.decode(body)
        if is_held and isinstance(message, kind) and getattr(message, "client", b"").startswith(client):
            waiting.append((moving, source, body))
        else:
            original(moving, source, body)

    def release() -> None:
        nonlocal is_held
        is_held = False
        for one in waiting:
            original(*one)

    monkeypatch.setattr(MoveManager, "directed_came", directed_came)
    return release


def move(town: Town, client: bytes = b"c") -> None:
    town["A"].network.moving.plans.move(client, "C")


def test_nobody_is_asked_where_all_is_heard(strategy: str, asked: list[str]) -> None:
    town = row(strategy, "ABCDE")
    town["A"].resume("c").subscribe("t", 1)
    publishers = [town[name].join(f"p{name}") for name in "ABCDE"]
    asked.clear()
    move(town)
    town.pass_time(0.5)
    for number, publisher in enumerate(publishers):
        publisher.publish("t", b"%d" % number, 1)
    assert sorted(town["C"].resume("c").payloads()) == [b"0", b"1", b"2", b"3", b"4"]
    assert asked == []


@pytest.mark.parametrize("topic_filter", ["$share/g/t", "$AVG/t"])
def test_all_are_asked_about_what_is_not_only_passed_on(topic_filter: str, asked: list[str]) -> None:
    town = row("subscription-flooding")
    town["A"].resume("c").subscribe(topic_filter, 1)
    asked.clear()
    move(town)
    town.pass_time(0.5)
    assert asked == ["C"]


def _moved_while_behind(strategy: str) -> list[bytes]:
    """The old node has yet to read what the new one never heard, because nobody there wanted it."""
    town = Town("ABCD", strategy)
    town.connect("AB", "BC", "BD")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    publisher = town["D"].join("p")
    town.cut("A", "B")
    release = hold_back(town, "A")
    publisher.publish("t", b"1", 1)
    publisher.publish("t", b"2", 1)
    town.connect("AB")
    move(town)
    town.pass_time(0.5)
    there = town["C"].dial()
    there.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(0.5)
    release()
    town.pass_time(2)
    publisher.publish("t", b"3", 1)
    return absorb(client) + absorb(there)


def test_a_node_that_has_not_heard_all_has_everybody_asked(strategy: str) -> None:
    assert {*_moved_while_behind(strategy)} == {b"1", b"2", b"3"}


def test_without_that_messages_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Departure, "_has_all_of", lambda departure, heard: True)
    assert b"1" not in _moved_while_behind("subscription-flooding")


# -- a client that is sent at once --


def moved_one(town: Town) -> None:
    """A client has gone from A to C just now."""
    town["A"].resume("first").subscribe("t", 1)
    move(town, b"first")
    town.pass_time(0.05)
    town["C"].resume("first")
    town.settle()


def test_a_client_is_sent_at_once_to_a_node_that_took_one_just_now(monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding")
    moved_one(town)
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    release = held(monkeypatch, MigToAck)
    move(town)
    town.settle()
    assert client.wire.closed, "before anybody has answered"
    town["B"].join("p").publish("t", b"1", 1)
    release()
    assert town["C"].resume("c").payloads() == [b"1"]
    assert b"c" not in town["A"].broker.sessions


def test_nothing_is_said_twice_about_a_client_that_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before the offer does, which meets the question about it on its way."""
    town = row("subscription-flooding")
    moved_one(town)
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    said: list[str] = []
    original = MoveManager.directed_came

    def directed_came(moving: MoveManager, source: str, body: bytes) -> None:
        said.append(type(messages.decode(body)).__name__)
        original(moving, source, body)

    monkeypatch.setattr(MoveManager, "directed_came", directed_came)
    release = held(monkeypatch, MigTo)
    move(town)
    town.settle()
    there = town["C"].dial()
    there.send(Connect("c", False, properties={"session_expiry": 100}))
    town.settle()
    release()
    town.pass_time(0.1)
    assert isinstance(there.received()[0], Connack)
    assert b"c" in town["C"].broker.sessions
    assert said == ["Pull", "MigTo", "MigToAck", "MigSync", "MigSyncAck", "MigAck"]


@pytest.mark.parametrize("reason", ["never", "another user", "long ago", "slowly", "another way", "it stayed"])
def test_it_is_sent_when_the_node_has_answered_unless_that_is_as_good_as_known(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = row("subscription-flooding", "ABCD")
    release = held(monkeypatch, MigToAck) if reason == "slowly" else None
    if reason == "slowly":
        town["A"].resume("first").subscribe("t", 1)
        move(town, b"first")
        town.pass_time(town.migration.drain_s + 0.1)
        assert release is not None
        release()
        town["C"].resume("first")
    elif reason != "never":
        moved_one(town)
    if reason == "long ago":
        town.pass_time(TAKEN_LATELY_S + 1)
    elif reason == "another way":
        town.cut("C", "D")
        town.connect("CD")
    elif reason == "it stayed":
        town["A"].resume("second").subscribe("t", 1)
        move(town, b"second")
        town.pass_time(0.1)
        town["A"].resume("second")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    if reason == "another user":
        town["A"].session("c").user = "somebody"
    held(monkeypatch, MigTo)
    move(town)
    town.settle()
    assert town["A"].network.moving.departures[b"c"].state is DepartureState.OFFERED
    assert not client.wire.closed


@pytest.mark.parametrize(("later_s", "at_once"), [(0.0, True), (TAKEN_LATELY_S + 1, False)])
def test_a_slow_answer_among_many_does_not_send_those_after_it_the_longer_way(
    later_s: float, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a quick one of long ago no longer counts."""
    town = row("subscription-flooding")
    for client in ("first", "second"):
        town["A"].resume(client).subscribe("t", 1)
    release = held(monkeypatch, MigToAck, b"second")
    move(town, b"first")
    if later_s:
        town.pass_time(later_s)
    move(town, b"second")
    town.settle()
    town["C"].resume("first")
    town.pass_time(town.migration.drain_s + 0.1)
    release()
    town["C"].resume("second")
    town["A"].resume("c").subscribe("t", 1)
    held(monkeypatch, MigTo)
    move(town)
    town.settle()
    state = town["A"].network.moving.departures[b"c"].state
    assert state is (DepartureState.CALLED if at_once else DepartureState.OFFERED)


def test_a_client_that_was_sent_at_once_and_is_refused_is_served_where_it_was() -> None:
    town = row("subscription-flooding")
    moved_one(town)
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town["C"].network.moving.plans.evacuate(1.0)
    town["A"].network.router.paths.known["C"]  # it has not heard of that yet
    town["A"].network.moving.depart(town["A"].session("c"), "C", 99, by_plan=True)
    town.settle()
    assert client.wire.closed
    town["B"].join("p").publish("t", b"1", 1)
    assert town["A"].resume("c").payloads() == [b"1"]
    assert town["A"].network.moving.departures == {}


# -- a client that is let in before its session --


def greeted(town: Town, version: int = 5, will: Will | None = None) -> Client:
    """A client that has come to C, where its session is not yet."""
    client = town["A"].resume("c", version, will=will)
    client.subscribe("t", 1)
    move(town)
    town.pass_time(0.1)
    assert client.wire.closed
    there = town["C"].dial(version)
    there.send(Connect("c", False, will=will, properties={"session_expiry": 100} if version == 5 else {}))
    town.settle()
    return there


@pytest.mark.parametrize("version", [4, 5])
def test_it_is_let_in_before_its_session_is_there(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding")
    release = held(monkeypatch, MigSync)
    there = greeted(town, version)
    (connack,) = there.received()
    assert isinstance(connack, Connack)
    assert connack.session_present
    listener = town["B"].join("listener")
    listener.subscribe("u", 1)
    there.send(Publish("u", b"2", qos=1, packet_id=7))
    town["B"].join("p").publish("t", b"1", 1)
    town.settle()
    assert there.received() == []
    assert listener.payloads() == []
    release()
    town.pass_time(0.1)
    came = there.received()
    assert [type(packet).__name__ for packet in came].count("Connack") == 0
    assert [packet.payload for packet in came if isinstance(packet, Publish)] == [b"1"]
    assert listener.payloads() == [b"2"]


def test_it_is_not_moved_on_before_its_session_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding")
    release = held(monkeypatch, MigSync)
    greeted(town)
    plans = town["C"].network.moving.plans
    with pytest.raises(MigrationError, match="on its way already"):
        plans.move(b"c", "A")
    release()
    town.settle()
    assert plans.move(b"c", "A") == "C"


def test_if_its_session_does_not_come_its_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding")
    held(monkeypatch, MigSync)
    there = greeted(town)
    assert isinstance(there.received()[0], Connack)
    town.crash("A")
    town.pass_time(town.migration.patience_s + 6)
    assert there.wire.closed
    assert there.received() == [], "no second CONNACK"


def test_a_client_with_a_will_waits_for_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is to hear if it vanishes, and only its session knows of whom and how."""
    town = row("subscription-flooding")
    held(monkeypatch, MigSync)
    there = greeted(town, will=Will("gone", b"!", 0))
    assert there.received() == []


def test_a_client_of_another_user_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    town = row("subscription-flooding")
    town["A"].resume("c").subscribe("t", 1)
    town["A"].session("c").user = "somebody"
    held(monkeypatch, MigTo)
    move(town)
    town.pass_time(0.1)
    there = town["C"].dial()
    there.send(Connect("c", False, properties={"session_expiry": 100}))
    town.settle()
    assert not any(isinstance(one, Connack) and one.session_present for one in there.received())
