"""A client that has had several new sessions, at nodes that could not hear each other, gets each message once."""

from __future__ import annotations

from conformance.packets import Connack, Connect
from node.joined_nodes import Town
from node.test_barriers import absorb
from node.test_new_sessions import AWAY_S, left_over, row
from sterna.migration.messages import Message, MigTo
from sterna.migration.settings import MigrationSettings


def test_a_session_between_that_its_client_did_not_use_says_that_it_delivered_nothing() -> None:
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    client.vanish()
    town["B"].join("p").publish("t", b"waits at A", 2)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    between = town["C"].resume("c")
    assert not between.connack.session_present
    between.vanish()
    town.cut("B", "C")
    town.pass_time(AWAY_S)
    again = town["B"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t", 2)
    town.connect_now("AB", "BC")
    town.pass_time(15)
    assert again.payloads() == [b"waits at A"]
    assert town["B"].network.moving.counters.in_flight_dropped == 0
    assert left_over(town) == []


def test_a_message_that_a_session_between_left_to_an_older_one_is_left_by_the_newest_one_too() -> None:
    """B and C gave the client new sessions, and meet before A is back, where the client had the message."""
    town = Town("ABC")
    town.connect("AB", "AC")
    client = town["A"].resume("c")
    client.subscribe("t", 2)
    town.cut("A", "B")
    town.cut("A", "C")
    publisher = town["A"].join("p")
    publisher.publish("t", b"served at A", 2)
    assert client.payloads() == [b"served at A"]
    client.vanish()
    town.pass_time(AWAY_S)
    between = town["B"].resume("c")
    between.subscribe("t", 2)
    between.vanish()
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t", 2)
    town.connect("BC")
    town.pass_time(5)
    assert left_over(town) == [], "the session at B has been taken over"
    town.connect("AC")
    town.pass_time(15)
    publisher.publish("t", b"after it", 2)
    assert absorb(again) == [b"after it"]
    assert left_over(town) == []


def test_messages_of_a_node_that_is_met_for_the_first_time_are_left_to_the_old_session() -> None:
    """C has never heard of A, whose messages the client had at B."""
    town = Town("ABC")
    town.connect("BC")
    client = town["B"].resume("c")
    client.subscribe("t", 2)
    client.subscribe("zero", 0)
    town.cut("B", "C")
    town.connect("AB")
    publisher = town["A"].join("p")
    publisher.publish("t", b"served at B", 2)
    publisher.publish("zero", b"served at B, too", 2)
    town.settle()
    assert absorb(client) == [b"served at B", b"served at B, too"]
    client.vanish()
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("t", 2)
    again.subscribe("zero", 0)
    town.connect("AC")
    town.pass_time(5)
    publisher.publish("t", b"after it", 2)
    publisher.publish("zero", b"after it, too", 2)
    town.settle()
    assert absorb(again) == [b"after it", b"after it, too"]


def test_a_node_that_was_just_started_gives_no_new_sessions_before_it_has_looked_for_others() -> None:
    town = Town("AB", migration=MigrationSettings(owner_absent_s=1.0))
    town.connect("AB")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town.crash("B")
    waiting = town["B"].dial()
    waiting.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(1.5)
    assert town["B"].network.moving.directory.get(b"c")[0] == "A"
    town.connect("AB")
    town.pass_time(2)
    assert [packet.session_present for packet in waiting.received() if isinstance(packet, Connack)] == [True]


def test_an_offer_that_began_before_its_session_got_a_higher_number_is_made_again() -> None:
    """The number rises when another node says that nobody owns the session."""
    town = row("ABC")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    host, offers = town["A"].network.moving.host, list[Message]()
    host.send = lambda node, message: offers.append(message)  # type: ignore[method-assign]
    waiting = town["B"].dial()
    waiting.send(Connect("c", False, properties={"session_expiry": 100}))
    town.settle()
    assert any(isinstance(offer, MigTo) for offer in offers)
    news = town["C"].network.moving.news
    news.learn(b"c", "", town["C"].network.moving.directory.get(b"c")[1] + 100)
    town.settle()
    del host.send
    town.pass_time(12)
    assert [packet.session_present for packet in waiting.received() if isinstance(packet, Connack)] == [True]
    assert {town[name].network.moving.directory.get(b"c")[0] for name in "ABC"} == {"B"}
    town["C"].join("p").publish("t", b"1", 1)
    assert waiting.payloads() == [b"1"]


def test_an_old_answer_of_an_aggregate_does_not_come_after_a_newer_one(strategy: str) -> None:
    town = row(strategy=strategy)
    client = town["A"].resume("c")
    client.subscribe("$COUNT/t/#", 1)
    client.vanish()
    town["C"].join("r").subscribe("read at C", 1)
    publisher = town["A"].join("p")
    publisher.publish("t/1", b"1", 1)
    town.pass_time(1)
    publisher.publish("read at C", b"so that C knows how far A has come", 1)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    assert not again.connack.session_present
    again.subscribe("$COUNT/t/#", 1)
    publisher = town["B"].join("q")
    publisher.publish("t/2", b"1", 1)
    publisher.publish("t/3", b"1", 1)
    town.pass_time(1)
    assert b"2.0" in absorb(again)
    town.connect("AB")
    town.pass_time(5)
    assert b"1.0" not in absorb(again)
    assert left_over(town) == []


def test_nothing_is_handed_over_before_every_node_has_said_from_where_on_the_new_session_hears_it() -> None:
    """A node that is too slow to answer may have passed over messages that the old session has."""
    town = row()
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town["B"].join("p").publish("t", b"waits at A", 1)
    town.cut("A", "B")
    town.pass_time(AWAY_S)
    again = town["C"].resume("c")
    host = town["C"].network.moving.host
    host.when_answered = lambda action: action({})  # type: ignore[method-assign]
    again.subscribe("t", 1)
    town.connect("AB")
    town.pass_time(5)
    assert again.payloads() == []
    assert len(left_over(town)) == 1
    del host.when_answered
    town.pass_time(15)
    assert again.payloads() == [b"waits at A"]
    assert left_over(town) == []
