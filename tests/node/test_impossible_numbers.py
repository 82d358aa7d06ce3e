"""Numbers that no node can have given: nobody believes them, passes them on, or fails to start over them."""

from __future__ import annotations

import msgspec
import pytest

from node.joined_nodes import JoinedNode, Town
from sterna.broker.session.session_log import SessionEvent
from sterna.migration.directory import Directory
from sterna.routing.link_frames import Frame
from sterna.vocabulary.bounds import OWNER_CLOCK_MAX, OWNER_NUMBER_MAX, OWNER_STEPS_MAX

NUMBERS = [2**64 - 1, 2**63, 2**62, OWNER_NUMBER_MAX + 1, OWNER_NUMBER_MAX, OWNER_CLOCK_MAX + 1]


def owners(*entries: tuple[bytes, str, int]) -> bytes:
    """As nodes say it, whatever the numbers."""
    return msgspec.msgpack.encode([1, [(*entry, None, 0, False) for entry in entries], [], True])


def known(node: JoinedNode, client: bytes) -> tuple[str, int]:
    return node.network.moving.directory.get(client)


@pytest.mark.parametrize("number", NUMBERS)
def test_one_word_of_one_node_stops_nobody_from_starting_again(number: int) -> None:
    town = Town("ABC")
    town.connect("AB", "BC")
    town["B"].resume("z").vanish()
    body = owners((b"x", "A", number), (b"y", "B", number), (b"z", "C", number))
    town["C"].network.router.send_control("B", Frame.NEWS, body)
    town.pass_time(1)
    for name in "AB":
        assert known(town[name], b"x") == ("", 0), "B does not believe it, and A never hears of it"
        assert known(town[name], b"y") == ("", 0)
    assert b"z" in town["B"].broker.sessions
    for name in "AB":
        town.crash(name)
        assert town[name].node.started.impossible_count == 0
        town[name].node.changes()  # as for the checkpoint of an orderly stop
    town.connect("AB")
    assert town["A"].resume("z").connack.session_present


def test_a_clock_that_is_years_ahead_is_believed() -> None:
    """Else an honest node with a wrong clock could not keep sessions, nor after its clock was set right."""
    town = Town("AB")
    town.connect("AB")
    ahead = 30 * 365 * 86400
    town["A"].broker.tell_time(town.now, town["A"].wall + ahead)
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    client.vanish()
    town["B"].join("p").publish("t", b"1", 1)
    client = town["B"].resume("c")
    assert client.connack.session_present
    assert client.payloads() == [b"1"]
    assert known(town["A"], b"c")[0] == "B"


def test_past_every_clock_numbers_count_on() -> None:
    """Were the last number that is believed to be claimed by somebody, those who come after could say one more."""
    one = Directory("here", {}, {}, lambda entry: None)
    assert one.can_be(b"c", OWNER_CLOCK_MAX)
    one.learn(b"c", "evil", OWNER_CLOCK_MAX)
    following = one.next_number(b"c", 1e9)
    assert one.can_be(b"c", following)
    assert not one.can_be(b"c", OWNER_CLOCK_MAX + OWNER_STEPS_MAX + 1)
    assert one.next_number(b"d", 1e30) <= OWNER_CLOCK_MAX, "whatever a clock says"


def poisoned(town: Town, name: str, *events: object) -> JoinedNode:
    """The node starts again on a journal that holds these events."""
    for event in events:
        town[name].broker.log._note(msgspec.msgpack.encode(event))
    town[name].work()
    town.crash(name)
    return town[name]


@pytest.mark.parametrize("number", [2**64 - 1, 2**63])
def test_a_journal_that_was_poisoned_is_read_all_the_same(number: int) -> None:
    town = Town("AB")
    town.connect("AB")
    client = town["A"].resume("kept")
    client.subscribe("t", 1)
    client.vanish()
    node = poisoned(
        town,
        "A",
        (SessionEvent.OWNER, b"x", "A", number),
        (SessionEvent.OWNER, b"kept", "A", number),
        (SessionEvent.OWNER, b"other", "B", number),
        (SessionEvent.OPENED, b"kept", False, 5, 100, None, None, 0, number),
        (SessionEvent.LEAVING, b"kept", ("B", number)),
    )
    assert node.node.started.impossible_count == 5
    assert any("number" in what for what in node.node.started.impossible)
    assert node.broker.statistics().impossible_entries == 5
    node.node.changes()
    town.connect("AB")
    town["B"].join("p").publish("t", b"1", 1)
    client = town["B"].resume("kept")
    assert client.connack.session_present, "the session is there, and can move"
    assert client.payloads() == [b"1"]


@pytest.mark.parametrize(
    "event",
    [
        (SessionEvent.OWNER, b"x", "A"),
        (SessionEvent.OWNER, b"x", "A", "many"),
        (SessionEvent.SEEN, "B", 1, 2, 3),
        (SessionEvent.SHARED, "B", [1, 2]),
        (SessionEvent.PART, "B", b"\xff", True, 2**63),
        (999, b"kept"),
        (SessionEvent.ASSIGNED, b"kept", 1),
        5,
        [],
    ],
)
def test_an_event_that_cannot_be_is_passed_over_and_reported(event: object) -> None:
    town = Town("AB")
    town.connect("AB")
    town["A"].resume("kept").vanish()
    node = poisoned(town, "A", event)
    assert b"kept" in node.broker.sessions
    if event != (SessionEvent.PART, "B", b"\xff", True, 2**63):  # parts that nobody understands were always passed over
        assert node.node.started.impossible_count == 1
