"""Conversations through a gateway: every packet gets through as it is, and a change of nodes shows nowhere."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from sterna.gateway.servers import Servers
from sterna.gateway.settings import Patience
from sterna.mqtt import gateway_packets, packets
from sterna.mqtt.gateway_packets import Cancel, Farewell, GatewayStopped, Prepare, Redirect
from sterna.mqtt.packets import packet
from sterna.simulation.client_packets import LastWords

from .model_client import ModelClient
from .town import Town

versions = pytest.mark.parametrize("version", [4, 5])


def connected(town: Town, version: int = 5, name: str = "c", **wishes: Any) -> ModelClient:
    client = ModelClient(town, version, name)
    client.connect(**wishes)
    assert client.heard[0][0] == 0x20
    assert client.heard[0][1][1] == 0
    return client


@versions
def test_every_kind_of_packet_passes(version: int) -> None:
    town = Town()
    client = connected(town, version)
    client.subscribe(b"up")
    client.talk()
    for qos in (0, 1, 2):
        client.publish(b"m%d" % qos, qos)
    client.talk()
    assert town.network.accepted == [(b"up", b"m%d" % qos, qos) for qos in (0, 1, 2)]
    assert client.received == [(b"m%d" % qos, qos) for qos in (0, 1, 2)]
    client.unsubscribe(b"up")
    client.talk()
    assert not client.pending
    client.send(b"\xc0\x00")
    assert client.hear() == [(0xD0, b"")]


@versions
def test_a_lost_node_is_not_noticed(version: int) -> None:
    town = Town()
    client = connected(town, version)
    client.subscribe(b"#")
    client.talk()
    first = town.wire()
    client.publish(b"one", 1)
    client.publish(b"two", 2)
    first.cut()
    client.publish(b"three", 1)
    client.publish(b"four", 0)
    client.talk(2)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one", b"two", b"three", b"four"]
    assert sorted(payload for payload, _ in client.received) == [b"four", b"one", b"three", b"two"]
    assert client.repeated == 0
    assert not client.pending
    assert town.gateway.counters.losses == 1


@versions
def test_what_comes_in_one_piece_with_the_goodbye_arrives(version: int) -> None:
    town = Town()
    client = connected(town, version)
    nothing = b"\x00" if version == 5 else b""
    client.send(b"\x30" + bytes((5 + len(nothing),)) + b"\x00\x02up" + nothing + b"x" + b"\xe0\x00")
    client.talk(1)
    assert town.network.accepted == [(b"up", b"x", 0)]


def test_the_first_word_to_a_node_is_hello_with_the_address_of_the_client() -> None:
    town = Town()
    connected(town)
    (hello,) = town.network.hellos
    assert (hello.gateway, hello.version, hello.address) == ("g", 1, "198.51.100.7:4711")


def test_a_broker_that_knows_no_gateways_is_spoken_to_as_any_client_would() -> None:
    town = Town()
    town.network.knows_gateways = False
    client = connected(town)
    client.publish(b"m", 1)
    client.talk(1)
    assert town.network.accepted == [(b"up", b"m", 1)]
    assert town.dialled == ["a:1", "a:1"]
    connected(town, name="another")
    assert town.dialled[2:] == ["a:1"], "it was remembered"


@versions
@pytest.mark.parametrize("prepared", [True, False])
def test_a_planned_move_takes_a_second_connection_and_loses_nothing(version: int, prepared: bool) -> None:
    town = Town()
    client = connected(town, version)
    client.subscribe(b"#")
    client.talk()
    old = town.wire()
    if prepared:
        old.node.say(Prepare("b:1"))
        town.pass_time(0.1)
        assert [wire.server for wire in town.wires if not wire.over] == ["a:1", "b:1"]
        assert [hello.is_second for hello in town.network.hellos] == [False, True]
    client.publish(b"before", 2)
    old.move(upwards=12)
    town.network.publish(b"x", b"last of the old", 1)
    if prepared:
        assert town.network.hand_over()
    else:
        old.node.say(Redirect("b:1"))
    client.publish(b"meanwhile", 1)
    old.move()
    client.publish(b"and this", 0)
    client.talk(1)
    assert town.wire().server == "b:1"
    assert old.node.heard[-1] == (0, b"\x91\x05"), "DRAINED"
    assert [payload for _, payload, _ in town.network.accepted] == [b"before", b"meanwhile", b"and this"]
    assert client.received[0] == (b"last of the old", 1)
    assert len(client.received) == 4
    assert client.repeated == 0
    assert not client.pending
    assert town.dialled == ["a:1", "b:1"]


def test_a_cancelled_move_leaves_everything_as_it_was() -> None:
    town = Town()
    client = connected(town)
    old = town.wire()
    old.node.say(Prepare("b:1"))
    town.pass_time(0.1)
    old.node.say(Cancel())
    town.pass_time(0.1)
    assert town.wire() is old
    client.publish(b"m", 1)
    client.talk()
    assert len(town.network.accepted) == 1


def test_a_node_that_has_stopped_and_goes_on_gets_what_the_client_said_meanwhile() -> None:
    town = Town()
    client = connected(town)
    old = town.wire()
    old.node.say(Prepare("b:1"))
    town.pass_time(0.1)
    old.node.end.write(gateway_packets.encode(GatewayStopped()))
    old.move()
    for qos in range(3):
        client.publish(b"%d" % qos, qos)
    town.pass_time(0.1)
    assert town.network.accepted == [], "the node would not have read it"
    old.node.say(Cancel())
    client.talk()
    assert [payload for _, payload, _ in town.network.accepted] == [b"0", b"1", b"2"]
    assert not client.pending
    assert [wire.server for wire in town.wires if not wire.over] == ["a:1"]


def test_a_node_that_does_not_take_the_client_changes_nothing_for_it() -> None:
    town = Town()
    client = connected(town)
    old = town.wire()
    town.network.refusal = packets.encode_connack(4, False, 5)
    old.node.say(Prepare("b:1"))
    town.pass_time(0.1)
    second = next(wire for wire in town.wires if wire.server == "b:1")
    assert town.network.second is not None
    second.node.welcome(town.network.second[1])
    town.pass_time(0.1)
    client.publish(b"m", 1)
    client.talk()
    assert town.wire() is old
    assert not client.pending


def test_a_client_that_goes_when_its_session_has_come_says_goodbye_there() -> None:
    """Messages of the old node are still on their way."""
    town = Town()
    client = connected(town, 5, will=LastWords(b"w", b"will", 0, False))
    old = town.wire()
    old.node.say(Prepare("b:1"))
    town.pass_time(0.1)
    assert town.network.hand_over()
    new = next(wire for wire in town.wires if wire.server == "b:1")
    new.move()
    client.send(b"\xe0\x00")
    town.pass_time(1)
    assert town.network.wills == []
    assert new.node.disconnect is not None


def test_a_prepared_connection_that_broke_is_made_again() -> None:
    town = Town()
    client = connected(town)
    old = town.wire()
    old.node.say(Prepare("b:1"))
    town.pass_time(0.1)
    next(wire for wire in town.wires if wire.server == "b:1").cut()
    old.node.say(Redirect("b:1"))
    client.publish(b"m", 1)
    client.talk(1)
    assert town.wire().server == "b:1"
    assert not client.pending


@pytest.mark.parametrize("code", [0x9C, 0x9D])
def test_a_plain_redirection_is_followed_without_the_client(code: int) -> None:
    town = Town()
    client = connected(town)
    town.wire().node.dismiss(code, "c:7 d:8")
    client.publish(b"m", 1)
    client.talk(1)
    assert town.wire().server == "c:7"
    assert not client.pending
    assert not client.end.closing


def _sent_by_disconnect(town: Town) -> None:
    town.wire().node.dismiss(0x9C, "evil:7")


def _sent_by_a_word(town: Town) -> None:
    town.wire().node.say(Prepare("evil:7"))
    town.pass_time(0.1)
    town.wire().node.say(Redirect("evil:7"))


@pytest.mark.parametrize("sent", [_sent_by_disconnect, _sent_by_a_word])
def test_a_password_goes_to_no_server_that_is_not_allowed(sent: Callable[[Town], None]) -> None:
    town = Town(references=("*.example.org",))
    client = connected(town)
    sent(town)
    client.publish(b"m", 1)
    client.talk(2)
    assert set(town.dialled) == {"a:1", "b:1"}
    assert not client.pending, "one of the nodes it knows serves the client"
    assert town.gateway.counters.references_refused >= 1
    reasons = [fields["reason"] for event, fields in town.reports if event.startswith("a node names a server")]
    assert "references" in reasons[0]


def test_nor_when_a_node_refuses_the_client_and_names_one() -> None:
    town = Town(references=())
    reference = b"\x1c" + b"\x00\x06evil:7"
    town.network.refusal = packet(0x20, b"\x00\x9c" + bytes((len(reference),)) + reference)
    client = ModelClient(town)
    client.connect()
    town.pass_time(1)
    assert set(town.dialled) == {"a:1", "b:1"}


@pytest.mark.parametrize(
    ("server", "allowed"),
    [
        ("a:1", True),
        ("A:99", True),
        ("n.example.org:1", True),
        ("N.Example.Org.:1", True),
        ("example.org:1", False),
        ("evilexample.org:1", False),
        ("n.example.org.evil:1", False),
        ("[::1]:5", True),
        ("[::2]:5", False),
        ("10.0.0.1:1", False),
    ],
)
def test_references_are_hosts_of_nodes_or_match_a_pattern(server: str, allowed: bool) -> None:
    servers = Servers(["a:1"], Patience(), Random(1), references=["*.example.org", "[::1]"])
    assert servers.may_follow(server) is allowed


def test_a_refused_connect_with_a_server_reference_is_followed() -> None:
    town = Town()
    reference = b"\x1c" + b"\x00\x03c:7"
    town.network.refusal = packet(0x20, b"\x00\x9c" + bytes((len(reference),)) + reference)
    client = ModelClient(town)
    client.connect()
    assert set(town.dialled[1:]) == {"c:7"}
    town.network.refusal = b""
    client.talk(6)
    assert client.heard[0][1][1] == 0


@versions
def test_a_node_that_has_lost_the_session_is_told_of_the_subscriptions_again(version: int) -> None:
    town = Town()
    client = connected(town, version)
    client.subscribe(b"x", 1)
    client.subscribe(b"y", 2)
    client.subscribe(b"z", 2)
    client.unsubscribe(b"z")
    client.talk()
    client.owed = []
    town.network.publish(b"x", b"unanswered", 1)
    town.network.publish(b"y", b"half way", 2)
    client.talk()
    client.pay()  # PUBACK and PUBREC; PUBREL is owed to the client
    town.wire().cut()
    town.network.sessions.clear()
    town.network.first_id = 1
    client.publish(b"m", 1)
    client.talk(1)
    client.pay()
    client.owed = None
    assert town.network.sessions[b"c"].filters == {b"x": 1, b"y": 2}
    for number in range(20):
        town.network.publish(b"y", b"%d" % number, 2)
    client.talk(1)
    assert client.received == [(b"unanswered", 1), (b"half way", 2), *((b"%d" % n, 2) for n in range(20))]
    assert town.gateway.counters.sessions_lost == 1
    assert not client.pending


@versions
def test_a_session_that_ends_with_its_connection_is_ended_when_the_client_goes(version: int) -> None:
    town = Town()
    client = connected(town, version)
    assert town.network.sessions[b"c"].persistent, "or it could not survive the loss of a node"
    client.send(b"\xe0\x00")
    client.talk(3)
    assert not town.network.sessions or not town.network.sessions[b"c"].filters
    assert not town.gateway.endings
    assert town.network.sessions == {}


@versions
@pytest.mark.parametrize("says_goodbye", [True, False])
@pytest.mark.parametrize("during_an_outage", [True, False])
def test_a_will_is_published_for_those_who_say_no_goodbye(
    version: int, says_goodbye: bool, during_an_outage: bool
) -> None:
    town = Town()
    client = ModelClient(town, version)
    client.connect(will=LastWords(b"w", b"alas", 0))
    if during_an_outage:
        town.wire().cut()
        town.network.wills.clear()
    if says_goodbye:
        client.send(b"\xe0\x00")
    else:
        client.client.lost()
    client.talk(5)
    if not during_an_outage:
        assert town.network.wills == ([] if says_goodbye else [b"alas"])
    assert town.network.sessions == {}
    assert not town.gateway.clients


@versions
def test_a_session_that_is_to_last_lasts(version: int) -> None:
    town = Town()
    client = connected(town, version, persistent=True)
    client.subscribe(b"x")
    client.talk()
    client.client.lost()
    town.pass_time(5)
    town.network.publish(b"x", b"waited", 1)
    again = ModelClient(town, version)
    again.connect(persistent=True)
    assert again.heard[0][1][0] == 1, "session present"
    again.talk()
    assert again.received == [(b"waited", 1)]


@versions
def test_a_clean_start_finds_nothing_of_a_session_that_was_left(version: int) -> None:
    town = Town()
    before = connected(town, version, persistent=True)
    before.subscribe(b"x")
    before.talk()
    before.client.lost()
    town.pass_time(1)
    town.network.publish(b"x", b"of old", 1)
    client = ModelClient(town, version)
    client.connect()
    client.talk(3)
    assert client.heard[0][0] == 0x20
    assert client.heard[0][1][0] == 0
    assert client.received == []
    assert town.network.sessions[b"c"].filters == {}


def test_pings_are_answered_while_there_is_no_node() -> None:
    town = Town()
    client = connected(town)
    town.down = {"a:1", "b:1"}
    town.wire().cut()
    town.pass_time(30)
    client.send(b"\xc0\x00")
    assert client.hear() == [(0xD0, b"")]
    client.publish(b"m", 1)
    town.down = {"a:1"}
    client.talk(10)
    assert town.wire().server == "b:1"
    assert not client.pending


def test_nodes_are_tried_in_turn_and_ever_more_slowly() -> None:
    town = Town(("a:1", "b:1", "c:1"))
    connected(town)
    town.down = {"a:1", "b:1", "c:1"}
    town.dialled.clear()
    town.wire().cut()
    # The client falls silent too, and would be dropped for it.
    town.gateway.clients.copy().pop()._keep_alive_s = 0.0
    town.pass_time(2)
    early = len(town.dialled)
    assert set(town.dialled) == {"a:1", "b:1", "c:1"}
    town.pass_time(60)
    assert len(town.dialled) - early <= 3 * 60 / 2.5 + 3
    assert len(town.dialled) - early >= 3 * 60 / 5 - 3


def test_a_silent_node_is_given_up() -> None:
    town = Town()
    client = connected(town)
    wire = town.wire()
    wire.over = True  # it carries nothing any more, and nobody is told
    client.publish(b"m", 1)
    for _ in range(5):
        client.send(b"\xc0\x00")
        client.talk(5)
    assert town.gateway.counters.losses == 1
    assert town.network.accepted == [(b"up", b"m", 1)]


def test_a_silent_client_is_given_up_and_its_will_published() -> None:
    town = Town()
    client = ModelClient(town)
    client.connect(keep_alive_s=10, will=LastWords(b"w", b"alas", 0))
    town.pass_time(13)
    assert not client.end.closing
    town.pass_time(8)
    assert client.hear()[-1][0] == 0xE0
    assert town.network.wills == [b"alas"]


def test_a_name_is_taken_over_by_the_later_client() -> None:
    town = Town()
    first = connected(town)
    second = connected(town)
    assert first.hear()[-1] == (0xE0, b"\x8e\x00")
    assert first.end.closing
    second.publish(b"m", 1)
    second.talk(3)
    assert not second.pending
    assert len([wire for wire in town.wires if not wire.over]) == 1


@pytest.mark.parametrize("code", [0x8E, 0x87, 0x98])
def test_what_a_node_says_for_good_reaches_the_client(code: int) -> None:
    town = Town()
    client = connected(town)
    town.wire().node.dismiss(code)
    client.talk(2)
    assert client.heard[-1] == (0xE0, bytes((code, 0)))
    assert client.end.closing
    assert len(town.dialled) == 1


def test_a_client_of_3_1_1_whose_name_was_taken_elsewhere_does_not_fight_for_it() -> None:
    town = Town()
    client = connected(town, 4)
    town.wire().node.say(Farewell(0x8E))
    client.talk(2)
    assert client.end.closing
    assert len(town.dialled) == 1


@pytest.mark.parametrize("code", [0x8B, 0x89])
def test_a_node_that_goes_is_left_without_a_word(code: int) -> None:
    town = Town()
    client = connected(town)
    town.wire().node.dismiss(code)
    client.publish(b"m", 1)
    client.talk(2)
    assert not client.pending
    assert not client.end.closing


def test_a_client_that_always_has_something_under_way_outlives_any_number_of_nodes() -> None:
    town = Town()
    client = connected(town)
    for number in range(20):
        client.publish(b"%d" % number, 1)
        town.settle()
        client.publish(b"and %d" % number, 1)
        town.wire().cut()
        client.talk(1)
    assert not client.pending
    assert not client.end.closing


def test_an_exchange_of_proofs_passes_and_cannot_be_repeated_for_the_client() -> None:
    town = Town()
    client = ModelClient(town)
    # Authentication method "M"; the model lets in whoever comes, and we let it ask first.
    body = b"\x00\x04MQTT\x05\x02\x00\x3c\x04\x15\x00\x01M\x00\x01c"
    town.network.refusal = packet(0xF0, b"\x18\x04\x15\x00\x01M")
    client.send(packet(0x10, body))
    town.pass_time(0.01)
    assert bytes(client.end.sent) == packet(0xF0, b"\x18\x04\x15\x00\x01M")
    client.end.sent.clear()
    client.send(packet(0xF0, b"\x18\x04\x15\x00\x01M"))
    wire = town.wire()
    assert bytes(wire.up.sent).endswith(packet(0xF0, b"\x18\x04\x15\x00\x01M"))
    wire.upstream.feed(b"\x20\x03\x00\x00\x00")
    assert client.hear() == [(0x20, client.heard[0][1])]
    wire.cut()
    client.talk(1)
    assert client.heard[-1] == (0xE0, b"\x89\x00")
    assert len(town.dialled) == 1


def test_a_client_that_is_to_go_elsewhere_is_not_brought_back_to_the_same_node() -> None:
    town = Town()
    client = connected(town)
    town.wire().node.dismiss(0x9C)
    client.publish(b"m", 1)
    client.talk(1)
    assert town.wire().server == "b:1"
    assert not client.pending


@versions
def test_who_comes_back_at_once_is_not_cleaned_away_with_its_former_session(version: int) -> None:
    town = Town()
    before = connected(town, version)
    before.subscribe(b"x")
    before.talk()
    before.send(b"\xe0\x00")
    client = ModelClient(town, version)
    client.connect()
    client.talk(3)
    assert client.heard[0][1][:2] == b"\x00\x00"
    client.subscribe(b"y")
    client.talk(3)
    assert not client.end.closing
    assert town.network.sessions[b"c"].filters == {b"y": 2}
    assert len(client.heard) == 2, "CONNACK and SUBACK"
