"""Messages about sessions that are old, forged or nonsense change nothing: they are counted, and hurt nobody."""

from __future__ import annotations

from typing import get_args

import pytest

from node.joined_nodes import Town
from sterna.migration import messages
from sterna.migration.messages import (
    WHOLE,
    Absent,
    MigAbort,
    MigAck,
    MigRefuse,
    MigSync,
    MigSyncAck,
    MigTo,
    MigToAck,
    Pull,
)
from sterna.routing import link_frames
from sterna.routing.link_frames import About, Frame, Letter

FORGED: list[messages.Message] = [
    Pull(b"c", 1, None, False),
    Absent(b"c", 1, "B", 99),
    MigTo(b"c", 1, 5, None, [], True),
    MigToAck(b"c", 1, [], []),
    MigSync(b"c", 1, 0, []),
    MigSyncAck(b"c", 1, WHOLE),
    MigAck(b"c", 1),
    MigAbort(b"c", 1, ""),
    MigRefuse(b"c", 1, ""),
]


@pytest.mark.parametrize("message", FORGED, ids=lambda message: type(message).__name__)
def test_what_belongs_to_no_move_changes_nothing(message: messages.Message) -> None:
    town = Town("AB")
    town.connect("AB")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    town["B"].network.router.post("A", About.MOVES, messages.encode(message))
    town.pass_time(2)
    town["B"].join("p").publish("t", b"1", 1)
    assert client.payloads() == [b"1"]
    moving = town["A"].network.moving
    assert not moving.departures
    assert not moving.arrivals


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x93\x01\x02\x03", messages.encode(("pull", 1))])
def test_nonsense_is_counted(body: bytes) -> None:
    town = Town("AB")
    town.connect("AB")
    town["B"].network.router.post("A", About.MOVES, body)
    town.settle()
    assert town["A"].network.moving.counters.refused == 1
    assert "B" in town["A"].network.links.links


def test_nobody_speaks_for_a_node_that_is_not_behind_it() -> None:
    """C pretends to be A."""
    town = Town("ABC")
    town.connect("AB", "BC")
    forged = Letter("B", "A", 1, About.MOVES, messages.encode(Pull(b"c", 1, None, True)))
    refused = town["B"].network.router.counters.refused
    town["C"].network.router.send_control("B", Frame.LETTER, link_frames.encode(forged))
    town.settle()
    assert town["B"].network.router.counters.refused == refused + 1


def test_every_kind_of_message_has_one_that_takes_it() -> None:
    dispatch = Town("A")["A"].network.moving._dispatch
    assert set(dispatch.takers) == {*get_args(messages.Message), messages.Evacuate}
    assert set(dispatch.news_takers) == set(get_args(messages.News))


def test_an_offer_that_came_to_nothing_is_not_taken_again() -> None:
    """It was said twice; what was answered to the first lets the old node go on."""
    town = Town("AB")
    town.connect("AB")
    client = town["A"].resume("c", gateway=True)
    client.subscribe("t", 1)
    here, there = town["A"].network.moving, town["B"].network.moving
    offer = messages.encode(MigTo(b"c", here.next_number_of_move(b"c"), 5, None, [(b"t", 1, False, False, 0)], True))
    for _ in range(2):
        town["A"].network.router.post("B", About.MOVES, offer)
        town.settle()
        if there.arrivals:
            there.arrivals[b"c"].trouble("not now")
            town.settle()
    assert there.counters.given_up == 1, "the second was refused at once"
    assert not there.arrivals
    for _ in range(2):  # the node that offers learns of it, and takes another number
        here.plans.move(b"c", "B")
        town.pass_time(2)
    assert here.counters.departed == there.counters.arrived == 1


def test_an_offer_that_was_made_to_an_earlier_start_of_a_node_is_not_taken() -> None:
    """It waited at a node between the two: an answer of that start may do so as well."""
    town = Town("AB")
    town.connect("AB")
    town["A"].resume("c").subscribe("t", 1)
    here, there = town["A"].network.moving, town["B"].network.moving
    number, epoch = here.next_number_of_move(b"c"), here.host.epoch_of("B")
    assert epoch == there.host.epoch
    for said_to, taken in ((epoch - 1, 0), (epoch, 1)):
        offer = MigTo(b"c", number, 5, None, [(b"t", 1, False, False, 0)], True, epoch=said_to)
        town["A"].network.router.post("B", About.MOVES, messages.encode(offer))
        town.settle()
        assert there.counters.given_up == taken, "one that was taken is taken back: nobody made it"
        assert there.spent_numbers.covers(b"c", number)
        number += 1
    assert b"c" in town["A"].broker.sessions


def test_a_node_that_is_started_again_is_offered_the_session_under_another_number() -> None:
    town = Town("AB")
    town.connect("AB")
    client = town["A"].resume("c")
    client.subscribe("t", 1)
    here = town["A"].network.moving
    here.plans.move(b"c", "B")
    departure = here.departures[b"c"]
    number = departure.number
    town.crash("B")
    town.connect("AB")
    town.pass_time(2)
    assert departure.number > number or not here.departures
    client = town["B"].resume("c")
    assert client.connack.session_present
    assert [name for name in "AB" if b"c" in town[name].broker.sessions] == ["B"]
