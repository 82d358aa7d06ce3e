"""Moves that somebody ordered: what cannot be is said, and a node that is being emptied is left alone by the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.packets import Connack, Connect
from node.test_clients_move import row
from sterna.broker.session.session import Session
from sterna.broker.transfer import session_transfer
from sterna.migration.messages import Message, MigToAck
from sterna.mqtt import gateway_packets
from sterna.mqtt.gateway_packets import GatewayHello
from sterna.node.node_move_host import NodeMoveHost
from sterna.vocabulary.errors import MigrationError
from sterna.vocabulary.versions import Versions


def test_the_log_says_who_went_where_and_who_was_not_let_in() -> None:
    town = row("subscription-flooding")
    town["A"].resume("c")
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    town["C"].resume("c")
    assert ("session moved", {"client": "c", "to": "C"}) in town["A"].reports
    town["B"].network.moving.plans.evacuate(1.0)
    town["B"].dial(4).send(Connect("old", False))
    town.settle()
    (fields,) = (fields for event, fields in town["B"].reports if event == "connection failed")
    assert (fields["client"], fields["reason"]) == ("old", "this node is being emptied")


def test_nobody_is_sent_to_a_node_that_is_being_emptied_too() -> None:
    town = row("subscription-flooding", "ABCD")
    for number in range(8):
        town["A"].resume(f"c{number}", gateway=True)
    for name in "ABC":
        town[name].network.moving.plans.evacuate(100.0)
        town.pass_time(0.1)
    town.pass_time(2)
    evacuation = town["A"].network.moving.plans.evacuation
    assert evacuation is not None
    assert (evacuation.moved, evacuation.failed) == (8, 0)
    assert len(town["D"].broker.sessions) == 8
    for name in "ABC":
        gateway = town[name].dial()
        gateway.send(gateway_packets.encode(GatewayHello("g", gateway_packets.VERSION, "")), Connect("other", False))
        town.settle()
        assert gateway.take(Connack).properties["server_reference"] == "D:1883"
    plans = town["D"].network.moving.plans
    with pytest.raises(MigrationError, match="node B is being emptied"):
        plans.move(b"c0", "B")
    with pytest.raises(MigrationError, match="no other node that can be reached and takes clients"):
        plans.evacuate(100.0)
    town["B"].network.moving.plans.stay()
    town.pass_time(0.1)
    assert plans.move(b"c0", "B") == "D"


def test_sessions_that_the_other_node_does_not_take_are_offered_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> Session:
        raise ValueError("a subscription that makes no sense")

    town = row("subscription-flooding", "AB")
    town["A"].resume("c", gateway=True)
    with monkeypatch.context() as patch:
        patch.setattr(session_transfer, "begin_arrival", refuse)
        evacuation = town["A"].network.moving.plans.evacuate(100.0)
        town.pass_time(60)
        assert 5 <= evacuation.failed <= 8
    town.pass_time(40)
    assert (evacuation.moved, evacuation.waiting) == (1, {})


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_comes_back_to_the_node_that_was_emptied_of_it_is_served_there(version: int) -> None:
    """It has been sent away once: it knows no other node."""
    town = row("subscription-flooding")
    town["A"].resume("c", version).subscribe("t", 1)
    evacuation = town["A"].network.moving.plans.evacuate(100.0)
    town.pass_time(1)
    town["B"].join("p").publish("t", b"1", 1)
    again = town["A"].resume("c", version)
    assert again.connack.session_present
    assert again.payloads() == [b"1"]
    town.pass_time(2)
    assert not again.wire.closed, "it is not moved again while it is connected"
    assert list(evacuation.staying) == [b"c"]
    again.vanish()
    town.pass_time(1)
    assert not town["A"].broker.sessions, "it is when it has gone"
    assert not evacuation.staying


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("client_id", ["c", "never met", ""])
def test_a_client_that_comes_to_a_node_that_is_emptied_is_closed_once_and_then_served(
    version: int, client_id: str
) -> None:
    """Without a CONNACK: if it has a list of servers it tries another one; when it comes again it has none."""
    town = row("subscription-flooding")
    if client_id == "c":
        town["A"].resume("c", version).vanish()
    plans = town["A"].network.moving.plans
    evacuation = plans.evacuate(100.0)
    town.pass_time(1)
    assert not town["A"].broker.sessions
    first = town["A"].dial(version)
    first.send(Connect(client_id, not client_id))
    town.pass_time(1)
    assert first.wire.closed
    assert first.received() == []
    again = town["A"].join(client_id, version, clean=not client_id)
    assert again.connack.session_present == (client_id == "c")
    town.pass_time(2)
    assert not again.wire.closed, "it is not moved again while it is connected"
    assert len(evacuation.staying) == 1


def test_a_client_that_takes_over_its_own_connection_at_a_node_that_is_emptied_stays() -> None:
    town = row("subscription-flooding")
    plans = town["A"].network.moving.plans
    plans.evacuate(100.0)
    town["A"].dial().send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(1)
    before = town["A"].resume("c")
    town.pass_time(1)
    after = town["A"].resume("c")
    town.pass_time(2)
    assert before.wire.closed
    assert not after.wire.closed


def test_a_node_that_is_started_again_empty_still_says_so() -> None:
    town = row("subscription-flooding")
    town["B"].network.moving.plans.evacuate(100.0)
    town.pass_time(1)
    town.crash("B")
    town.connect("AB", "BC")
    assert town["A"].network.router.paths.open_origins == ["C"]


def test_a_node_that_has_no_room_says_so() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    broker = town["C"].broker
    broker.limits = replace(broker.limits, sessions=0)
    plans = town["A"].network.moving.plans
    plans.move(b"c", "C")
    town.pass_time(1)
    assert [(one.client, one.target, one.reason) for one in plans.not_moved] == [
        (b"c", "C", "it has as many sessions as it may")
    ]
    assert not client.wire.closed


@pytest.mark.parametrize("is_earlier", [False, True])
def test_an_owner_of_an_earlier_release_is_answered_when_all_nodes_have_been_asked(
    monkeypatch: pytest.MonkeyPatch, is_earlier: bool
) -> None:
    """It would take an answer for which nobody was asked for that of all."""
    town = row("subscription-flooding")
    town["A"].resume("c").subscribe("t", 1)
    if is_earlier:
        with monkeypatch.context() as earlier:
            earlier.setattr("sterna.vocabulary.versions.LINK", Versions(12, 12))
            town["A"].network.router.shares_changed()  # A announces itself, as a node of that release would
            town.pass_time(1)
    words: list[MigToAck] = []
    sent = NodeMoveHost.send

    def listen(host: NodeMoveHost, node: str, word: Message) -> None:
        if isinstance(word, MigToAck):
            words.append(word)
        sent(host, node, word)

    monkeypatch.setattr(NodeMoveHost, "send", listen)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    assert [word.is_asked for word in words[:1]] == [is_earlier]
