"""A session comes to a node with other access rules: what it may not read there, it does not get there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect, Publish, Pubrel, Will
from conformance.properties import Properties
from node.joined_nodes import Town
from node.test_short_moves import held
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList, AccessRule
from sterna.broker.access.identity import BY_PASSWORD, Accepted, Credentials, Refused
from sterna.broker.packets.handshake import Checked, ConnectHandshake
from sterna.broker.session.connection import Connection
from sterna.migration.messages import MigTo
from sterna.mqtt.packets import Connect as Request

FORBIDDEN = AccessList([AccessRule(("*",), ("work/#",), "subscribe", "deny")], "allow")


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_in_flight_is_not_sent_again_where_the_rules_forbid_it(qos: int) -> None:
    town = Town("AB")
    town.connect("AB")
    town["B"].broker.renewal.apply(town["B"].broker.access.authenticator, FORBIDDEN)
    reader, writer = town["A"].resume("reader"), town["A"].join("writer")
    reader.subscribe("#", qos)
    for topic in ("work/1", "else"):
        writer.publish(topic, topic.encode(), qos)
    sent = {message.topic: message.packet_id for message in reader.messages()}
    assert set(sent) == {"work/1", "else"}
    reader.vanish()
    town.pass_time(1)
    again = town["B"].dial()
    again.send(Connect("reader", False, properties={"session_expiry": 100}))
    town.pass_time(5)
    received = again.received()
    assert [packet.topic for packet in received if isinstance(packet, Publish)] == ["else"]
    released = [packet for packet in received if isinstance(packet, Pubrel)]
    assert released == ([Pubrel(sent["work/1"])] if qos == 2 else [])
    assert town["B"].dropped("not-authorized") == 1


class Trusting(Authenticator):
    """Everybody is who they say they are, and stays."""

    def verify(self, credentials: Credentials, *, now: float) -> Accepted | Refused:
        return Accepted(credentials.username, way=BY_PASSWORD)

    def still_accepts(self, accepted: Accepted, *, anonymous_allowed: bool) -> bool:
        return True


def waits_for_its_session(monkeypatch: pytest.MonkeyPatch) -> tuple[Town, Client, Callable[[], None]]:
    """Ann has come to B, and her session is still at A; the answer lets it come."""
    town = Town("AB")
    for node in town.nodes.values():
        node.broker.access.authenticator = Trusting()
    town.connect("AB")
    release = held(monkeypatch, MigTo)
    properties: Properties = {"session_expiry": 100}
    will = Will("wills", b"", 1)
    client = town["A"].dial()
    client.send(Connect("c", False, 0, will, "ann", b"", properties))
    client.subscribe("t", 1)
    client = town["B"].dial()
    client.send(Connect("c", False, 0, will, "ann", b"", properties))
    town.settle()
    assert client.received() == []
    return town, client, release


def read_again(town: Town, rules: AccessList, authenticator: Authenticator | None = None) -> None:
    town["B"].broker.renewal.apply(authenticator or town["B"].broker.access.authenticator, rules)


def test_it_is_checked_once_though_it_waits_for_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    town, client, release = waits_for_its_session(monkeypatch)
    checked: list[bytes] = []
    original = ConnectHandshake._check

    def check(handshake: ConnectHandshake, connection: Connection, request: Request, accepted: Accepted) -> Checked:
        checked.append(request.client_id)
        return original(handshake, connection, request, accepted)

    monkeypatch.setattr(ConnectHandshake, "_check", check)
    release()
    town.pass_time(1)
    assert client.take(Connack).session_present
    assert checked == []


def test_a_user_that_is_gone_by_the_time_its_session_comes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    town, client, release = waits_for_its_session(monkeypatch)
    read_again(town, AccessList([], "allow"), Authenticator())
    release()
    town.pass_time(1)
    assert client.take(Connack).code == 0x87
    assert client.wire.closed


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (AccessList([], "allow", ["%u-*"]), 0x85),
        (AccessList([AccessRule(("ann",), ("wills",), "publish", "deny")], "allow"), 0x87),
    ],
)
def test_rules_that_are_read_again_while_it_waits_decide(
    rules: AccessList, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    town, client, release = waits_for_its_session(monkeypatch)
    read_again(town, rules)
    release()
    town.pass_time(1)
    assert client.take(Connack).code == code


def test_it_has_the_rights_that_were_read_again_while_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    town, client, release = waits_for_its_session(monkeypatch)
    read_again(town, AccessList([AccessRule(("ann",), ("t",), "subscribe", "deny")], "allow"))
    release()
    town.pass_time(1)
    assert client.take(Connack).session_present
    town["A"].join("p").publish("t", b"secret", 1)
    town["A"].join("q").publish("t", b"secret", 1)
    assert client.payloads() == []
