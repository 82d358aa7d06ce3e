"""Passwords and access rules change while clients are connected."""

from __future__ import annotations

import argon2
import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import Connack, Connect, Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList, AccessRule
from sterna.broker.access.passwords import PasswordFile, hash_password
from sterna.broker.access_renewal import AWAY_A_TURN
from sterna.broker.session.qos0_hold import Qos0Hold
from sterna.mqtt.message import Message

CHEAP = argon2.PasswordHasher(1, 8, 1)
NOTHING = AccessRule(("*",), ("work/#",), "subscribe", "deny")
NOT_AUTHORIZED = 0x87


def entry(user: str, password: str, salt: int = 1) -> str:
    return hash_password(user, password, random_bytes=lambda size: bytes([salt] * size), hasher=CHEAP)


def knowing(*entries: str) -> Authenticator:
    return Authenticator(passwords=PasswordFile.parse("\n".join(entries), "passwords"))


def renew(node: LoneNode, authenticator: Authenticator | None = None, rules: tuple[AccessRule, ...] = ()) -> int:
    node.broker.at(node.now)
    disconnected = node.broker.renewal.apply(
        authenticator or node.broker.access.authenticator, AccessList(rules, "allow")
    )
    node.settle()
    return disconnected


def login(node: LoneNode, client_id: str, user: str, password: bytes, version: int = 5) -> Client:
    client = node.dial(version)
    client.send(Connect(client_id, True, 0, None, user, password))
    node.settle()
    while node.waiting_for_verdict:
        connection, credentials = node.waiting_for_verdict.pop()
        connection.proceed_with(node.broker.access.authenticator.verify(credentials, now=node.wall))
        node.settle()
    return client


# -- passwords --


@pytest.mark.parametrize("version", [4, 5])
def test_who_is_gone_from_the_password_file_or_has_another_password_is_disconnected(version: int) -> None:
    ann, bob, eve = entry("ann", "a"), entry("bob", "b"), entry("eve", "e")
    node = LoneNode(authenticator=knowing(ann, bob, eve))
    clients = {user: login(node, user, user, user[:1].encode(), version) for user in ("ann", "bob", "eve")}
    assert all(client.take(Connack).code == 0 for client in clients.values())
    assert renew(node, knowing(ann, entry("bob", "b", salt=2))) == 2
    assert not clients["ann"].wire.closed
    assert clients["bob"].farewell() == clients["eve"].farewell() == (NOT_AUTHORIZED if version == 5 else None)
    assert login(node, "bob", "bob", b"b", version).take(Connack).code == 0


def test_who_was_being_checked_by_a_file_that_is_replaced_does_not_get_in() -> None:
    node = LoneNode(authenticator=knowing(entry("ann", "a")))
    client = node.dial()
    client.send(Connect("ann", True, 0, None, "ann", b"a"))
    ((connection, credentials),) = node.waiting_for_verdict
    verdict = node.broker.access.authenticator.verify(credentials, now=node.wall)
    renew(node, knowing(entry("bob", "b")))
    connection.proceed_with(verdict)
    node.settle()
    assert client.farewell() == NOT_AUTHORIZED


def test_anonymous_clients_go_when_their_listener_takes_none_any_more() -> None:
    node = LoneNode()
    inside, other = node.join("inside"), node.join("other")
    inside.connection.peer.entrance.anonymous = False
    assert renew(node) == 1
    assert inside.farewell() == NOT_AUTHORIZED
    assert not other.wire.closed


def test_nobody_notices_a_reload_that_changes_nothing() -> None:
    ann = entry("ann", "a")
    node = LoneNode(authenticator=knowing(ann), rules=(NOTHING,))
    client = login(node, "ann", "ann", b"a")
    route = node.broker.routes.route(b"topic")
    assert renew(node, knowing(ann), (NOTHING,)) == 0
    assert not client.wire.closed
    assert node.broker.routes.route(b"topic") is route


# -- rights --


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_right_that_is_revoked_ends_delivery_at_once_and_one_that_is_given_begins_it(qos: int) -> None:
    node = LoneNode()
    reader, writer = node.join("reader"), node.join("writer")
    reader.subscribe("#", qos)
    writer.publish("work/1", b"before", qos)
    (before,) = reader.messages()
    reader.say(*([Puback(before.packet_id)] if qos == 1 else [Pubrec(before.packet_id)] if qos == 2 else []))
    renew(node, rules=(NOTHING,))
    writer.publish("work/1", b"forbidden", qos)
    writer.publish("else", b"allowed", qos)
    assert [message.payload for message in reader.messages()] == [b"allowed"]
    renew(node)
    writer.publish("work/1", b"after", qos)
    assert [message.payload for message in reader.messages()] == [b"after"]


def test_a_right_to_publish_that_is_revoked_is_gone_though_the_topic_was_published_to_before() -> None:
    node = LoneNode(rules=(AccessRule(("*",), ("work/#",), "publish", "allow"),))
    reader, writer = node.join("reader"), node.join("writer")
    reader.subscribe("work/#", 0)
    for payload in (b"1", b"2"):  # the second by the quick way
        writer.send(Publish("work/1", payload))
    renew(node, rules=(AccessRule(("*",), ("work/#",), "publish", "deny"),))
    writer.send(Publish("work/1", b"3"))
    node.settle()
    assert reader.payloads() == [b"1", b"2"]
    assert node.dropped("not-authorized") == 1


def test_what_waits_for_a_client_that_is_away_is_held_back_too() -> None:
    node = LoneNode()
    reader, writer = node.resume("reader"), node.join("writer")
    reader.subscribe("work/#", 1)
    reader.vanish()
    writer.publish("work/1", b"waits", 1)
    renew(node, rules=(NOTHING,))
    assert not node.session("reader").permissions.may_receive(b"work/1")
    assert node.resume("reader").payloads() == []
    assert node.dropped("not-authorized") == 1


def test_sessions_that_are_away_get_their_rights_in_turns_however_many_they_are() -> None:
    node = LoneNode()
    names = [f"away-{number}" for number in range(2 * AWAY_A_TURN + 1)]
    for name in names:
        node.resume(name).vanish()
    renew(node, rules=(NOTHING,))
    assert not any(node.session(name).permissions.may_receive(b"work/1") for name in names)


def test_a_will_its_owner_may_no_longer_publish_is_not_published() -> None:
    node = LoneNode()
    reader = node.join("reader")
    reader.subscribe("#", 0)
    dying = node.join("dying", will=Will("work/will", b"last words"))
    renew(node, rules=(AccessRule(("*",), ("work/#",), "publish", "deny"),))
    dying.vanish()
    assert reader.payloads() == []


def test_a_subscription_is_asked_for_by_the_new_rules() -> None:
    node = LoneNode()
    reader = node.join("reader")
    assert reader.subscribe("work/1", 1) == 1
    renew(node, rules=(NOTHING,))
    assert reader.subscribe("work/2", 1) == NOT_AUTHORIZED


# -- in flight --


@pytest.mark.parametrize("version", [4, 5])
def test_what_was_in_flight_is_not_sent_again_once_its_right_is_gone(version: int) -> None:
    node = LoneNode()
    reader, writer = node.resume("reader", version), node.join("writer")
    reader.subscribe("#", 1)
    for topic in ("work/1", "else", "work/2"):
        writer.publish(topic, topic.encode(), 1)
    assert len(reader.messages()) == 3
    reader.vanish()
    renew(node, rules=(NOTHING,))
    again = node.resume("reader", version)
    (message,) = again.messages()
    assert (message.topic, message.dup) == ("else", True)
    assert list(node.session("reader").inflight) == [message.packet_id]
    assert node.dropped("not-authorized") == 2


def test_at_qos_2_the_identifier_of_what_is_held_back_is_released_before_it_is_used_again() -> None:
    """The client may have had the message, and would take another one under its identifier for the same."""
    node = LoneNode()
    reader, writer = node.resume("reader"), node.join("writer")
    reader.subscribe("work/#", 2)
    writer.publish("work/1", b"secret", 2)
    (sent,) = reader.messages()
    reader.vanish()
    renew(node, rules=(NOTHING,))
    again = node.resume("reader")
    assert again.received() == [Pubrel(sent.packet_id)]
    assert again.say(Pubcomp(sent.packet_id)) == []
    assert not node.session("reader").inflight
    assert node.dropped("not-authorized") == 1


def test_rights_given_back_bring_what_comes_from_then_on() -> None:
    node = LoneNode()
    reader, writer = node.join("reader"), node.join("writer")
    reader.subscribe("work/#", 1)
    renew(node, rules=(NOTHING,))
    writer.publish("work/1", b"missed", 1)
    renew(node)
    writer.publish("work/1", b"had", 1)
    assert reader.payloads() == [b"had"]


def test_a_farewell_names_the_reason() -> None:
    node = LoneNode(authenticator=knowing(entry("ann", "a")))
    client = login(node, "ann", "ann", b"a")
    client.take(Connack)
    renew(node, knowing(entry("bob", "b")))
    farewell = client.take(Disconnect)
    assert farewell.code == NOT_AUTHORIZED
    assert "changed" in str(farewell.properties)


def test_what_was_held_at_qos_0_for_a_session_on_its_way_is_asked_about_again() -> None:
    node = LoneNode()
    reader = node.join("reader")
    reader.subscribe("t/+")
    session = node.session("reader")
    session.held = Qos0Hold()
    for topic in (b"t/open", b"t/secret"):
        grant = node.broker.routes.route(topic).deliveries[0][1]
        assert session.held.hold(Message(topic, topic, 1), grant)
    renew(node, rules=(AccessRule(("*",), ("t/secret",), "subscribe", "deny"),))
    node.broker.delivery.let_go(session)
    node.settle()
    assert reader.payloads() == [b"t/open"]
    assert node.dropped("not-authorized") == 1
