"""A token ends, and with it the connection it opened: not before, not much later, and nothing is kept for it longer."""

from __future__ import annotations

from typing import Unpack

import jwt
import pytest

from broker.lone_node import Client, LoneNode
from conformance.packets import Connack, Connect, Pingreq, Pingresp
from conformance.properties import Properties
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.tokens import TokenVerifier
from sterna.broker.session_lifecycle import WATCH_S

SECRET = b"0123456789abcdef0123456789abcdef"
NOT_AUTHORIZED = 0x87
WEEK_S = 7 * 86400.0


@pytest.fixture
def node() -> LoneNode:
    return LoneNode(authenticator=Authenticator(tokens=TokenVerifier({"HS256": SECRET}, leeway_s=0)))


def enter(
    node: LoneNode, valid_s: float, client_id: str = "ann", version: int = 5, **properties: Unpack[Properties]
) -> Client:
    """A client whose token is good for so many seconds from now."""
    token = jwt.encode({"sub": "ann", "exp": node.wall + valid_s}, SECRET, "HS256")
    client = node.dial(version)
    client.send(Connect(client_id, keep_alive=0, username="ann", password=token.encode(), properties=properties))
    node.settle()
    assert client.take(Connack).code == 0
    return client


@pytest.mark.parametrize("valid_s", [1.0, WATCH_S, 2.5 * WATCH_S])
def test_a_connection_ends_with_its_token_and_not_before(node: LoneNode, valid_s: float) -> None:
    client = enter(node, valid_s)
    node.pass_time(valid_s - 0.5)
    assert client.say(Pingreq()) == [Pingresp()]
    node.pass_time(0.5)
    assert client.farewell() == NOT_AUTHORIZED
    assert ("connection failed", "its token, or the answer of the access hook, has expired") in [
        (event, said.get("reason")) for event, said in node.reports
    ]


def test_a_client_of_3_1_1_is_closed_without_a_word(node: LoneNode) -> None:
    client = enter(node, 5.0, version=4)
    node.pass_time(5.0)
    assert client.farewell() is None


def test_the_deadline_is_that_of_the_clock_on_the_wall(node: LoneNode) -> None:
    client = enter(node, WEEK_S)
    node.broker.tell_time(node.now, node.wall + 2 * WEEK_S)
    node.pass_time(WATCH_S)
    assert client.farewell() == NOT_AUTHORIZED


def test_a_client_that_comes_back_with_a_new_token_outlives_the_old_one(node: LoneNode) -> None:
    old = enter(node, 30.0, session_expiry=604_800)
    new = enter(node, 90.0, session_expiry=604_800)
    assert old.wire.closed
    node.pass_time(60.0)
    assert new.say(Pingreq()) == [Pingresp()]
    node.pass_time(30.0)
    assert new.farewell() == NOT_AUTHORIZED


def test_a_session_outlives_the_token_but_takes_another_to_resume(node: LoneNode) -> None:
    client = enter(node, 10.0, session_expiry=3600)
    assert client.subscribe("a", 1) == 1
    node.pass_time(10.0)
    assert client.farewell() == NOT_AUTHORIZED
    assert list(node.session("ann").subscriptions) == [b"a"]
    late = node.dial()
    expired = jwt.encode({"sub": "ann", "exp": node.wall}, SECRET, "HS256").encode()
    late.send(Connect("ann", False, username="ann", password=expired))
    assert late.farewell() == 0x86


def test_nothing_waits_for_the_token_of_a_connection_that_has_ended(node: LoneNode) -> None:
    clients = [enter(node, WEEK_S, f"ann-{number}") for number in range(20)]
    for client in clients:
        client.vanish()
    assert node.broker.deadlines.next() is None
