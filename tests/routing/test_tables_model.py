"""Strategies in a wood, whatever happens in whatever order: at rest the tables are exact, and on the way to it nothing
that was promised is missing.

The machine subscribes, publishes, joins and cuts trees and lets frames arrive in any interleaving that keeps the order
on each link.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from wood import IDLE_S, Wood, fits

from sterna.mqtt.topics import covers, levels_of
from sterna.routing.covering import FilterTable

TOPICS = [b"a", b"b", b"a/b", b"a/c", b"b/b", b"$s", b"$s/a", b"$t/a", b"a/b/c"]
FILTERS = [b"#", b"+/#", b"+", b"a", b"a/#", b"a/+", b"+/b", b"a/b", b"+/+", b"$s/#", b"$s/+", b"$s/a", b"b/#", b"a/c"]

places = st.integers(0, 1000)
topics = st.sampled_from(TOPICS)
filters = st.sampled_from(FILTERS)
deliveries = st.lists(st.tuples(places, st.integers(1, 3)), min_size=1, max_size=12)


def maximal(wanted: list[bytes]) -> list[bytes]:
    """Those that no other covers."""
    return sorted(
        one for one in wanted if not any(other != one and covers(levels_of(other), levels_of(one)) for other in wanted)
    )


@lru_cache
def overlap(one: bytes, advertised: bytes) -> bool:
    table: FilterTable[None] = FilterTable()
    table.put(one, None)
    return advertised == b"" or any(table.overlapping(advertised))


class Woods(RuleBasedStateMachine):
    strategy = ""

    @initialize(size=st.integers(2, 7), parents=st.lists(places, min_size=6, max_size=6))
    def plant(self, size: int, parents: list[int]) -> None:
        self.wood = Wood(size, self.strategy)
        self.names = list(self.wood.stems)
        #: (subscriber, its subscription, filter, origin, sequence)
        self.owed: list[tuple[str, int, bytes, str, int]] = []
        for number, name in enumerate(self.names[1:]):
            self.wood.join(name, self.names[parents[number] % (number + 1)])

    def name(self, place: int) -> str:
        return self.names[place % len(self.names)]

    @rule(place=places, wanted=st.lists(filters, min_size=1, max_size=3))
    def want(self, place: int, wanted: list[bytes]) -> None:
        for topic_filter in wanted:
            self.wood[self.name(place)].want(topic_filter)

    @rule(place=places, topic_filter=filters, flushed=st.booleans())
    def unwant(self, place: int, topic_filter: bytes, flushed: bool) -> None:
        stem = self.wood[self.name(place)]
        stem.unwant(topic_filter)
        if flushed:
            stem.flush()

    @rule(place=places, published=st.lists(topics, min_size=1, max_size=4), flushed=st.booleans())
    def publish(self, place: int, published: list[bytes], flushed: bool) -> None:
        stem = self.wood[self.name(place)]
        for topic in published:
            sequence = stem.publish(topic)
            for name, other in self.wood.stems.items():
                for topic_filter in other.settled:
                    if other is not stem and fits(topic_filter, topic):
                        self.owed.append((name, other.wants[topic_filter], topic_filter, stem.name, sequence))
        stem.make_known(published[-1])
        if flushed:
            stem.flush()

    @rule(choices=deliveries)
    def deliver(self, choices: list[tuple[int, int]]) -> None:
        self.deliver_some(choices)

    def deliver_some(self, choices: list[tuple[int, int]]) -> None:
        for place, count in choices:
            waiting = self.wood.waiting()
            if waiting:
                self.wood.deliver(*waiting[place % len(waiting)], count)

    @precondition(lambda self: self.wood.edges())
    @rule(place=places)
    def cut(self, place: int) -> None:
        edges = self.wood.edges()
        self.wood.cut(*edges[place % len(edges)])

    @rule(place=places, other=places)
    def join(self, place: int, other: int) -> None:
        near = self.name(place)
        reachable = self.wood.component(near)
        apart = [name for name in self.names if name not in reachable]
        if apart:
            self.wood.join(near, apart[other % len(apart)])

    @rule(place=places, other=places, edge=places, choices=deliveries)
    def bend(self, place: int, other: int, edge: int, choices: list[tuple[int, int]]) -> None:
        """The tree takes another shape, and is none for a while."""
        near = self.name(place)
        apart = [name for name in self.wood.component(near)[1:] if name not in self.wood[near].links]
        if apart:
            far = apart[other % len(apart)]
            ring = list(pairwise(self.wood.way(near, far)))
            self.wood.close_ring(near, far)
            self.deliver_some(choices)
            self.wood.cut(*ring[edge % len(ring)])

    @rule(times=st.integers(1, 2))
    def idle(self, times: int) -> None:
        for _ in range(times):
            self.wood.pass_time(IDLE_S)

    @rule()
    def rest(self) -> None:
        self.wood.rest()
        self.check_paths()
        self.check_tables()
        self.check_messages()

    def check_paths(self) -> None:
        for name, stem in self.wood.stems.items():
            assert sorted(stem.paths) == sorted(set(self.wood.component(name)) - {name})

    def check_tables(self) -> None:
        raise NotImplementedError

    def check_told(self, relevant: Any) -> None:
        """Each neighbour knows of exactly what is wanted behind its back and relevant, but for what others cover."""
        for near, far in self.wood.queues:
            wanted = self.wood.wanted_at(self.wood.component(near, without=far))
            there = self.wood.component(far, without=near)
            assert self.wood.told(near, far) == maximal([one for one in wanted if relevant(one, there)])

    def check_messages(self) -> None:
        for name, subscription, topic_filter, origin, sequence in self.owed:
            stem = self.wood[name]
            if stem.wants.get(topic_filter) == subscription and origin in self.wood.component(name):
                assert (origin, sequence) in stem.received, f"{name} misses {origin}'s {sequence} for {topic_filter!r}"

    @invariant()
    def nothing_settled_lacks_its_path(self) -> None:
        if not hasattr(self, "wood"):
            return
        for name, stem in self.wood.stems.items():
            for topic_filter, shape in stem.settled.items():
                if shape == self.wood.shape:
                    for origin, topic in self.sources(name, topic_filter):
                        way = self.wood.way(origin, name)
                        for near, far in pairwise(way):
                            assert far in self.wood[near].strategy.links_for(topic)

    def sources(self, name: str, topic_filter: bytes) -> list[tuple[str, bytes]]:
        """(origin, topic) of messages that must now find their way to a settled subscription."""
        raise NotImplementedError

    def teardown(self) -> None:
        """In the end nobody wants or publishes anything, and nothing is left."""
        if not hasattr(self, "wood"):
            return
        self.rest()
        for stem in self.wood.stems.values():
            for topic_filter in list(stem.wants):
                stem.unwant(topic_filter)
        self.wood.pass_time(IDLE_S)
        self.wood.pass_time(IDLE_S)
        self.wood.rest()
        for stem in self.wood.stems.values():
            table: Any = stem.strategy.table()
            assert table["local"] == []
            assert table["filters"] == 0
            assert all(link == {"wants": [], "told": []} for link in table["links"].values())
            assert table.get("advertised", []) == []
            assert not any(table.get("heard", {}).values())
        assert not self.wood.timers


class SubscriptionsFlooded(Woods):
    strategy = "subscription-flooding"

    def check_tables(self) -> None:
        self.check_told(lambda one, there: True)
        for name, stem in self.wood.stems.items():
            for topic in TOPICS:
                wanting = [
                    link
                    for link in sorted(stem.links)
                    if any(fits(one, topic) for one in self.wood.wanted_at(self.wood.component(link, without=name)))
                ]
                assert stem.strategy.links_for(topic) == wanting

    def sources(self, name: str, topic_filter: bytes) -> list[tuple[str, bytes]]:
        found = [topic for topic in TOPICS if fits(topic_filter, topic)]
        return [(origin, topic) for origin in self.wood.component(name) for topic in found]


class Advertised(Woods):
    strategy = "advertisement"

    def advertised(self, name: str) -> list[bytes]:
        table: Any = self.wood[name].strategy.table()
        return [entry.encode() for entry in table["advertised"]]

    def check_tables(self) -> None:
        everywhere = {name: self.advertised(name) for name in self.names}
        self.check_told(lambda one, there: any(overlap(one, entry) for name in there for entry in everywhere[name]))
        for name, stem in self.wood.stems.items():
            table: Any = stem.strategy.table()
            for link, heard in table["heard"].items():
                there = self.wood.component(link, without=name)
                assert {origin: [entry.encode() for entry in entries] for origin, entries in heard.items()} == {
                    origin: everywhere[origin] for origin in there if everywhere[origin]
                }
            assert len(everywhere[name]) <= 4

    def sources(self, name: str, topic_filter: bytes) -> list[tuple[str, bytes]]:
        return [
            (origin, topic)
            for origin in self.wood.component(name)
            for topic, shape in self.wood[origin].known.items()
            if shape == self.wood.shape and fits(topic_filter, topic)
        ]


STEPS = settings(max_examples=60, stateful_step_count=40)
TestSubscriptionsFlooded = SubscriptionsFlooded.TestCase
TestSubscriptionsFlooded.settings = STEPS
TestAdvertised = Advertised.TestCase
TestAdvertised.settings = STEPS
