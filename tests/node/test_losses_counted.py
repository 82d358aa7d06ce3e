"""QoS 0 messages that are lost between nodes are counted, where they stopped and why; those that arrive are not."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise

import pytest

from broker.lone_node import Client
from conformance.packets import Publish
from node.joined_nodes import Town
from sterna.routing.link_frames import Frame
from sterna.routing.losses import (
    ASTRAY,
    CONGESTED,
    GAP_S,
    LEFT_S,
    LINK_ENDED,
    NO_WAY,
    UNACKNOWLEDGED,
    UNANNOUNCED,
    Losses,
)
from sterna.routing.message_frames import encode_loose, loose_opening
from sterna.routing.outbound import HELD_MAX


def row(strategy: str, names: str = "abc") -> tuple[Town, Client, Client]:
    """A publisher at the first node and a subscriber at the last, everybody knowing of both."""
    town = Town(names, strategy)
    town.connect(*(one + other for one, other in pairwise(names)))
    subscriber = town[names[-1]].join("subscriber")
    subscriber.subscribe("t/#")
    publisher = town[names[0]].join("publisher")
    publisher.publish("t/x", b"first")
    town.pass_time(2)  # everything is acknowledged
    assert subscriber.payloads() == [b"first"]
    return town, publisher, subscriber


def send(publisher: Client, count: int) -> int:
    for number in range(count):
        publisher.publish("t/x", b"%d" % number)
    return count


def lost(town: Town) -> dict[str, int]:
    found: Counter[str] = Counter()
    for node in town.nodes.values():
        found.update(node.network.router.losses.by_reason)
    return dict(found)


def break_line(town: Town, one: str, other: str) -> None:
    """The connection is gone, and what was on its way; the session may still go on over another."""
    for pipe in town.pipes:
        ends = {end.channel.link.peer for end in (pipe, pipe.other) if end.channel and end.channel.link}
        if ends == {one, other} and not pipe.closed:
            pipe.waiting.clear()
            pipe.closed = pipe.other.closed = True
            for end in (pipe, pipe.other):
                assert end.channel is not None
                end.channel.lost()


def test_what_arrives_is_not_counted(strategy: str) -> None:
    town, publisher, subscriber = row(strategy)
    send(publisher, 3)
    break_line(town, "b", "c")
    send(publisher, 3)
    town.connect("bc")  # in time: the session goes on
    send(publisher, 3)
    assert len(subscriber.payloads()) == 9
    assert lost(town) == {}


def test_every_message_arrives_or_is_counted(strategy: str) -> None:
    """Written and lost on the way, waiting for a connection that never comes, and published while there is no way."""
    town, publisher, subscriber = row(strategy)
    publisher.send(Publish("t/x", b"on its way"))
    town["a"].work()
    for pipe in town.pipes:
        pipe.move()
    town["b"].work()
    break_line(town, "b", "c")
    waiting = send(publisher, 2)
    town.pass_time(3)
    unreached = send(publisher, 5)
    town.connect("bc")
    sent = send(publisher, 4)
    assert len(subscriber.payloads()) == sent
    assert lost(town) == {UNACKNOWLEDGED: 1, LINK_ENDED: waiting, NO_WAY: unreached}


def test_a_node_that_is_alone_knows_what_the_others_miss(strategy: str) -> None:
    town, publisher, subscriber = row(strategy, "ab")
    town.cut("a", "b")
    unreached = send(publisher, 3)
    publisher.send(*[Publish("t/x", b"run")] * 10)
    town.settle()
    town.connect("ab")
    send(publisher, 2)
    assert len(subscriber.payloads()) == 2
    assert lost(town) == {NO_WAY: unreached + 10}


def test_a_message_is_counted_where_it_stops(strategy: str) -> None:
    """Somebody on the way wants it too: it goes as far as it can."""
    town, publisher, subscriber = row(strategy)
    town["b"].join("nearer").subscribe("t/x")
    town.cut("b", "c")
    unreached = send(publisher, 3)
    assert lost(town) == {NO_WAY: unreached}
    assert town["b"].network.router.losses.by_reason == {NO_WAY: unreached}
    assert not subscriber.payloads()


def test_messages_of_the_lost_are_not_for_them(strategy: str) -> None:
    """What comes by a new way from nodes that were behind the lost link was theirs before."""
    town, _, subscriber = row(strategy)
    other = town["c"].join("other")
    other.publish("t/y", b"first")
    town["a"].join("listener").subscribe("t/y")
    town.cut("b", "c")
    town.connect("ac")
    subscriber.payloads()
    before = lost(town)
    other.publish("t/y", b"1")
    assert lost(town) == before


@pytest.mark.parametrize("strategy", ["subscription-flooding", "advertisement"])
def test_what_nobody_asked_for_or_asks_for_any_more_is_no_loss(strategy: str) -> None:
    town, publisher, subscriber = row(strategy)
    town.cut("b", "c")
    publisher.publish("u", b"nobody asked for it")
    town.connect("bc")
    subscriber.unsubscribe("t/#")
    town.pass_time(1)
    send(publisher, 3)
    assert lost(town) == {}


def test_a_dead_node_with_others_behind_it_is_waited_for_until_those_are_back(strategy: str) -> None:
    town, publisher, subscriber = row(strategy, "abc")
    town.cut("a", "b")
    town.cut("b", "c")
    unreached = send(publisher, 4)
    town.connect("ac")
    sent = send(publisher, 6)
    assert len(subscriber.payloads()) == sent
    assert lost(town) == {NO_WAY: unreached}


def test_what_goes_another_way_too_is_not_counted_for_a_link_that_is_down(strategy: str) -> None:
    """A tree gives those behind a dead node another parent before the link to it is given up."""
    town, publisher, _ = row(strategy, "abc")
    break_line(town, "a", "b")
    waiting = send(publisher, 2)
    a = town["a"].network
    a.router.losses.left(a.links.links["b"], "c", ["b"])
    send(publisher, 3)
    town.pass_time(3)
    assert lost(town) == {LINK_ENDED: waiting}


def test_whoever_has_left_a_link_before_it_ended_misses_nothing_by_its_end() -> None:
    town, _, _ = row("subscription-flooding", "abc")
    link = town["a"].network.links.links["b"]
    for pause_s, is_missed in ((1.0, False), (LEFT_S + 1, True)):
        now = [0.0]
        losses = Losses(now=partial(now.__getitem__, 0), schedule=lambda at, action: None, changed=lambda: None)
        losses.left(link, "c", ["b"])
        now[0] += pause_s
        losses.way_lost("b", "b", ["b"])
        losses.no_longer_wanted("b", [b"t/#"])
        assert losses.misses(b"t/x", ["c"]) is is_missed


def test_a_node_away_for_long_counts_as_gone(strategy: str) -> None:
    town, publisher, _ = row(strategy, "ab")
    town.cut("a", "b")
    unreached = send(publisher, 2)
    town.pass_time(GAP_S)
    send(publisher, 2)
    assert lost(town) == {NO_WAY: unreached}


def test_what_a_link_has_no_room_for_is_counted_message_by_message(strategy: str) -> None:
    town, publisher, _ = row(strategy, "ab")
    link = town["a"].network.links.links["b"]
    link.congested = True
    publisher.send(*[Publish("t/x", b"run")] * 10)
    town.settle()
    assert lost(town) == {CONGESTED: 10}


def test_what_comes_after_a_session_was_given_up_is_counted(strategy: str) -> None:
    town, publisher, _ = row(strategy, "ab")
    publisher.send(*[Publish("t/x", b"run")] * 3)
    town["a"].node.flush()
    town["a"].network.links.links["b"].restart("a test")
    publisher.send(*[Publish("t/x", b"run")] * 4)
    town["a"].network.router.flush()
    town.settle()
    counted = lost(town)
    assert counted.pop(UNACKNOWLEDGED, 0) + counted.pop(LINK_ENDED) == 7
    assert not counted


def test_what_waits_for_its_topic_to_be_known_is_bounded_and_counted() -> None:
    town, publisher, _ = row("advertisement", "ab")
    for number in range(HELD_MAX + 5):
        publisher.send(Publish("t/new", b"%d" % number))
    assert lost(town) == {UNANNOUNCED: 5}


def test_what_comes_astray_is_counted_unless_it_came_before() -> None:
    town, _, _ = row("subscription-flooding", "ab")
    network = town["a"].network
    link = network.links.links["b"]

    def came(origin: str, number: int, count: int) -> None:
        body = loose_opening(origin, 1, number) + encode_loose(b"t/x", [b"1"] * count, b"", 0.0, b"")
        network.router.frames(link, [(Frame.LOOSE, body)])

    came("nobody knows it", 1, 3)
    assert lost(town) == {ASTRAY: 3}
    assert network.router.counters.refused == 3
    came("b", 100, 1)
    came("b", 100, 2)  # a repetition
    assert lost(town) == {ASTRAY: 3}
    assert network.router.counters.refused == 5
