"""Routing by advertisement: subscriptions go only where something is published, and nothing published is missed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from wood import IDLE_S, Wood

from sterna.routing.advertised_topics import OwnTopics
from sterna.routing.covering import FilterTable
from sterna.routing.routing_frames import EVERYTHING, RoutingKind, encode
from sterna.routing.strategy import RoutingSettings
from sterna.vocabulary.errors import LinkProtocolError


def row(*names: str, topics_max: int = 100) -> Wood:
    settings = RoutingSettings(advertisement_idle_s=IDLE_S, advertised_topics_max=topics_max)
    wood = Wood(len(names), "advertisement", settings)
    for near, far in pairwise(names):
        wood.join(near, far)
    wood.rest()
    wood.sent.clear()
    return wood


def publish(wood: Wood, name: str, *topics: bytes) -> None:
    for topic in topics:
        wood[name].publish(topic)
    wood.rest()


def test_a_subscription_that_nothing_matches_waits_where_it_is() -> None:
    wood = row("a", "b", "c")
    wood["a"].want(b"x/+")
    publish(wood, "c", b"y")
    assert wood.said(RoutingKind.ADD) == []
    assert wood.said(RoutingKind.ADVERTISE) == [("c", "b", b"y"), ("b", "a", b"y")]


def test_a_subscription_goes_towards_the_publisher_and_nowhere_else() -> None:
    wood = row("a", "b", "c", "d")
    publish(wood, "c", b"x/1")
    wood["b"].want(b"x/+")
    wood.rest()
    assert wood.said(RoutingKind.ADD) == [("b", "c", b"x/+")]
    assert wood["c"].strategy.links_for(b"x/1") == ["b"]
    wood["b"].unwant(b"x/+")
    wood.rest()
    assert wood.said(RoutingKind.REMOVE) == [("b", "c", b"x/+")]


def test_an_early_subscription_leaves_when_something_is_advertised_and_gets_the_first_message_too() -> None:
    wood = row("a", "b", "c")
    wood["a"].want(b"x/#")
    wood.rest()
    publish(wood, "c", b"x/1")
    assert wood.said(RoutingKind.ADD) == [("a", "b", b"x/#"), ("b", "c", b"x/#")]
    assert wood["a"].refetches == 1
    assert list(wood["a"].received) == [("c", 1)]
    publish(wood, "c", b"x/2", b"x/3")
    assert wood["a"].refetches == 1, "what leads to the origin already needs no asking again"
    assert list(wood["a"].received) == [("c", 1), ("c", 2), ("c", 3)]


def test_an_advertisement_is_not_overtaken_by_messages_that_follow_it() -> None:
    """Else the later message would be taken for the last one seen, and the first would be missed for ever."""
    wood = row("a", "b", "c")
    wood["a"].want(b"x")
    wood["a"].want(b"y")
    publish(wood, "c", b"x")
    wood["c"].publish(b"y")
    wood["c"].publish(b"x")
    wood["c"].flush()
    wood.deliver("c", "b", 2)
    wood.deliver("b", "a", 2)
    wood.rest()
    assert list(wood["a"].received) == [("c", 1), ("c", 2), ("c", 3)]


def test_withdrawn_and_advertised_again_in_one_turn_still_says_so() -> None:
    """The node between pulled its subscription back for a moment; whoever is behind it must hear of that."""
    wood = row("a", "b", "c", "d")
    wood["a"].want(b"x")
    publish(wood, "d", b"x")
    assert wood["a"].refetches == 1
    wood.pass_time(IDLE_S)
    wood.pass_time(IDLE_S)
    wood.deliver("d", "c", 1)  # c hears "withdrawn" alone and pulls back
    wood.deliver("c", "d", 1)
    assert wood["d"].strategy.links_for(b"x") == []
    wood["d"].publish(b"x")
    wood["d"].flush()
    wood.deliver("d", "c", 9)
    wood.deliver("c", "b", 9)  # b hears both words in one turn
    wood.rest()
    assert wood["a"].refetches == 2
    assert list(wood["a"].received) == [("d", 1), ("d", 2)]


def test_a_topic_in_use_stays_advertised_and_an_idle_one_is_withdrawn() -> None:
    wood = row("a", "b")
    publish(wood, "a", b"busy", b"idle")
    wood["b"].want(b"busy")
    wood["b"].want(b"idle")
    wood.rest()
    for _ in range(3):
        wood.pass_time(IDLE_S)
        publish(wood, "a", b"busy")
    assert wood.said(RoutingKind.WITHDRAW) == [("a", "b", b"idle")]
    assert wood.told("b", "a") == [b"busy"]


def test_an_origin_that_is_gone_takes_its_advertisements_with_it() -> None:
    wood = row("a", "b", "c")
    publish(wood, "c", b"x")
    wood["a"].want(b"#")
    wood.rest()
    assert wood.told("a", "b") == [b"#"]
    wood.cut("b", "c")
    wood.rest()
    assert wood.told("a", "b") == []
    table: Any = wood["a"].strategy.table()
    assert table["heard"] == {"b": {}}
    assert table["routes"] == {"b": "b"}


def test_advertisements_come_back_with_the_link_and_by_another_way() -> None:
    wood = row("a", "b", "c")
    publish(wood, "c", b"x", b"y")
    wood.cut("b", "c")
    wood.rest()
    wood["a"].want(b"+")
    wood.join("c", "a")
    wood.rest()
    assert wood.told("a", "c") == [b"+"]
    assert wood.told("b", "a") == []
    assert wood["c"].strategy.links_for(b"x") == ["a"]


def test_an_origin_that_is_reached_by_another_way_goes_on_advertising() -> None:
    """A tree that re-forms makes new links before it leaves the old ones, and may hear the same from both."""
    wood = row("a", "b", "c", "d")
    publish(wood, "d", b"x")
    wood["a"].want(b"x")
    wood.rest()
    wood.sent.clear()
    wood.close_ring("b", "d")
    while wood["b"].paths["d"][0] != "d":
        wood.deliver("d", "b")
    assert not [frame for frame in wood.sent if frame[:2] == ("b", "a")], "a has known it all the time"
    wood.cut("c", "d")
    publish(wood, "d", b"x")
    assert list(wood["a"].received) == [("d", 1), ("d", 2)]


def test_dollar_topics_are_reached_only_by_filters_that_name_them() -> None:
    wood = row("a", "b")
    publish(wood, "b", b"$s/x")
    wood["a"].want(b"#")
    wood["a"].want(b"+/x")
    wood.rest()
    assert wood.told("a", "b") == []
    wood["a"].want(b"$s/+")
    wood.rest()
    assert wood.told("a", "b") == [b"$s/+"]


def test_many_topics_become_few_filters_that_still_match_them_all() -> None:
    wood = row("a", "b", topics_max=50)
    wood["b"].want(b"hall3/line7/temperature")
    topics = [b"hall%d/line%d/temperature" % (hall, line) for hall in range(8) for line in range(40)]
    publish(wood, "a", b"other", *topics)
    table: Any = wood["a"].strategy.table()
    assert len(table["advertised"]) <= 50
    advertised: FilterTable[None] = FilterTable()
    for entry in table["advertised"]:
        advertised.put(entry.encode(), None)
    assert all(any(advertised.matching(topic)) for topic in [b"other", *topics])
    assert table["advertised"] == [*(f"hall{hall}/#" for hall in range(7)), *table["advertised"][7:]]
    assert len(wood["b"].received) == 1


def test_even_first_levels_with_a_dollar_are_bounded() -> None:
    own = OwnTopics(20)
    for number in range(100):
        own.use(b"$%d/x" % number)
    assert list(own) == [EVERYTHING]
    wood = row("a", "b", topics_max=20)
    wood["b"].want(b"$77/+")
    publish(wood, "a", *(b"$%d/x" % number for number in range(100)))
    assert wood.told("b", "a") == [b"$77/+"]
    assert list(wood["b"].received) == [("a", 78)]
    wood.pass_time(IDLE_S)
    wood.pass_time(IDLE_S)
    wood.rest()
    assert wood.told("b", "a") == []


def test_a_large_group_is_put_together_before_small_ones() -> None:
    own = OwnTopics(40)
    for number in range(40):
        own.use(b"many/%d" % number)
    change = own.use(b"few/1")
    assert list(own) == [b"few/1", b"many/#"]
    assert change.new == [b"few/1", b"many/#"]
    assert len(change.gone) == 40


@pytest.mark.parametrize(
    "body",
    [
        b"\3",
        b"\3\1b",
        b"\3\0\0\1x",
        b"\3\2b",
        b"\3\1\xff\0\1x",
        b"\4\1b",
        *encode(RoutingKind.WITHDRAW, [b"never"], "b"),
        *encode(RoutingKind.ADVERTISE, [b"x", b"x"], "b"),
    ],
)
def test_nonsense_from_a_neighbour_is_refused_and_changes_nothing(body: bytes) -> None:
    wood = row("a", "b")
    before = wood["a"].strategy.table()
    with pytest.raises(LinkProtocolError):
        wood["a"].strategy.receive("b", body)
    assert wood["a"].strategy.table() == before
