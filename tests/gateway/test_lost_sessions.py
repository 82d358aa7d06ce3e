"""A session is gone, and the gateway cannot make another one of it that the client would take for the same."""

from __future__ import annotations

import pytest

from sterna.simulation.client_packets import LastWords

from .model_client import ModelClient
from .model_node import ModelSession
from .town import Town

versions = pytest.mark.parametrize("version", [4, 5])


def lose_the_session(town: Town, client: ModelClient) -> None:
    town.wire().cut()
    town.network.sessions.clear()
    client.talk(2)


def is_sent_away(client: ModelClient) -> bool:
    said = [first for first, _ in client.heard if first == 0xE0]
    return client.end.closing and len(said) == (client.version == 5)


@versions
def test_what_was_subscribed_before_it_came_here_only_the_client_knows(version: int) -> None:
    town = Town()
    before = ModelClient(town, version)
    before.connect(persistent=True)
    before.subscribe(b"x")
    before.talk()
    before.client.lost()
    town.pass_time(1)
    client = ModelClient(town, version)
    client.connect(persistent=True)
    client.subscribe(b"y")
    client.talk()
    lose_the_session(town, client)
    assert is_sent_away(client)
    assert not town.network.sessions[b"c"].filters, "nothing was said in its place"
    assert not town.gateway.clients
    assert town.gateway.attached == 0
    for present in (0, 1):  # it is told, once; a broker that knows nothing of this has an empty session by now
        again = ModelClient(town, version)
        again.connect(persistent=True)
        assert again.heard[0][1][0] == present
        again.client.lost()
        town.pass_time(1)


@versions
def test_a_new_session_that_moves_before_it_was_told_all_subscriptions_is_told_where_it_goes(version: int) -> None:
    town = Town()
    client = ModelClient(town, version)
    client.connect(persistent=True)
    client.subscribe(b"x")
    client.talk()
    town.wire().cut()
    town.network.sessions.clear()
    while not town.wires or town.wires[-1].over:
        town.next_timer()
    wire = town.wire()
    while b"c" not in town.network.sessions:
        wire.move()
    assert wire.up.sent, "SUBSCRIBE is on its way"
    wire.cut()
    client.talk(2)
    assert set(town.network.sessions[b"c"].filters) == {b"x"}
    assert not is_sent_away(client)


@versions
@pytest.mark.parametrize("qos", [1, 2])
def test_whether_a_publication_was_taken_only_the_session_knew(version: int, qos: int) -> None:
    """At QoS 1 it is said again, and may come twice; at QoS 2 that is for the client to decide."""
    town = Town()
    client = ModelClient(town, version)
    client.connect(persistent=True)
    client.publish(b"one", qos)
    town.wire().move(downwards=0)
    lose_the_session(town, client)
    assert is_sent_away(client) == (qos == 2)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"] * (2 if qos == 1 else 1)


@versions
def test_what_no_node_has_heard_yet_is_in_no_doubt(version: int) -> None:
    town = Town()
    client = ModelClient(town, version)
    client.connect(persistent=True)
    town.wire().cut()
    client.publish(b"one", 2)
    town.network.sessions.clear()
    client.talk(2)
    assert not is_sent_away(client)
    assert [payload for _, payload, _ in town.network.accepted] == [b"one"]


@versions
def test_the_will_of_one_that_is_sent_away_is_not_published(version: int) -> None:
    town = Town()
    before = ModelClient(town, version)
    before.connect(persistent=True)
    before.client.lost()
    town.pass_time(1)
    client = ModelClient(town, version)
    client.connect(persistent=True, will=LastWords(b"w", b"gone", 1))
    assert town.network.wills == []
    town.network.sessions.clear()
    wire = town.wire()
    wire.over = True  # the node is gone with everything it knew
    wire.upstream.lost()
    client.talk(2)
    assert is_sent_away(client)
    town.pass_time(5)
    assert town.network.wills == []


def test_a_client_that_could_take_nothing_more_of_its_other_session_begins_anew() -> None:
    """All that it may have under way waits for a word of a session that it had before, at a node that is away."""
    town = Town()
    town.network.window = 2
    client = ModelClient(town, 5)
    client.connect(persistent=True, receive_maximum=2)
    client.subscribe(b"x")
    client.talk()
    first = town.network.sessions[b"c"]
    for payload in (b"1", b"2"):
        town.network.publish(b"x", payload, 2)
    town.wire().move(upwards=0)
    client.hear()
    town.wire().cut()  # its node never hears that it has them
    other = town.network.sessions[b"c"] = ModelSession(200)
    other.filters = dict(first.filters)
    client.talk(2)
    assert not is_sent_away(client)
    town.network.publish(b"x", b"3", 1)
    client.talk(2)
    assert is_sent_away(client)
    again = ModelClient(town, 5)
    again.connect(persistent=True)
    assert again.heard[0][1][0] == 0, "and is told that its session is new"
