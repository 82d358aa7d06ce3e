"""A session goes with its offer to a node that was not listening for it, however many nodes there are: nobody is asked
before, and the new node fetches what the session would miss."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.lone_node import Client
from conformance.packets import Connack, Connect, Publish
from node.faulty_nodes import FaultyTown, SlowPipe
from node.joined_nodes import Town
from node.test_barriers import absorb, hold_back
from node.test_clients_move import row
from sterna.migration import messages
from sterna.migration.messages import MigRefuse, MigSync
from sterna.migration.move_manager import MoveManager
from sterna.routing.link_frames import Page
from sterna.routing.origin_streams import Streams

ONE_WAY_S = 0.2


def far_apart(names: str) -> FaultyTown:
    """All links lead to A, and take their time either way."""
    town = FaultyTown(names)
    for name in names[1:]:
        town._join("A", name, SlowPipe(town, ONE_WAY_S), SlowPipe(town, ONE_WAY_S))
    town.pass_time(5)
    return town


@pytest.mark.parametrize("names", ["AB", "ABC", "ABCDE"])
def test_a_move_takes_one_round_trip_however_many_nodes_there_are(names: str) -> None:
    town = far_apart(names)
    client = town["A"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(3)
    client.vanish()
    client = town["B"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(2 * ONE_WAY_S + 0.1)
    assert client.take(Connack).session_present


def ahead(town: Town, qos: int) -> tuple[Client, Client, list[bytes], Callable[[], None]]:
    """The new node, C, has read messages of B, for others, that the old one, A, has not: a client of A, a publisher at
    B, what the client had, and a function that ends this."""
    client = town["A"].resume("c")
    client.subscribe("t", qos)
    town["C"].join("listener").subscribe("t", 1)
    publisher = town["B"].join("p")
    publisher.publish("t", b"1", 2)
    came = absorb(client)
    town.cut("A", "B")
    release = hold_back(town, "A")
    for number in (2, 3):
        publisher.publish("t", b"%d" % number, 2)
    town.connect("AB")
    client.vanish()
    return client, publisher, came, release


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Words of nodes to each other about sessions."""
    words: list[object] = []
    original = MoveManager.directed_came

    def directed_came(moving: MoveManager, source: str, body: bytes) -> None:
        words.append(messages.decode(body))
        original(moving, source, body)

    monkeypatch.setattr(MoveManager, "directed_came", directed_came)
    return words


@pytest.mark.parametrize("crashes", [False, True], ids=["", "and the new node crashes"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_the_new_node_has_read_for_others_comes_once_and_in_order(
    strategy: str, qos: int, crashes: bool, said: list[object]
) -> None:
    town = row(strategy)
    _, publisher, came, release = ahead(town, qos)
    client = town["C"].resume("c")
    assert client.connack.session_present
    assert not any(isinstance(word, MigRefuse) for word in said), "it was not offered as among many"
    if crashes:
        town.crash("C")
        town.connect("BC")
        client = town["C"].resume("c")
    release()
    publisher.publish("t", b"4", 2)
    town.pass_time(1)
    came += absorb(client)
    if qos == 0 and crashes:
        assert came in ([b"1", b"4"], [b"1", b"2", b"3", b"4"])
    else:
        assert came == [b"1", b"2", b"3", b"4"]


def test_the_session_comes_once_though_it_is_sent_again_before_that_is_fetched(said: list[object]) -> None:
    town = row("subscription-flooding")
    _, _, came, release = ahead(town, 2)
    town["A"].join("q").publish("t", b"waits at A", 2)
    streams = town["C"].network.router.streams
    fetched: list[Page] = []
    original = streams._page_for_one
    streams._page_for_one = lambda page: fetched.append(page)  # type: ignore[method-assign]
    client = town["C"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    for _ in range(30):
        if sum(isinstance(word, MigSync) for word in said) > 1:
            break
        town.pass_time(0.1)
    else:
        raise AssertionError("it is not sent again")
    for page in fetched:
        original(page)
    town.pass_time(1)
    release()
    came += absorb(client)
    assert sorted(came) == [b"1", b"2", b"3", b"waits at A"]


def _no_page(streams: Streams) -> None:
    """The answer is lost."""
    streams._page_for_one = lambda page: None  # type: ignore[method-assign]


def _half_a_page(streams: Streams) -> None:
    original = streams._give_to_one
    streams._give_to_one = lambda number, messages: original(number, None)  # type: ignore[method-assign]


@pytest.mark.parametrize("obstacle", [_no_page, _half_a_page])
def test_what_cannot_be_fetched_is_heard_at_the_old_node_first(
    obstacle: Callable[[Streams], None], said: list[object]
) -> None:
    town = row("subscription-flooding")
    _, publisher, came, release = ahead(town, 2)
    obstacle(town["C"].network.router.streams)
    client = town["C"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(2)
    assert any(isinstance(word, MigRefuse) and word.is_ahead for word in said)
    release()
    town.pass_time(3)
    assert client.take(Connack).session_present
    publisher.publish("t", b"4", 2)
    assert came + absorb(client) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("where", ["B", "C"])
def test_a_publisher_that_has_moved_meanwhile_is_heard_in_order(where: str) -> None:
    """It published at D, which the old node has not read as far, and then at a node that the new one has read."""
    town = Town("ABCD")
    town.connect("AB", "BC", "BD")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town["C"].join("listener").subscribe("t", 1)
    publisher = town["D"].resume("p")
    publisher.publish("t", b"1", 1)
    came = absorb(client)
    town.cut("A", "B")
    release = hold_back(town, "A")
    publisher.publish("t", b"2", 1)
    publisher.vanish()
    publisher = town[where].resume("p")
    publisher.publish("t", b"3", 1)
    town.connect("AB")
    client.vanish()
    client = town["C"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(2)
    release()
    town.pass_time(3)
    came += [packet.payload for packet in client.received() if isinstance(packet, Publish) and not packet.dup]
    assert came == [b"1", b"2", b"3"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_the_new_node_is_still_writing_when_it_is_asked_to_take_over_comes_once(strategy: str, qos: int) -> None:
    """It has read these messages and delivered them to nobody yet: are they before or after what it hears?"""
    town = FaultyTown("ABC", strategy)
    town.connect("AB", "BC")
    client = town["A"].resume("c")
    client.subscribe("t", qos)
    town["C"].resume("listener").subscribe("t", 1)
    publisher = town["B"].join("p")
    publisher.publish("t", b"1", 2)
    came = absorb(client)
    town.cut("A", "B")
    release = hold_back(town, "A")
    town["C"].disk_stalls = True
    for number in (2, 3):
        publisher.publish("t", b"%d" % number, 2)
    town.connect("AB")
    client.vanish()
    client = town["C"].dial()
    client.send(Connect("c", False, properties={"session_expiry": 100}))
    town.pass_time(0.2)
    town["C"].disk_stalls = False
    town.pass_time(1)
    assert client.take(Connack).session_present
    release()
    publisher.publish("t", b"4", 2)
    town.pass_time(1)
    assert came + absorb(client) == [b"1", b"2", b"3", b"4"]
