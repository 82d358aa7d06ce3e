"""Clients that turn up at another node find their session there: subscriptions, what waits, what is in flight."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect, Disconnect, Pubcomp, Publish, Pubrec, Pubrel, Will
from node.faulty_nodes import FaultyTown
from node.joined_nodes import Town
from sterna.migration.messages import Item, MigSync, MigSyncAck, MigToAck
from sterna.migration.restart_grace import MEET_S
from sterna.migration.settings import MigrationSettings
from sterna.mqtt import gateway_packets
from sterna.vocabulary.errors import MigrationError

REFERENCES = MigrationSettings(server_references=True)


def row(strategy: str, names: str = "ABC", migration: MigrationSettings | None = None) -> Town:
    town = Town(names, strategy, migration)
    town.connect(*(one + other for one, other in pairwise(names)))
    return town


def test_a_session_follows_its_client_with_what_waits_for_it(strategy: str) -> None:
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe("t/#", 1)
    client.vanish()
    other = town["B"].join("p")
    for number in range(3):
        assert other.publish("t/1", b"%d" % number, 1) == 0
    client = town["C"].resume("c")
    assert client.connack.session_present
    assert client.payloads() == [b"0", b"1", b"2"]
    assert b"c" not in town["A"].broker.sessions
    assert other.publish("t/1", b"3", 1) == 0
    assert client.payloads() == [b"3"]


def test_what_is_in_flight_goes_on_where_it_was(strategy: str) -> None:
    """QoS 2 after PUBREC: only the identifier is left, and it must be released at the new node."""
    town = row(strategy)
    client = town["A"].resume("c", receive_maximum=3)
    client.subscribe("t", 2)
    publisher = town["B"].join("p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, 2)
    first, second, third = client.messages()
    client.send(Pubrec(first.packet_id))
    town.settle()
    assert client.take(Pubrel).packet_id == first.packet_id
    client.vanish()
    client = town["C"].resume("c", receive_maximum=3)
    released, *again = client.received()
    assert released == Pubrel(first.packet_id)
    assert [(m.packet_id, m.payload, m.dup) for m in again if isinstance(m, Publish)] == [
        (second.packet_id, b"1", True),
        (third.packet_id, b"2", True),
    ]
    (answer,) = client.say(Pubcomp(first.packet_id))
    assert isinstance(answer, Publish)
    assert answer.payload == b"3"


def test_a_publisher_that_moves_is_recognised_by_its_packet_identifiers(strategy: str) -> None:
    town = row(strategy)
    reader = town["B"].join("r")
    reader.subscribe("t", 2)
    publisher = town["A"].resume("p")
    publisher.send(Publish("t", b"once", 2, packet_id=7))
    town.settle()
    publisher.vanish()
    publisher = town["C"].resume("p")
    publisher.send(Publish("t", b"once", 2, packet_id=7, dup=True))
    town.settle()
    assert publisher.take(Pubrec).packet_id == 7
    assert [m.payload for m in reader.messages()] == [b"once"]


def test_the_old_connection_is_told_that_it_was_taken_over(strategy: str) -> None:
    town = row(strategy)
    old = town["A"].resume("c")
    new = town["C"].resume("c")
    assert new.connack.session_present
    assert old.farewell() == 0x8E


def test_so_is_a_client_whose_session_nobody_keeps() -> None:
    town = row("subscription-flooding")
    old = town["A"].join("c")
    new = town["C"].join("c")
    town.pass_time(1)
    assert old.farewell() == 0x8E
    assert not new.wire.closed


def test_a_clean_start_ends_the_session_wherever_it_is(strategy: str) -> None:
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town["B"].join("p").publish("t", b"1", 1)
    client = town["C"].join("c")
    assert not client.connack.session_present
    town.pass_time(1)
    assert client.payloads() == []
    assert b"c" not in town["A"].broker.sessions


def test_a_session_belongs_to_its_user_at_every_node() -> None:
    town = row("subscription-flooding")
    town["A"].resume("c").vanish()
    town["A"].session("c").user = "one"
    other = town["C"].dial()
    other.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(1)
    assert other.farewell() == 0x87
    assert b"c" in town["A"].broker.sessions


def test_what_waits_survives_a_crash_of_the_new_node(strategy: str) -> None:
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    publisher = town["B"].join("p")
    publisher.publish("t", b"1", 1)
    client = town["C"].resume("c", receive_maximum=1)
    publisher.publish("t", b"2", 1)
    town.crash("C")
    town.connect("BC")
    client = town["C"].resume("c")
    assert client.connack.session_present
    assert client.payloads() == [b"1", b"2"]


def test_a_member_of_a_share_takes_its_part_along(strategy: str) -> None:
    town = row(strategy)
    member = town["A"].resume("c")
    member.subscribe("$share/g/t", 1)
    member.vanish()
    publisher = town["B"].join("p")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 1)
    member = town["C"].resume("c")
    town.pass_time(2)
    assert sorted(member.payloads()) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_whose_node_is_away_for_a_moment_waits_and_loses_nothing(version: int) -> None:
    """It is let in as soon as its node is found again."""
    town = row("subscription-flooding", migration=MigrationSettings(owner_absent_s=60))
    client = town["A"].resume("c", version)
    client.subscribe("t", 1)
    client.vanish()
    town.cut("A", "B")
    again = town["C"].dial(version)
    again.send(_resumed(version))
    town["B"].join("p").publish("t", b"1", 1)
    town.pass_time(town["C"].network.moving.settings.patience_s - 1)
    assert not again.received()
    town.connect("AB")  # a second passes
    assert again.take(Connack).session_present
    assert again.payloads() == [b"1"]


def test_a_session_that_was_asked_for_in_vain_is_asked_for_again_when_its_node_is_found() -> None:
    """What is said again is said after pauses that double: 0.5, 1, 2, 4 s."""
    town = row("subscription-flooding", "AB")
    town["A"].resume("c").vanish()
    for pipe in town.pipes:
        pipe.write = lambda data: None  # type: ignore[method-assign]
    client = town["B"].dial()
    client.send(_resumed(5))
    town.pass_time(0.1)
    town.cut("A", "B")  # three seconds pass
    town.pass_time(0.6)
    assert not client.received()
    town.connect("AB")  # a second passes
    assert client.take(Connack).session_present


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_has_waited_for_too_long_is_closed_without_a_connack(version: int) -> None:
    """Some libraries take a CONNACK that refuses them for final; and `connect_s` is for those who say nothing."""
    town = row("subscription-flooding", migration=MigrationSettings(owner_absent_s=60))
    broker, moving = town["C"].broker, town["C"].network.moving
    broker.limits = replace(broker.limits, connect_s=moving.settings.patience_s / 2)
    town["A"].resume("c", version).vanish()
    town.cut("A", "B")
    client = town["C"].dial(version)
    client.send(_resumed(version))
    town.pass_time(moving.settings.patience_s - 0.1)
    assert not client.wire.closed
    town.pass_time(0.2)
    assert client.wire.closed
    assert client.received() == []
    (fields,) = (fields for event, fields in town["C"].reports if event == "connection failed")
    assert fields["reason"] == "its session is on node A, which cannot be reached"


def test_a_client_that_may_have_a_new_session_soon_waits_for_that() -> None:
    town = row("subscription-flooding", migration=MigrationSettings(owner_absent_s=20, patience_s=10))
    town["A"].resume("c").vanish()
    town.cut("A", "B")  # a second ago
    town.pass_time(5)
    client = town["C"].dial(5)
    client.send(_resumed(5))
    town.pass_time(12)
    assert not client.wire.closed
    assert not client.received()
    town.pass_time(3)
    assert not client.take(Connack).session_present
    assert town["C"].network.moving.counters.new_sessions == 1


def _resumed(version: int) -> Connect:
    return Connect("c", False, properties={"session_expiry": 100} if version == 5 else {})


def test_a_node_that_was_started_again_first_hears_whose_clients_are_whose() -> None:
    """The session began while it was away."""
    town = FaultyTown("AB")
    town.connect("AB")
    town["B"].resume("d")
    town.kill("B")
    town["A"].resume("c").subscribe("t", 1)
    town.start("B")
    client, clean = town["B"].dial(), town["B"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    clean.send(Connect("e", True))
    town.pass_time(MEET_S / 2)
    assert client.received() == []
    assert clean.take(Connack).code == 0, "it wants nothing of what was"
    town.connect("AB")
    town.pass_time(1)
    assert client.take(Connack).session_present


def test_but_not_for_ever() -> None:
    town = FaultyTown("AB")
    town["B"].resume("d")
    town.kill("B")
    town.start("B")
    client = town["B"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(MEET_S / 2)
    assert client.received() == []
    town.pass_time(MEET_S)
    assert client.take(Connack).code == 0


def test_an_owner_that_cannot_be_reached_does_not_hold_its_clients_up_for_ever() -> None:
    """It finds out when it is back: the later session counts."""
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town.cut("A", "B")
    town.pass_time(60)
    other = town["C"].resume("c")
    assert not other.connack.session_present
    assert town["C"].network.moving.counters.new_sessions == 1
    town.connect("AB")
    town.pass_time(2)
    assert client.farewell() == 0x8E
    assert b"c" not in town["A"].broker.sessions
    assert not other.wire.closed


def test_old_news_of_a_session_does_not_bring_it_back() -> None:
    town = row("subscription-flooding")
    town["A"].resume("c").leave(session_expiry=0)
    town.pass_time(1)
    for name in "ABC":
        assert town[name].network.moving.directory.get(b"c")[0] == ""
    assert not town["C"].resume("c").connack.session_present


@pytest.mark.parametrize("version", [4, 5])
def test_a_planned_move_closes_the_connection_and_the_session_follows_the_client(strategy: str, version: int) -> None:
    """Without a DISCONNECT: clients made with libmosquitto would end, and few follow a Server Reference."""
    town = row(strategy)
    client = town["A"].resume("c", version, will=Will("gone", b"gone for good", 1))
    client.subscribe("t", 1)
    heirs = town["B"].join("w")
    heirs.subscribe("gone", 1)
    assert town["A"].network.moving.plans.move(b"c", "C") == "A"
    town.pass_time(1)
    assert client.wire.closed
    assert client.received() == []
    publisher = town["B"].join("p")
    publisher.publish("t", b"1", 1)
    assert b"c" in town["A"].broker.sessions, "it is served there until its client has come to the new node"
    client = town["C"].resume("c", version, will=Will("gone", b"gone for good", 1))
    assert client.connack.session_present
    assert client.payloads() == [b"1"]
    assert town["A"].network.moving.counters.departed == 1
    took = town["A"].broker.counters.moves_took
    assert sum(took.counts) == 1
    assert took.sum > 0
    the_will_is_said_when_it_goes_and_not_before(town, client, heirs)


def the_will_is_said_when_it_goes_and_not_before(town: Town, client: Client, heirs: Client) -> None:
    town.pass_time(10)
    assert heirs.payloads() == []
    client.vanish()
    town.pass_time(1)
    assert heirs.payloads() == [b"gone for good"]


def test_a_planned_move_sends_an_mqtt_5_client_to_its_new_node_where_that_is_wanted(strategy: str) -> None:
    town = row(strategy, migration=REFERENCES)
    client = town["A"].resume("c", will=Will("gone", b"gone for good", 1))
    client.subscribe("t", 1)
    heirs = town["B"].join("w")
    heirs.subscribe("gone", 1)
    assert town["A"].network.moving.plans.move(b"c", "C") == "A"
    town.pass_time(1)
    (farewell,) = client.received()
    assert isinstance(farewell, Disconnect)
    assert (farewell.code, farewell.properties["server_reference"]) == (0x9C, "C:1883")
    publisher = town["B"].join("p")
    publisher.publish("t", b"1", 1)
    client = town["C"].resume("c", will=Will("gone", b"gone for good", 1))
    assert client.connack.session_present
    assert client.payloads() == [b"1"]
    assert town["A"].network.moving.counters.departed == 1
    the_will_is_said_when_it_goes_and_not_before(town, client, heirs)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("references", [False, True])
def test_a_client_that_comes_back_to_the_node_it_was_moved_from_is_served_there(version: int, references: bool) -> None:
    """It does not follow references, or knows no other node: a refusal would keep it out, or end it."""
    town = row("subscription-flooding", migration=MigrationSettings(server_references=references))
    town["A"].resume("c", version).subscribe("t", 1)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    town["B"].join("p").publish("t", b"1", 1)
    client = town["A"].resume("c", version)
    assert client.connack.session_present
    assert client.payloads() == [b"1"]
    town.pass_time(1)
    assert b"c" not in town["C"].broker.sessions
    counters = town["A"].network.moving.counters
    assert (counters.departed, counters.rolled_back, counters.came_back) == (0, 1, 1)


def test_an_order_reaches_the_node_that_owns_the_session() -> None:
    town = row("subscription-flooding")
    town["A"].resume("c").subscribe("t", 1)
    assert town["C"].network.moving.plans.move(b"c", "B") == "A"
    town.pass_time(1)
    assert town["B"].resume("c").connack.session_present
    assert b"c" not in town["A"].broker.sessions


@pytest.mark.parametrize(("client", "to"), [("c", "A"), ("c", "Z"), ("nobody", "B"), ("clean", "B")])
def test_what_cannot_be_moved_is_said_at_once(client: str, to: str) -> None:
    town = row("subscription-flooding")
    town["A"].resume("c")
    town["A"].join("clean")
    with pytest.raises(MigrationError):
        town["A"].network.moving.plans.move(client.encode(), to)


def test_a_move_that_cannot_be_is_rolled_back_and_the_client_notices_nothing(strategy: str) -> None:
    town = row(strategy)
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town["C"].network.moving.plans.evacuate(1.0)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    town["B"].join("p").publish("t", b"1", 1)
    assert client.payloads() == [b"1"]
    assert town["A"].network.moving.counters.rolled_back == 1
    assert b"c" not in town["C"].broker.sessions


def test_an_evacuated_node_is_empty_and_stays_so() -> None:
    town = row("subscription-flooding")
    clients = [town["B"].resume(f"c{number}") for number in range(5)]
    clean = town["B"].join("clean")
    town["B"].network.moving.plans.evacuate(100.0)
    town.pass_time(3)
    assert all(client.wire.closed and client.received() == [] for client in (*clients, clean))
    assert town["A"].resume("c4").connack.session_present
    assert len(town["B"].broker.sessions) == 4, "the others have not come anywhere yet"
    town.pass_time(11)
    assert not town["B"].broker.sessions
    again = town["B"].dial()
    again.send(Connect("other", False))
    town.settle()
    assert again.wire.closed
    assert again.received() == []
    town["B"].network.moving.plans.stay()
    assert town["B"].resume("c0", 4).connack.session_present


def test_an_evacuation_may_be_ordered_at_any_node_and_outlives_the_one_it_empties() -> None:
    town = row("subscription-flooding", "AB")
    town["A"].resume("c").subscribe("t", 1)
    town["B"].network.moving.plans.evacuate_elsewhere("A", 20.0, stops=False)
    town.pass_time(2)
    assert b"c" in town["B"].broker.sessions
    town.crash("A")
    town.connect("AB")
    evacuation = town["A"].network.moving.plans.evacuation
    assert evacuation is not None
    assert evacuation.rate == 20.0
    town["B"].network.moving.plans.evacuate_elsewhere("A", None, stops=True)
    town.pass_time(1)
    assert town["A"].resume("c").connack.session_present
    town.crash("A")
    assert town["A"].network.moving.plans.evacuation is None
    with pytest.raises(MigrationError):
        town["B"].network.moving.plans.evacuate_elsewhere("Z", None, stops=False)


@pytest.mark.parametrize("version", [4, 5])
def test_a_gateway_is_told_to_prepare_and_then_where_to_go(version: int) -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c", version, gateway=True)
    client.subscribe("t", 0)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    assert client.received() == []
    assert client.words == [gateway_packets.Prepare("C:1883"), gateway_packets.Redirect("C:1883")]
    assert client.wire.closed
    publisher = town["B"].join("p")
    publisher.publish("t", b"while it was under way", 0)
    town.settle()
    client = town["C"].resume("c", version, gateway=True)
    assert client.connack.session_present
    assert client.payloads() == [b"while it was under way"]


def test_a_3_1_1_client_behind_a_gateway_hears_why_it_ends() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c", 4, gateway=True)
    town["C"].resume("c")
    assert client.received() == []
    assert client.words == [gateway_packets.Farewell(0x8E)]


def test_whoever_is_no_gateway_may_not_speak_like_one() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.send(gateway_packets.encode(gateway_packets.Drained()))
    assert client.farewell() == 0x82


def test_a_client_that_is_back_at_its_old_session_when_a_cut_heals_goes_on_in_the_new_one() -> None:
    """Both sides of a cut have served the client.  It is disconnected, and hears again that the session is new."""
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town.cut("A", "B")
    town.pass_time(60)
    town["C"].resume("c").vanish()
    town.pass_time(0.1)
    client = town["A"].resume("c")
    assert client.connack.session_present
    town.connect("AB")
    town.pass_time(2)
    assert client.farewell() == 0x8E
    client = town["A"].resume("c")
    assert not client.connack.session_present
    client.subscribe("t", 1)
    town["B"].join("p").publish("t", b"1", 1)
    assert client.payloads() == [b"1"]
    assert b"c" not in town["C"].broker.sessions


def test_a_session_that_may_be_lost_with_its_new_node_does_not_hold_its_client_up() -> None:
    """The new node has all of it, and is gone before it could say so."""
    town = row("subscription-flooding")
    client = town["A"].resume("c", gateway=True)
    client.subscribe("t", 1)
    moving = town["C"].network.moving
    send = moving.host.send
    moving.host.send = lambda node, message: (  # type: ignore[method-assign]
        None if isinstance(message, MigSyncAck) else send(node, message)
    )
    moving.news.learn = lambda *news, **how: None  # type: ignore[method-assign]
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(1)
    assert town["A"].session("c").leaving is not None, "in doubt"
    town.cut("B", "C")
    town.pass_time(60)
    client = town["A"].resume("c")
    assert not client.connack.session_present
    assert town["A"].network.moving.counters.new_sessions == 1


def test_a_session_with_more_subscriptions_than_a_frame_holds_is_moved_in_parts() -> None:
    town = row("subscription-flooding")
    client = town["A"].resume("c")
    for number in range(600):
        client.subscribe(f"{number}/" + "x" * 4000, 1)
    town["A"].network.moving.plans.move(b"c", "C")
    town.pass_time(2)
    assert client.wire.closed
    assert town["C"].resume("c").connack.session_present
    assert len(town["C"].session("c").subscriptions) == 600
    assert town["A"].network.moving.counters.too_big == 0


def test_what_no_frame_holds_breaks_no_link() -> None:
    town = row("subscription-flooding")
    moving = town["A"].network.moving
    moving.host.send("C", MigSync(b"c", 1, 0, [Item(0, [], bytes(3_000_000))]))
    town.pass_time(1)
    assert moving.counters.too_big == 1
    assert "B" in town["A"].network.links.links


def test_who_came_first_does_not_take_the_session_from_who_came_later() -> None:
    """A connection at B waits for its session, and nobody is behind it any more: its client is at A again."""
    town = row("subscription-flooding")
    town["A"].resume("c").subscribe("$SUM/t/+", 1)
    moving = town["B"].network.moving
    send = moving.host.send
    moving.host.send = lambda node, message: (  # type: ignore[method-assign]
        None if isinstance(message, MigToAck) else send(node, message)
    )
    ghost = town["B"].dial()
    ghost.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(0.1)
    client = town["A"].resume("c")
    town.pass_time(5)
    assert not client.wire.closed
    assert ghost.wire.closed
    assert ghost.received() == []
