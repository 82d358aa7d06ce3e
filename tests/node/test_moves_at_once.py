"""A session goes with its offer, in one round trip: nobody is asked first, and nothing is missed or comes twice."""

from __future__ import annotations

import pytest

from broker.lone_node import HELLO, Client
from broker.noted import RECORDED, deliveries, records
from conformance.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe
from node.faulty_nodes import FaultyTown
from node.joined_nodes import Town
from sterna.migration import messages
from sterna.migration.messages import MigRefuse, MigSync, MigTo
from sterna.migration.missed_messages import FILTERS_MAX
from sterna.migration.move_manager import MoveManager
from sterna.migration.tables import DepartureState
from sterna.overlay.link import Line

ONE_WAY_S = 0.5


class NotingTown(FaultyTown):
    journal = RECORDED


def far_apart(kind: type[FaultyTown] = FaultyTown) -> tuple[FaultyTown, Client]:
    """What A says to B takes a while, and a client of A is subscribed at every QoS."""
    town = kind("AB")
    town.connect_slowly("A", "B", ONE_WAY_S)
    town.pass_time(3)
    client = come(town, "A")
    town.pass_time(2)
    client.send(Subscribe(1, [("t/0", 0), ("t/1", 1), ("t/2", 2)]))
    town.pass_time(2)
    client.received()
    return town, client


def come(town: FaultyTown, name: str) -> Client:
    """Through a gateway: others are sent to their new node first."""
    client = town[name].dial()
    client.send(HELLO, Connect("c", False, properties={"session_expiry": 100}))
    return client


def begin(town: FaultyTown) -> None:
    town["B"].network.router.tell(["A"], messages.encode(messages.Digests([])))  # it is heard of
    town.settle()
    town["A"].network.moving.plans.move(b"c", "B")
    town.pass_time(ONE_WAY_S / 2)
    assert town["A"].network.moving.departures[b"c"].state is DepartureState.IN_DOUBT


def test_a_move_takes_one_round_trip() -> None:
    town, client = far_apart()
    begin(town)
    town.pass_time(ONE_WAY_S / 2 + 0.1)
    assert client.wire.closed
    assert not town["A"].network.moving.departures
    assert b"c" in town["B"].broker.sessions


def test_what_is_acknowledged_while_the_session_is_on_its_way_is_not_sent_again() -> None:
    town, client = far_apart()
    publisher = town["A"].join("p")
    for qos in (1, 1, 2, 2):
        publisher.publish(f"t/{qos}", b"%d" % qos, qos)
    first, second, third, fourth = client.messages()
    client.send(Pubrec(fourth.packet_id))
    town.settle()
    assert client.take(Pubrel).packet_id == fourth.packet_id
    begin(town)
    client.send(Puback(first.packet_id))
    client.send(Pubrec(third.packet_id), Puback(second.packet_id), Pubcomp(fourth.packet_id))
    town.pass_time(0.01)
    assert client.received() == [], "nobody says PUBREL before it is known who is to"
    town.pass_time(2)
    client = come(town, "B")
    town.pass_time(2)
    _connack, *rest = client.received()
    assert rest == [Pubrel(third.packet_id)]


def test_a_client_that_comes_before_that_is_known_is_let_in_at_once_and_sent_nothing_again() -> None:
    """What the old node has to say about it takes a while."""
    town, client = far_apart()
    publisher = town["A"].join("p")
    for number in range(3):
        publisher.publish("t/1", b"%d" % number, 1)
    first, second, third = client.messages()
    begin(town)
    client.send(Puback(first.packet_id))
    town.pass_time(ONE_WAY_S / 2 + 0.02)
    assert b"c" in town["B"].broker.sessions
    client = come(town, "B")
    town["B"].join("q").publish("t/1", b"3", 1)
    town["B"].join("q").publish("t/0", b"loose", 1)
    town.pass_time(0.05)
    connack, *rest = client.received()
    assert isinstance(connack, Connack)
    assert [packet.payload for packet in rest if isinstance(packet, Publish)] == [b"loose"]
    town.pass_time(2)
    again = [(packet.packet_id, packet.dup) for packet in client.received() if isinstance(packet, Publish)]
    assert again[:2] == [(second.packet_id, True), (third.packet_id, True)]
    assert [dup for _, dup in again[2:]] == [False]


def test_what_is_acknowledged_while_the_session_is_on_its_way_is_noted_once() -> None:
    town, client = far_apart(NotingTown)
    publisher = town["A"].join("p")
    for qos in (1, 2, 2):
        publisher.publish(f"t/{qos}", b"", qos)
    at_least_once, exactly_once, unheard = client.messages()
    begin(town)
    client.send(Puback(at_least_once.packet_id), Pubrec(exactly_once.packet_id))
    town.pass_time(2)
    client = come(town, "B")
    town.pass_time(2)
    client.send(Pubrec(unheard.packet_id))
    town.settle()
    (moved,) = {row["number"] for row in records(town["A"], "sessions") if row["what"] == "moved"}
    (arrived,) = {row["number"] for row in records(town["B"], "sessions") if row["what"] == "arrived"}
    assert moved == arrived
    assert deliveries(town["A"]) == [("c", 0, 1, False, None)]
    assert deliveries(town["B"]) == [("c", 1, 2, False, None), ("c", 2, 2, True, None)]


def test_what_is_not_acknowledged_in_time_is_sent_again() -> None:
    town, client = far_apart()
    town["A"].join("p").publish("t/1", b"1", 1)
    (sent,) = client.messages()
    begin(town)
    town.pass_time(2)
    client = come(town, "B")
    town.pass_time(2)
    again = [packet for packet in client.received() if isinstance(packet, Publish)]
    assert [(one.packet_id, one.dup) for one in again] == [(sent.packet_id, True)]


def test_a_client_that_says_something_else_is_not_heard_but_its_acknowledgements_before_that_are() -> None:
    town, client = far_apart()
    publisher = town["A"].join("p")
    publisher.publish("t/1", b"1", 1)
    publisher.publish("t/1", b"2", 1)
    first, second = client.messages()
    begin(town)
    client.send(Puback(first.packet_id), Publish("x", b"", 1, packet_id=9), Puback(second.packet_id))
    town.pass_time(2)
    client = come(town, "B")
    town.pass_time(2)
    again = [packet for packet in client.received() if isinstance(packet, Publish)]
    assert [one.payload for one in again] == [b"2"]


def test_a_move_that_is_refused_goes_on_with_what_was_acknowledged_meanwhile() -> None:
    town, client = far_apart()
    town["B"].network.moving.plans.evacuate(1.0)
    publisher = town["A"].join("p")
    publisher.publish("t/2", b"2", 2)
    (sent,) = client.messages()
    begin(town)
    client.send(Pubrec(sent.packet_id))
    publisher.publish("t/0", b"0", 1)
    publisher.publish("t/1", b"1", 1)
    town.pass_time(0.01)
    assert client.received() == []
    town.pass_time(2)
    assert not client.wire.closed
    found = client.received()
    assert Pubrel(sent.packet_id) in found
    assert sorted(one.payload for one in found if isinstance(one, Publish)) == [b"0", b"1"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_at_either_node_meanwhile_comes_once_and_in_order(qos: int) -> None:
    town, client = far_apart()
    publishers = {name: town[name].join(f"p{name}") for name in "AB"}
    came: list[bytes] = []
    unreleased: set[int] = set()
    for step in range(40):
        for name, publisher in publishers.items():
            publisher.publish(f"t/{qos}", b"%s%02d" % (name.encode(), step), 2)
        town.pass_time(0.1)
        if step == 10:
            town["A"].network.moving.plans.move(b"c", "B")
        for packet in client.received():
            if isinstance(packet, Publish):
                if packet.packet_id not in unreleased:
                    came.append(packet.payload)
                if qos == 1:
                    client.send(Puback(packet.packet_id))
                elif qos == 2:
                    unreleased.add(packet.packet_id)
                    client.send(Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                unreleased.discard(packet.packet_id)
                client.send(Pubcomp(packet.packet_id))
        if client.wire.closed:
            client = come(town, "B")
    for name in "AB":
        of_one = [payload for payload in came if payload.startswith(name.encode())]
        assert of_one == [b"%s%02d" % (name.encode(), step) for step in range(len(of_one))]
        assert len(of_one) > 30


def test_what_comes_before_the_session_is_put_together_is_kept_for_it_at_qos_0_too() -> None:
    """The disk of the new node is slow, the link is not."""
    town = FaultyTown("AB")
    town.connect("AB")
    client = town["A"].resume("c", gateway=True)
    client.subscribe("t", 0)
    publisher = town["A"].join("p")
    town["B"].disk_stalls = True
    town["B"].join_unheard("somebody")
    town["A"].network.moving.plans.move(b"c", "B")
    town.pass_time(0.1)
    publisher.publish("t", b"1", 1)
    town.pass_time(0.1)
    assert client.messages() == []
    town["B"].disk_stalls = False
    town.pass_time(1)
    client = town["B"].resume("c")
    assert client.payloads() == [b"1"]


@pytest.mark.parametrize("filters", [1, FILTERS_MAX + 1])
def test_a_node_that_has_read_past_the_offer_asks_for_what_lies_between_or_gets_another(
    filters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first one is lost on the way; by the time it is repeated, others there have read on."""
    town = Town("AB")
    town.connect("AB")
    client = town["A"].resume("c", gateway=True)
    for number in range(1, filters + 1):
        client.subscribe(f"t/{number}", 1)
    other = town["B"].join("other")
    other.subscribe("u", 1)
    said: list[object] = []
    original = MoveManager.directed_came

    def directed_came(moving: MoveManager, source: str, body: bytes) -> None:
        message = messages.decode(body)
        said.append(message)
        if not (isinstance(message, MigTo | MigSync) and len(said) <= 2):
            original(moving, source, body)

    monkeypatch.setattr(MoveManager, "directed_came", directed_came)
    publisher = town["A"].join("p")
    town["A"].network.moving.plans.move(b"c", "B")
    town.settle()
    publisher.publish("t/1", b"1", 1)
    publisher.publish("u", b"2", 1)
    assert other.payloads() == [b"2"]
    town.pass_time(2)
    assert any(isinstance(one, MigRefuse) and one.is_ahead for one in said) == (filters > 1)
    assert town["A"].network.moving.counters.departed == 1
    assert town["A"].network.moving.counters.rolled_back == 0
    came = [one.payload for one in client.messages()]
    client = town["B"].resume("c")
    assert client.connack.session_present
    assert [*came, *client.payloads()] in ([b"1"], [b"1", b"1"])


def silence(town: FaultyTown) -> None:
    """B is gone, and its connection does not say so."""
    for pipe in town.pipes:
        pipe.write = lambda data: None  # type: ignore[method-assign]


def test_a_node_that_was_not_heard_of_lately_is_asked_first() -> None:
    town, client = far_apart()
    line_to_b(town).heard = town.now - 1.6  # a keep-alive is late
    town["A"].network.moving.plans.move(b"c", "B")
    town.pass_time(ONE_WAY_S / 2)
    assert town["A"].network.moving.departures[b"c"].state is DepartureState.OFFERED
    town["A"].join("p").publish("t/0", b"0", 1)
    assert [one.payload for one in client.messages()] == [b"0"], "it is served meanwhile"
    town.pass_time(2 * ONE_WAY_S)
    assert client.wire.closed
    assert b"c" in town["B"].broker.sessions


def line_to_b(town: FaultyTown) -> Line:
    line = town["A"].network.links.links["B"].line
    assert line is not None
    return line


def test_a_client_is_served_on_if_its_new_node_vanished_before_the_order() -> None:
    town = FaultyTown("AB")
    town.connect("AB")
    client = town["A"].resume("c", gateway=True)
    client.subscribe("t", 1)
    town.pass_time(2)
    silence(town)
    town.pass_time(1.6)
    publisher = town["A"].join("p")
    town["A"].network.moving.plans.move(b"c", "B")
    for number in range(30):
        publisher.publish("t", b"%d" % number, 1)
        town.pass_time(0.5)
        assert client.payloads() == [b"%d" % number]
        assert town["A"].session("c").leaving is None
    assert not client.wire.closed
    assert town["A"].network.moving.counters.rolled_back == 1
