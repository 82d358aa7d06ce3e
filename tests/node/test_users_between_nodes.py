"""A client identifier is its first user's at every node, as at one: whoever comes later as another user is refused."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect, Will
from node.joined_nodes import JoinedNode, Town
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.identity import Accepted, Credentials, Refused

WILL = Will("wills", b"she is gone", 1)
EXPIRY = 7 * 24 * 3600


class Trusting(Authenticator):
    """Everybody is who they say they are."""

    def verify(self, credentials: Credentials, *, now: float) -> Accepted | Refused:
        return Accepted(credentials.username)


def network(names: str = "ABC") -> Town:
    town = Town(names)
    for node in town.nodes.values():
        node.broker.access.authenticator = Trusting()
    town.connect(*(one + other for one, other in pairwise(names)))
    return town


def arrives(node: JoinedNode, user: str | None, expiry: int, will: Will | None = None, *, clean: bool = True) -> Client:
    """A client `sensor-7` of this user; nothing is settled yet."""
    client = node.dial()
    client.send(Connect("sensor-7", clean, 0, will, user, b"", {"session_expiry": expiry}))
    return client


def answer(client: Client) -> int:
    return client.take(Connack).code


@pytest.mark.parametrize("expiry", [0, EXPIRY])
@pytest.mark.parametrize("hers", [0, EXPIRY])
def test_another_users_client_is_refused_at_the_node_it_comes_to(hers: int, expiry: int) -> None:
    town = network()
    watcher = town["B"].join("watcher")
    watcher.subscribe("wills", 1)
    alice = arrives(town["A"], "alice", hers, WILL)
    town.settle()
    assert answer(alice) == 0
    bob = arrives(town["C"], "bob", expiry, Will("wills", b"he is gone", 1))
    town.pass_time(1)
    if hers or expiry:
        assert answer(bob) == 0x87
        assert watcher.payloads() == [], "of one who was never let in nobody hears"
    else:
        assert bob.farewell() == 0x87, "he is found out a moment later: nobody waits for a session that is not kept"
        watcher.received()
    assert not alice.wire.closed
    assert b"sensor-7" not in town["C"].broker.sessions
    again = arrives(town["C"], "alice", expiry)
    town.pass_time(1)
    assert answer(again) == 0, "she can go where she likes"


def test_a_session_without_its_client_stays_its_users() -> None:
    town = network()
    alice = arrives(town["A"], "alice", EXPIRY)
    town.settle()
    assert alice.subscribe("t", 1) == 1
    alice.vanish()
    town["B"].join("publisher").publish("t", b"hers", 1)
    for clean in (True, False):
        bob = arrives(town["C"], "bob", EXPIRY, clean=clean)
        town.pass_time(1)
        assert answer(bob) == 0x87
    back = arrives(town["C"], "alice", EXPIRY, clean=False)
    town.pass_time(1)
    assert answer(back) == 0
    assert back.payloads() == [b"hers"]


def test_one_that_its_user_gave_up_is_free() -> None:
    town = network()
    alice = arrives(town["A"], "alice", EXPIRY)
    town.settle()
    alice.leave(0, session_expiry=0)
    town.pass_time(1)
    bob = arrives(town["C"], "bob", EXPIRY)
    town.pass_time(1)
    assert answer(bob) == 0


def test_one_without_a_user_is_anybodys() -> None:
    town = network()
    nobody = arrives(town["A"], None, EXPIRY)
    town.settle()
    bob = arrives(town["C"], "bob", EXPIRY)
    town.pass_time(1)
    assert answer(bob) == 0
    assert nobody.wire.closed


@pytest.mark.parametrize(("hers", "his"), [(EXPIRY, EXPIRY), (0, EXPIRY), (EXPIRY, 0), (0, 0)])
@pytest.mark.parametrize("order", list(permutations("AC")))
def test_of_two_at_the_same_moment_one_is_let_in(order: tuple[str, str], hers: int, his: int) -> None:
    town = network()
    clients = {}
    for name in order:
        user, expiry = ("alice", hers) if name == "A" else ("bob", his)
        clients[user] = arrives(town[name], user, expiry)
    town.pass_time(2)
    alive = [user for user, client in clients.items() if not client.wire.closed]
    assert len(alive) == 1
    sessions = [node for node in town.nodes.values() if b"sensor-7" in node.broker.sessions]
    assert [node.session("sensor-7").user for node in sessions] == alive
    owners = {node.network.moving.directory.get(b"sensor-7")[0] for node in town.nodes.values()}
    assert len(owners) == 1, "all nodes agree"


@pytest.mark.parametrize("hers", [0, EXPIRY])
def test_a_clock_that_is_behind_makes_nobody_the_first(hers: int) -> None:
    town = network()
    town["C"].broker.tell_time(town.now, town["C"].wall - 3600)
    alice = arrives(town["A"], "alice", hers)
    town.settle()
    assert answer(alice) == 0
    bob = arrives(town["C"], "bob", EXPIRY)
    town.pass_time(1)
    assert answer(bob) == 0x87
    assert not alice.wire.closed


@pytest.mark.parametrize("hers", [0, EXPIRY])
def test_after_nodes_could_not_hear_each_other_the_first_user_stays(hers: int) -> None:
    town = network("AB")
    town.cut("A", "B")
    town.pass_time(20)
    alice = arrives(town["A"], "alice", hers)
    town.pass_time(5)
    assert answer(alice) == 0
    bob = arrives(town["B"], "bob", EXPIRY)
    town.pass_time(5)
    assert answer(bob) == 0
    town.connect("AB")
    town.pass_time(5)
    assert not alice.wire.closed
    assert bob.farewell() == 0x87
    assert town["A"].session("sensor-7").user == "alice"
    assert b"sensor-7" not in town["B"].broker.sessions
    refused = arrives(town["B"], "bob", EXPIRY)
    town.pass_time(1)
    assert answer(refused) == 0x87


def test_whose_it_is_survives_restarts_of_all_nodes() -> None:
    town = network("AB")
    alice = arrives(town["A"], "alice", EXPIRY)
    town.settle()
    assert answer(alice) == 0
    for name in "AB":
        town.crash(name)
        town[name].broker.access.authenticator = Trusting()
    assert town["B"].network.moving.directory.whose(b"sensor-7").user == "alice"
    town.connect("AB")
    bob = arrives(town["B"], "bob", EXPIRY)
    town.pass_time(3)
    assert answer(bob) == 0x87
