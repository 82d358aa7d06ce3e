"""A client whose node cannot be reached gets a new session; the old one hands over what waited there, once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from broker.lone_node import Client
from broker.noted import RECORDED, deliveries, records
from conformance.packets import Connack, Connect, Disconnect, Publish
from node.joined_nodes import JoinedNode, Town
from node.test_barriers import absorb
from sterna.broker.beginning import fenced_key, owner_of
from sterna.migration.messages import HandOverAck, HandOverPage, HandOverWanted
from sterna.node.feed_records import RECORD_TABLES
from sterna.node.node_move_host import NodeMoveHost
from sterna.pipeline.audit.subscription_intervals import intervals
from sterna.vocabulary.identity import Stamp

AWAY_S = 15


class NotingTown(Town):
    journal = RECORDED


def row(names: str = "ABC", strategy: str = "subscription-flooding", kind: type[Town] = Town) -> Town:
    town = kind(names, strategy)
    town.connect(*(one + other for one, other in pairwise(names)))
    return town


def new_session(town: Town, qos: int = 2) -> tuple[Client, Client]:
    """The client was at A, which is cut off; it has a new session at C.  And somebody who publishes at A."""
    publisher = town["A"].join("p")
    client = town["A"].resume("c")
    client.subscribe("t/#", qos)
    client.vanish()
    town["B"].join("b").publish("t/1", b"waits at A", qos)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t/#", qos)
    return again, publisher


def left_over(town: Town) -> list[bytes]:
    return [key for node in town.nodes.values() for key in node.broker.sessions if owner_of(key)[1]]


def test_what_waited_at_the_old_node_comes_once_it_is_back(strategy: str) -> None:
    town = row(strategy=strategy)
    client, publisher = new_session(town)
    publisher.publish("t/1", b"published while it was cut off", 2)
    town["B"].join("q").publish("t/2", b"at the other side", 2)
    assert client.payloads() == [b"at the other side"]
    town.connect("AB")
    town.pass_time(5)
    assert sorted(client.payloads()) == [b"published while it was cut off", b"waits at A"]
    assert left_over(town) == []
    counters = town["A"].network.moving.counters
    assert (counters.fenced, counters.not_handed_over, counters.in_flight_dropped) == (1, 0, 0)
    assert town["C"].network.moving.counters.taken_over == 2


def test_what_it_has_not_subscribed_to_again_is_counted(strategy: str) -> None:
    town = row(strategy=strategy)
    client, _ = new_session(town)
    client.unsubscribe("t/#")
    client.subscribe("u", 1)
    town.connect("AB")
    town.pass_time(5)
    assert client.payloads() == []
    assert town["C"].network.moving.counters.unwanted == 1
    assert left_over(town) == []


def test_at_qos_2_what_may_have_come_is_not_sent_again() -> None:
    """It was sent, and not acknowledged: whether the client has it, nobody can tell.  At QoS 1 it comes again."""
    for qos, comes in ((1, [b"1"]), (2, [])):
        town = row(kind=NotingTown)
        client = town["A"].resume("c")
        client.subscribe("t", qos)
        town["A"].join("p").publish("t", b"1", qos)
        assert [message.payload for message in client.messages()] == [b"1"]
        client.vanish()
        town.cut("A", "B")
        town.pass_time(AWAY_S)
        again = town["C"].resume("c")
        again.subscribe("t", qos)
        town.connect("AB")
        town.pass_time(5)
        assert again.payloads() == comes
        assert town["A"].network.moving.counters.in_flight_dropped == (qos == 2)
        given_up = [("c", 0, 2, False, "owned-elsewhere")] if qos == 2 else []
        assert deliveries(town["A"]) == given_up


def test_what_the_old_node_had_served_does_not_come_again() -> None:
    """C reads A's messages when the cut has healed: among them what the client had there."""
    town = row()
    publisher = town["A"].join("p")
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town.cut("A", "B")
    publisher.publish("t", b"served at A", 2)
    assert client.payloads() == [b"served at A"]
    client.vanish()
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    again.subscribe("t", 2)
    town.connect("AB")
    town.pass_time(5)
    publisher.publish("t", b"after it", 2)
    assert again.payloads() == [b"after it"]


def test_what_is_subscribed_to_once_more_was_heard_before_all_the_same() -> None:
    """The node that served it crashes after that, so it knows it from its journal alone."""
    town = row()
    publisher = town["A"].join("p")
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town.cut("A", "B")
    publisher.publish("t", b"served at A", 2)
    assert client.payloads() == [b"served at A"]
    client.vanish()
    town.pass_time(AWAY_S)
    elsewhere = town["C"].resume("c")
    elsewhere.subscribe("t", 2)
    elsewhere.vanish()
    back = town["A"].resume("c")
    back.subscribe("t", 2)
    town.crash("A")
    again = town["C"].resume("c")
    town.connect("AB")
    town.pass_time(5)
    assert again.messages() == []
    assert left_over(town) == []


def test_a_node_that_was_started_again_meets_the_others_before_it_sends_again_what_is_in_doubt() -> None:
    """Its client may have begun anew meanwhile; then it has forgotten what it had at QoS 2, and would take it twice."""
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town["A"].join("p").publish("t", b"1", 2)
    assert [message.payload for message in client.messages()] == [b"1"]
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    elsewhere = town["C"].resume("c")
    elsewhere.subscribe("t", 2)
    elsewhere.vanish()
    town.crash("A")
    back = town["A"].dial()
    back.send(Connect("c", False, properties={"session_expiry": 100}))
    town.settle()
    town.connect("AB")
    town.pass_time(5)
    assert back.messages() == []
    assert town["A"].network.moving.counters.in_flight_dropped == 1


@pytest.mark.parametrize("hangs_up", [False, True])
def test_what_the_session_that_stays_had_sent_is_in_doubt_too_if_its_client_has_another_one(hangs_up: bool) -> None:
    """The clock of A is ahead, so the session there is taken for the later one."""
    town = row()
    town["A"].broker.tell_time(town.now, town["A"].wall + 1000)
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    client.vanish()
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    client = town["A"].resume("c")
    town["A"].join("p").publish("t", b"1", 2)
    assert [message.payload for message in client.messages()] == [b"1"]
    if hangs_up:
        client.vanish()
    elsewhere = town["C"].resume("c")
    assert not elsewhere.connack.session_present
    elsewhere.subscribe("t", 2)
    elsewhere.vanish()
    town.connect("AB")
    town.pass_time(5)
    again = town["C"].resume("c")
    town.pass_time(5)
    assert again.connack.session_present
    assert again.messages() == []
    assert sum(town[name].network.moving.counters.in_flight_dropped for name in "ABC") == 1
    assert left_over(town) == []


@pytest.mark.parametrize("crashes", [False, True])
def test_what_it_retains_anew_is_later_than_what_it_retained_before_whatever_the_clocks_say(crashes: bool) -> None:
    """The clock of A is ahead by more than A is away for, and the last word said there has not come to C."""
    town = row()
    town["A"].broker.tell_time(town.now, town["A"].wall + 2 * AWAY_S)
    client = town["A"].resume("c")
    client.publish("r", b"heard everywhere", 1, retain=True)
    town.cut("A", "B")
    client.publish("r", b"heard at A", 1, retain=True)
    client.vanish()
    if crashes:
        town.crash("C")
        town.connect("BC")
    town.pass_time(AWAY_S)
    town["C"].resume("c").publish("r", b"the last word", 1, retain=True)
    town.connect("AB")
    town.pass_time(5)
    for name in "ABC":
        found = town[name].broker.retained.get(b"r")
        assert found is not None
        assert found.payload == b"the last word"


def test_a_client_that_did_not_hear_of_its_new_session_is_told_again() -> None:
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    town["C"].resume("c").vanish()
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t", 1)
    again.vanish()
    assert town["C"].resume("c").connack.session_present


def test_whoever_wants_a_clean_start_gets_nothing_of_what_was() -> None:
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town["B"].join("p").publish("t", b"1", 1)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    town["C"].join("c", session_expiry=100).subscribe("t", 1)
    town.connect("AB")
    town.pass_time(5)
    assert town["C"].network.moving.counters.taken_over == 0
    assert left_over(town) == []
    assert town["A"].network.moving.counters.not_handed_over == 1


def test_a_session_with_more_subscriptions_than_a_frame_holds_is_handed_over_too() -> None:
    town = row()
    client = town["A"].resume("c")
    for number in range(600):
        client.subscribe(f"{number}/" + "x" * 4000, 1)
    client.subscribe("t/#", 1)
    client.vanish()
    town["B"].join("b").publish("t/1", b"1", 1)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    again.subscribe("t/#", 1)
    town.connect("AB")
    town.pass_time(5)
    assert again.payloads() == [b"1"]
    assert town["A"].network.moving.counters.too_big == 0
    assert left_over(town) == []


def test_a_crash_of_either_at_any_step_loses_nothing_and_repeats_nothing() -> None:
    for crashes in ("A", "C"):
        for step in (HandOverPage, HandOverAck):
            town = row()
            _, publisher = new_session(town)
            publisher.publish("t/1", b"2", 2)
            host = town["A" if step is HandOverPage else "C"].network.moving.host
            host.send = lambda node, message, send=host.send, step=step: (  # type: ignore[method-assign, misc]
                None if isinstance(message, step) else send(node, message)
            )
            town.connect("AB")
            town.pass_time(5)
            assert left_over(town) == [fenced_key(b"c", owner_of(left_over(town)[0])[1])]
            town.crash(crashes)
            town.crash("A" if step is HandOverPage else "C")  # whoever did not speak
            town.connect("AB", "BC")
            town.pass_time(5)
            client = town["C"].resume("c")
            town.pass_time(15)
            assert client.connack.session_present
            assert sorted(client.payloads()) == [b"2", b"waits at A"]
            assert left_over(town) == []


@pytest.mark.parametrize("crashes", [False, True])
def test_a_client_that_went_back_to_its_old_session_gets_each_message_once(strategy: str, crashes: bool) -> None:
    """A was cut off, and has not read what D published; the session at C wanted less, and began in the middle of it."""
    town = row("ABCD", strategy)
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    client.subscribe("u", 2)
    publisher = town["D"].join("p")
    town.cut("A", "B")
    client.vanish()
    town.pass_time(AWAY_S)
    publisher.publish("t", b"before the new session", 2)
    newer = town["C"].resume("c")
    assert not newer.connack.session_present
    newer.subscribe("t", 2)
    publisher.publish("t", b"served at C", 2)
    publisher.publish("u", b"not asked for at C", 2)
    publisher.publish("t", b"served at C, too", 2)
    assert absorb(newer) == [b"served at C", b"served at C, too"]
    newer.vanish()
    town.cut("C", "D")
    back = town["A"].resume("c")
    assert back.connack.session_present, "A has heard of nothing"
    town.connect("AB")
    town.pass_time(5)
    assert back.wire.closed
    if crashes:
        town.crash("C")
        town.connect("BC")
    again = town["B"].resume("c")
    assert not again.connack.session_present, "the session at A was in use, and is gone"
    again.subscribe("t", 2)
    again.subscribe("u", 2)
    town.connect("CD")
    town.pass_time(15)
    assert absorb(again) == [b"before the new session", b"not asked for at C"]
    publisher.publish("u", b"asked for again", 2)
    assert absorb(again) == [b"asked for again"]
    assert left_over(town) == []


def test_a_node_that_has_forgotten_whom_it_knew_takes_what_they_come_with(strategy: str) -> None:
    """Its disk was full, and it was killed.  For two seconds it looks for somebody, and then lets the client in."""
    town = row("AB", strategy)
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town.cut("A", "B")
    town.nodes["B"] = JoinedNode(town, "B", epoch=2)
    publisher = town["A"].join("p")
    publisher.publish("t", b"served at A", 2)
    assert client.payloads() == [b"served at A"]
    client.vanish()
    publisher.publish("t", b"waits at A", 2)
    town.pass_time(3)
    again = town["B"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t", 2)
    town["B"].join("q").publish("t", b"at B", 2)
    town.connect("AB")
    town.pass_time(15)
    assert again.payloads() == [b"at B", b"waits at A"]
    assert left_over(town) == []


def test_a_client_that_goes_back_is_sent_nothing_under_an_identifier_that_it_has_yet_to_release() -> None:
    """It would take another message for a repetition."""
    town = row()
    client, publisher = new_session(town)
    town["B"].join("q").publish("t/1", b"at B", 2)
    unreleased = {packet.packet_id for packet in client.received() if isinstance(packet, Publish)}
    assert unreleased
    client.vanish()
    back = town["A"].resume("c")
    assert back.connack.session_present
    for number in range(10):
        publisher.publish("t/1", b"%d" % number, 2)
    sent = {packet.packet_id for packet in back.received() if isinstance(packet, Publish)}
    assert len(sent) > 10
    assert not sent & unreleased


def test_a_client_that_went_back_hears_again_that_its_session_is_new_though_that_ones_node_was_restarted() -> None:
    town = row()
    client, _ = new_session(town)
    client.subscribe("t/#", 2)
    client.vanish()
    back = town["A"].resume("c")
    assert back.connack.session_present
    town.pass_time(5)
    town.crash("C")
    town.connect("BC", "AB")
    town.pass_time(5)
    again = town["C"].resume("c")
    assert not again.connack.session_present


@pytest.mark.parametrize("returns_s", [1.0, 30.0])
def test_so_does_one_whose_old_node_was_restarted_or_whose_new_session_has_moved(returns_s: float) -> None:
    town = row()
    client, _ = new_session(town)
    client.subscribe("t/#", 2)
    client.vanish()
    town.pass_time(returns_s)
    back = town["A"].resume("c")
    assert back.connack.session_present
    town.pass_time(5)
    town.crash("A")
    town["C"].network.moving.plans.move(b"c", "B")
    town.pass_time(1)
    assert b"c" in town["B"].broker.sessions
    town.connect("AB")
    town.pass_time(5)
    again = town["B"].resume("c")
    assert not again.connack.session_present


def test_one_that_came_to_its_old_node_before_its_new_session_began_hears_that_once() -> None:
    town = row()
    client, _ = new_session(town)
    client.vanish()
    town.crash("A")
    town.connect("AB")
    town.pass_time(5)
    assert town["C"].resume("c").connack.session_present


def test_if_they_come_with_no_older_session_everything_is_for_the_new_one(strategy: str) -> None:
    """A node that was killed before it could write anything down is alone for long, and so is its client."""
    town = Town("AB", strategy)
    town.nodes["B"] = JoinedNode(town, "B", epoch=2)
    publisher = town["A"].join("p")
    town.pass_time(3)
    client = town["B"].resume("c")
    client.subscribe("t", 2)
    publisher.publish("t", b"before they met", 2)
    town.connect("AB")
    town.pass_time(1)
    assert client.payloads() == [b"before they met"]
    assert town["B"].network.moving.counters.left_to_old == 0


def test_messages_left_to_an_old_session_are_counted_in_case_it_never_returns() -> None:
    town = row()
    again, _ = new_session(town)
    town["A"].join("q").publish("t/2", b"published at A", 2)
    assert town["C"].network.moving.counters.left_to_old == 0
    town.connect("AB")
    town.settle()
    assert town["C"].network.moving.counters.left_to_old == 1
    town.pass_time(15)
    assert sorted(again.payloads()) == [b"published at A", b"waits at A"]


@pytest.mark.parametrize("waits_s", [0.0, 1.9])
def test_a_client_that_waited_until_such_a_node_met_somebody_has_an_ordinary_session(
    strategy: str, waits_s: float
) -> None:
    """It misses nothing at QoS 2 of nodes that are met later, because no old session is in charge of that."""
    town = Town("ABC", strategy)
    town.nodes["B"] = JoinedNode(town, "B", epoch=2)
    client = town["B"].dial()
    client.send(Connect("c", False, 0, None, None, None, {"session_expiry": 100}))
    town.pass_time(waits_s)
    town.connect_now("AB")
    town.pass_time(1)
    assert [packet for packet in client.received() if isinstance(packet, Connack)]
    client.subscribe("t", 2)
    town["C"].join("p").publish("t", b"at C", 2)
    town.connect("BC")
    town.pass_time(1)
    assert client.payloads() == [b"at C"]


@pytest.mark.parametrize("qos", [1, 2])
def test_two_old_sessions_hand_over_the_newer_one_first(qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells which messages of the older one its client may have."""
    town = row()
    client, publisher = new_session(town, qos)
    publisher.publish("t/1", b"while A was cut off", qos)
    original = NodeMoveHost.send
    monkeypatch.setattr(
        NodeMoveHost, "send", lambda *to: None if isinstance(to[2], HandOverWanted) else original(*to), raising=True
    )
    town.connect("AB")
    client.vanish()
    town["A"].resume("c").vanish()
    town["B"].join("q").publish("t/2", b"for the session that came back", qos)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t/#", qos)
    monkeypatch.setattr(NodeMoveHost, "send", original)
    town.connect_now("AB")
    assert len(left_over(town)) == 2
    town.pass_time(30)
    assert left_over(town) == []
    came = {packet.payload for packet in again.received() if isinstance(packet, Publish)}
    assert came == {b"for the session that came back", b"waits at A", b"while A was cut off"}
    assert town["C"].network.moving.counters.in_flight_dropped == 0


def test_a_session_that_was_taken_over_elsewhere_is_not_taken_over_again() -> None:
    """Its node did not hear of it, and the client got a new session there once more."""
    town = row()
    client, _ = new_session(town)
    host = town["C"].network.moving.host
    send = host.send
    host.send = lambda node, message: (  # type: ignore[method-assign]
        None if isinstance(message, HandOverAck) else send(node, message)
    )
    town.connect("AB")
    town.pass_time(5)
    assert client.payloads() == [b"waits at A"]
    client.vanish()
    town["B"].join("q").publish("t/2", b"waits at C", 2)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["A"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t/#", 2)
    del host.send
    town.connect("AB")
    town.pass_time(30)
    assert left_over(town) == []
    assert [packet.payload for packet in again.received() if isinstance(packet, Publish)] == [b"waits at C"]


def test_a_disconnect_does_not_show_that_a_client_has_heard_of_its_new_session() -> None:
    """A gateway says it for a client that it sends away, and may be gone before the client is back."""
    town = row()
    town["A"].resume("p").vanish()
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    client = town["C"].resume("p")
    assert not client.connack.session_present
    town.pass_time(0.1)
    client.send(Disconnect())
    town.settle()
    assert not town["C"].resume("p").connack.session_present


def test_any_packet_shows_that_a_client_has_heard_of_its_new_session() -> None:
    """One that only publishes, too: what it repeats at QoS 2 is published once."""
    town = row()
    town["A"].resume("p").vanish()
    reader = town["B"].resume("r")
    reader.subscribe("t", 2)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    publisher = town["C"].resume("p")
    assert not publisher.connack.session_present
    town.pass_time(0.1)
    publisher.send(Publish("t", b"1", 2, packet_id=7))
    town.settle()
    publisher.vanish()
    again = town["C"].resume("p")
    assert again.connack.session_present
    again.send(Publish("t", b"1", 2, packet_id=7, dup=True))
    town.settle()
    assert reader.payloads() == [b"1"]
    town.connect("AB")
    again.vanish()
    assert town["C"].resume("p").connack.session_present


def apart(town: Town) -> tuple[Client, Client]:
    """A subscriber at B that came back while A and C could not be reached, and a publisher at A, which is back."""
    publisher = town["A"].resume("p")
    subscriber = town["B"].resume("s")
    subscriber.subscribe("t", 2)
    subscriber.subscribe("zero", 0)
    publisher.publish("t", b"1", 2)
    assert absorb(subscriber) == [b"1"]
    town.cut("A", "B")
    town.cut("B", "C")
    publisher.publish("t", b"2", 2)
    subscriber.vanish()
    subscriber = town["B"].resume("s")
    assert subscriber.connack.session_present
    town.connect("AB")
    return subscriber, publisher


def test_nothing_is_held_back_from_a_session_that_was_opened_while_nodes_were_missing(strategy: str) -> None:
    """What its publisher says at another node, after it has moved there, does not overtake what it said before."""
    town = row(strategy=strategy)
    subscriber, publisher = apart(town)
    publisher.vanish()
    publisher = town["B"].resume("p")
    assert publisher.connack.session_present
    publisher.publish("t", b"3", 2)
    assert absorb(subscriber) == [b"2", b"3"]


def test_nor_is_anything_at_qos_0(strategy: str) -> None:
    town = row(strategy=strategy)
    subscriber, publisher = apart(town)
    assert absorb(subscriber) == [b"2"]
    for number in range(5):
        publisher.publish("zero", b"%d" % number, 0)
    town.settle()
    assert subscriber.payloads() == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("crashes", [False, True])
def test_what_nodes_note_of_both_sessions_leaves_no_message_between_them(qos: int, crashes: bool) -> None:
    """Each was expected by the old session, or is by the new one."""
    town = row(kind=NotingTown)
    client, publisher = new_session(town, qos)
    others = town["B"].join("q")
    for number in range(5):
        publisher.publish("t/1", b"cut off %d" % number, 2)
        others.publish("t/2", b"at the other side %d" % number, 2)
    if crashes:
        town.crash("A")
        town.connect("AB")
        publisher = town["A"].join("p")
    else:
        town.connect("AB")
    town.pass_time(5)
    assert left_over(town) == []
    publisher.publish("t/1", b"afterwards", 2)
    parts = client_intervals(town, "c")
    (old,), (new,) = ([one for one in parts if one["node"] == name] for name in "AC")
    assert old["went"] == new["came"]
    assert [one["over"] for one in (old, new)] == ["moved", None]
    for origin in "AB":
        journal = town[origin].broker.journal
        stamps = [Stamp(journal.epoch_of(offset), offset) for offset in range(journal.next_offset)]
        own = [stamp for stamp in stamps if (one := journal.read(stamp.sequence)) is not None and one.identity is None]
        assert len(own) > 4
        reached, after = (Stamp(**dict(vector)[origin]) for vector in (old["reached"], new["after"]))
        assert [stamp for stamp in own if reached < stamp <= after] == []
    assert client.messages() or not qos


def client_intervals(town: Town, client: str) -> list[dict[str, Any]]:
    """As an audit makes them of what the nodes have noted."""
    noted = {name: [{**one, "node": name} for one in records(node, "sessions")] for name, node in town.nodes.items()}
    lives: dict[str, dict[int, float]] = {name: {} for name in noted}
    for name, rows in noted.items():
        for one in rows:
            lives[name][one["node_epoch"]] = one["at"].timestamp()
    found: list[dict[str, Any]] = []
    for rows in noted.values():
        if mine := [one for one in rows if one["client"] == client]:
            found += intervals(pa.Table.from_pylist(mine, RECORD_TABLES["sessions"]), lives).to_pylist()
    return found
