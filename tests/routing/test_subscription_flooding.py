"""Subscription flooding: what is said between neighbours, filter by filter, and what it costs where there are many."""

from __future__ import annotations

from itertools import pairwise
from time import process_time

import pytest
from wood import Wood

from sterna.routing.routing_frames import RoutingKind, encode
from sterna.vocabulary.errors import LinkProtocolError


def row(*names: str) -> Wood:
    """Nodes in a row, at rest, with nothing said so far."""
    wood = Wood(len(names), "subscription-flooding")
    for near, far in pairwise(names):
        wood.join(near, far)
    wood.rest()
    wood.sent.clear()
    return wood


def said(wood: Wood, kind: RoutingKind) -> list[tuple[str, str, bytes]]:
    wood.rest()
    return wood.said(kind)


def test_a_filter_travels_to_every_node_once_and_back_again() -> None:
    wood = row("a", "b", "c")
    wood["a"].want(b"x/+")
    assert said(wood, RoutingKind.ADD) == [("a", "b", b"x/+"), ("b", "c", b"x/+")]
    assert wood["c"].strategy.links_for(b"x/y") == ["b"]
    wood["a"].unwant(b"x/+")
    assert said(wood, RoutingKind.REMOVE) == [("a", "b", b"x/+"), ("b", "c", b"x/+")]
    assert wood["c"].strategy.links_for(b"x/y") == []


def test_a_covered_filter_is_not_sent() -> None:
    wood = row("a", "b", "c")
    wood["a"].want(b"x/#")
    wood.rest()
    wood.sent.clear()
    wood["a"].want(b"x/y")
    wood["b"].want(b"x/+/z")
    assert said(wood, RoutingKind.ADD) == [("b", "a", b"x/+/z")], "only where x/# is not known"


def test_what_a_filter_hid_is_sent_before_the_filter_goes() -> None:
    wood = row("a", "b")
    for topic_filter in (b"x/#", b"x/y", b"x/y/z", b"x/y/+"):
        wood["a"].want(topic_filter)
    wood.rest()
    wood.sent.clear()
    wood["a"].unwant(b"x/#")
    wood.rest()
    assert [body for _, _, body in wood.sent] == [
        *encode(RoutingKind.ADD, [b"x/y", b"x/y/+"]),
        *encode(RoutingKind.REMOVE, [b"x/#"]),
    ]


def test_a_filter_that_came_and_went_in_one_turn_is_never_mentioned() -> None:
    wood = row("a", "b")
    strategy = wood["a"].strategy
    strategy.want(b"x")
    strategy.want(b"#")
    strategy.unwant(b"x")
    strategy.unwant(b"#")
    strategy.flush()
    strategy.flush()
    assert wood.sent == []


def test_a_subscriber_that_goes_leaves_the_other_one_its_path() -> None:
    wood = row("a", "b", "c")
    wood["a"].want(b"x")
    wood["c"].want(b"x")
    wood.rest()
    wood.sent.clear()
    wood["c"].unwant(b"x")
    assert said(wood, RoutingKind.REMOVE) == [("c", "b", b"x"), ("b", "a", b"x")]
    assert wood["b"].strategy.links_for(b"x") == ["a"]
    assert wood["c"].strategy.links_for(b"x") == ["b"]


def test_two_spellings_of_everything_are_one() -> None:
    wood = row("a", "b")
    wood["a"].want(b"#")
    wood["a"].want(b"+/#")
    wood["a"].unwant(b"#")
    assert said(wood, RoutingKind.ADD) == [("a", "b", b"#")]
    assert wood.said(RoutingKind.REMOVE) == []
    assert wood["b"].strategy.links_for(b"x/y") == ["a"]
    assert wood["b"].strategy.links_for(b"$x/y") == []


def test_the_end_of_a_link_takes_back_what_only_it_wanted() -> None:
    wood = row("a", "b", "c")
    wood["a"].want(b"x")
    wood["a"].want(b"y")
    wood["b"].want(b"y")
    wood.rest()
    wood.sent.clear()
    wood.cut("a", "b")
    assert said(wood, RoutingKind.REMOVE) == [("b", "c", b"x")]
    assert wood["c"].strategy.links_for(b"y") == ["b"]


def test_only_remembered_topics_that_a_change_concerns_are_dropped() -> None:
    wood = row("a", "b")
    wood["b"].own_topics = {b"x/y": None, b"z": None}
    wood["a"].want(b"x/+")
    wood.rest()
    assert wood["b"].own_topics == {b"z": None}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"\1",
        b"\2",
        b"\1\0\5x",
        b"\1\1\1x",
        b"\1\0\3x/#\0\0",
        b"\1\0\3a#b",
        b"\1\0\1\xff",
        b"\1\0\3+/#",
        b"\1\0\1x\1\0",
        *encode(RoutingKind.REMOVE, [b"never/added"]),
        *encode(RoutingKind.ADVERTISE, [b"x"], "b"),
        b"\1\0\xff\xff\3" + b"x" * 65_535 + b"\xfe\xff\3\1y",
    ],
)
def test_nonsense_from_a_neighbour_is_refused_and_changes_nothing(body: bytes) -> None:
    wood = row("a", "b")
    before = wood["a"].strategy.table()
    with pytest.raises(LinkProtocolError):
        wood["a"].strategy.receive("b", body)
    assert wood["a"].strategy.table() == before


def test_filters_without_end_become_several_bounded_frames() -> None:
    wood = row("a", "b")
    wanted = [b"%05d/" % number + b"x" * 1000 for number in range(300)]
    for topic_filter in wanted:
        wood["a"].strategy.want(topic_filter)
    assert [f for _, _, f in said(wood, RoutingKind.ADD)] == wanted
    assert len(wood.sent) == 5
    assert max(len(body) for _, _, body in wood.sent) < 66_000


def test_filters_that_begin_alike_are_short_on_the_wire() -> None:
    (body,) = encode(RoutingKind.ADD, [b"factory/hall1/line%d/temperature" % number for number in range(100)])
    assert len(body) < 100 * 17


def test_a_change_among_thousands_of_filters_costs_little() -> None:
    """5,000 filters at each end of a row of three; then a thousand come and go, one turn each."""
    wood = row("a", "b", "c")
    for name in "ac":
        for number in range(5_000):
            wood[name].strategy.want(b"%s/room%d/+" % (name.encode(), number))
        wood[name].flush()
    wood.rest()
    begun = process_time()
    for number in range(1_000):
        wood["a"].strategy.want(b"new/%d" % number)
        wood.rest()
        wood["a"].strategy.unwant(b"new/%d" % number)
        wood.rest()
    assert process_time() - begun < 4.0  # looking at every filter each time would take minutes


def test_the_widest_filter_comes_and_goes_over_thousands_in_linear_time() -> None:
    wood = row("a", "b")
    for number in range(5_000):
        wood["a"].strategy.want(b"room%d/+/temperature" % number)
    wood.rest()
    wood.sent.clear()
    begun = process_time()
    wood["a"].strategy.want(b"#")
    wood.rest()
    assert wood.told("a", "b") == [b"#"]
    wood["a"].strategy.unwant(b"#")
    wood.rest()
    assert len(wood.told("a", "b")) == 5_000
    assert process_time() - begun < 2.0
