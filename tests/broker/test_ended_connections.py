"""A connection or session that has ended leaves nothing behind: clients that come and go cannot fill the memory.

Limits bound the connections and sessions there are at a time.  Nothing bounds those there were, so that what has ended
must not be held by a deadline that is still to come: a keep-alive, the end of a session, the end of a window.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from broker.lone_node import LoneNode
from sterna.broker.limits import Limits
from sterna.broker.session.connection import Connection
from sterna.broker.session.session import Session
from sterna.operators.engine import Engine

TIMES = 300


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def stays_silent(node: LoneNode, number: int) -> None:
    node.dial().vanish()


def talks_nonsense(node: LoneNode, number: int) -> None:
    client = node.dial()
    client.send(b"\xf0\x00")
    client.vanish()


def has_a_long_keep_alive(node: LoneNode, number: int) -> None:
    node.join("", keep_alive=60_000).vanish()


def disconnects(node: LoneNode, number: int) -> None:
    client = node.join(f"client-{number}", keep_alive=60)
    client.leave()
    client.vanish()


def is_taken_over(node: LoneNode, number: int) -> None:
    old = node.join("same", keep_alive=60)
    new = node.join("same", keep_alive=60)
    old.vanish()
    new.vanish()


def ends_a_session_that_could_have_stayed(node: LoneNode, number: int) -> None:
    client_id = f"client-{number}"
    node.resume(client_id, session_expiry=86_400).vanish()
    node.join(client_id, clean=True).vanish()


@pytest.mark.parametrize(
    "behaves",
    [
        stays_silent,
        talks_nonsense,
        has_a_long_keep_alive,
        disconnects,
        is_taken_over,
        ends_a_session_that_could_have_stayed,
    ],
)
def test_clients_that_come_and_go_leave_nothing_behind(behaves: Callable[[LoneNode, int], None]) -> None:
    node = LoneNode(Limits(sessions=1, connections=1))
    before = alive(Connection), alive(Session)
    for number in range(TIMES):
        behaves(node, number)
    assert (alive(Connection), alive(Session)) == before
    assert len(node.broker.deadlines) == 0


def test_a_client_that_does_not_close_its_socket_is_held_only_until_it_is_aborted() -> None:
    node = LoneNode()
    client = node.join("ann", keep_alive=60)
    client.leave()
    assert not client.wire.aborted
    node.pass_time(5.0)
    assert client.wire.aborted
    assert node.broker.deadlines.next() is None


def test_an_expression_without_subscribers_is_not_kept_until_its_window_ends() -> None:
    node = LoneNode()
    client = node.join("ann")
    before = alive(Engine)
    for number in range(TIMES):
        text = f"$DAILYSUM/room/{number}"
        assert client.subscribe(text) == 0
        client.publish(f"room/{number}", b"1")
        client.unsubscribe(text)
    assert alive(Engine) == before
